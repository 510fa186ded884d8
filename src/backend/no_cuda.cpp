// What backend/cuda/cuda.h promises, in a build without the CUDA backend.
#include "backend/cuda/cuda.h"
#include "base/error.h"

namespace gem {

bool cuda_built() {
  return false;
}

std::vector<CudaDevice> cuda_devices() {
  return {};
}

std::unique_ptr<Backend> make_cuda_backend(const Geometry&, const Weights&, const CudaOptions&) {
  fail(ErrorCode::kUsage, "this build of gem has no cuda backend");
}

}  // namespace gem
