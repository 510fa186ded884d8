// backend/cuda/launch.cuh for the emulated device.
#pragma once

#include "backend/cuda/device.h"

namespace gem::cuda {

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments&&... arguments) {
  emulation::run(shape.grid, shape.block, shape.shared_bytes, false,
                 [&] { kernel(static_cast<Parameters>(arguments)...); });
}
template <typename... Parameters, typename... Arguments>
cudaError_t launch_resident(void (*kernel)(Parameters...), const LaunchShape& shape,
                            Arguments&&... arguments) {
  emulation::run(shape.grid, shape.block, shape.shared_bytes, true,
                 [&] { kernel(static_cast<Parameters>(arguments)...); });
  return cudaSuccess;
}

}  // namespace gem::cuda
