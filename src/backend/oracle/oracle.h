// The oracle: the backend written for reading. Scalar, float64 throughout, one loop a formula. Everything
// else is tested against it.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace gem {

// `weights` must outlive the backend.
std::unique_ptr<Backend> make_oracle_backend(const Geometry& geometry, const Weights& weights);

}  // namespace gem
