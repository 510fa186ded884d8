// Launching kernels so that one may begin while the one before it ends (programmatic dependent launch): a
// kernel calls wait_for_previous() before it touches what earlier kernels wrote.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "backend/cuda/device.h"

namespace gem::cuda {

template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared,
            cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
}

// Whether blocks can share memory in clusters (compute capability 9.0 on).
inline bool device_has_clusters() {
  static const bool has = [] {
    int id = 0;
    int major = 0;
    check(cudaGetDevice(&id), "asking for the device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id), "asking for the device");
    return major >= 9;
  }();
  return has;
}

// The same with clusters of `blocks` blocks along x.
template <typename... Params, typename... Args>
void launch_cluster(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, unsigned blocks,
                    cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = blocks;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = blocks > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
}

#ifdef __CUDACC__
// Lets the next kernel's blocks start, as far as there is room for them.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// What earlier kernels wrote is visible afterwards.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

}  // namespace gem::cuda
