#include "backend/cuda/device.h"

#include "base/error.h"

namespace gem::cuda {

void raise(cudaError_t status, const char* what) {
  cudaGetLastError();  // the next call starts clean, where the error is not a lasting one
  fail(status == cudaErrorMemoryAllocation ? ErrorCode::kTooLarge : ErrorCode::kFailed, "cuda: {}: {}", what,
       cudaGetErrorString(status));
}

}  // namespace gem::cuda
