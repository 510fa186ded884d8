#include "backend/cuda/device.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace gem::cuda {

void raise(cudaError_t status, const char* what) {
  cudaGetLastError();  // the next call starts clean, where the error is not a lasting one
  const char* const why = cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) fail(ErrorCode::kTooLarge, "cuda: {}: {}", what, why);
  if (cudaDeviceSynchronize() != cudaSuccess)
    fail(ErrorCode::kLost, "the device is lost, gem must be started again: cuda: {}: {}", what, why);
  fail(ErrorCode::kFailed, "cuda: {}: {}", what, why);
}

bool kernels_run_on(std::string_view archs, int major, int minor) {
  const int capability = major * 10 + minor;
  while (!archs.empty()) {
    const std::string_view arch = archs.substr(0, archs.find(','));
    archs.remove_prefix(std::min(archs.size(), arch.size() + 1));
    int built = 0;
    const auto [end, error] = std::from_chars(arch.data(), arch.data() + arch.size(), built);
    const bool alone = end != arch.data() + arch.size() && (*end == 'a' || *end == 'f');
    if (error == std::errc() && capability >= 80 && (alone ? capability == built : capability >= built))
      return true;
  }
  return false;
}

}  // namespace gem::cuda
