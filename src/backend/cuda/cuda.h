// The CUDA backend: NVIDIA GPUs from compute capability 8.0 on, Hopper first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace gem {

struct CudaDevice {
  int id = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  std::uint64_t memory = 0, free = 0;
};

struct CudaOptions {
  std::optional<int> device = {};  // nothing: the first that the build has kernels for
};

// Whether this build has the backend.
bool cuda_built();
// The devices that this build has kernels for; empty also when there is no driver. Never throws.
std::vector<CudaDevice> cuda_devices();
// Packs the weights on the device. Error(kFailed) that says what is missing: the build, the driver, the
// device; Error(kTooLarge) when the device has no room.
std::unique_ptr<Backend> make_cuda_backend(const Geometry& geometry, const Weights& weights,
                                           const CudaOptions& options = {});

}  // namespace gem
