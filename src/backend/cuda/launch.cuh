// Starting a kernel: launch(kernel, {grid, block, shared bytes, stream}, arguments...). (Tests put another
// file of this name in front: tests/emulation/cuda.)
#pragma once

#include "backend/cuda/device.h"

namespace gem::cuda {

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments&&... arguments) {
  kernel<<<shape.grid, shape.block, shape.shared_bytes, shape.stream>>>(
      static_cast<Parameters>(arguments)...);
}
// All blocks of it at once on the device.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_resident(void (*kernel)(Parameters...), const LaunchShape& shape,
                            Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace gem::cuda
