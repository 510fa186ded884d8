// The cpu backend: runs everywhere, f32 activations between stages, weights packed for the processor's
// kernels.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace gem {

// `weights` must outlive the backend; they are packed by load_weights(). `threads` 0: one a physical core.
// Error(kUsage) when GEM_CPU_ISA names an instruction set that is unknown or not supported here.
std::unique_ptr<Backend> make_cpu_backend(const Geometry& geometry, const Weights& weights, unsigned threads,
                                          ReleaseWeights release = {});

}  // namespace gem
