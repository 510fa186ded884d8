// Whole rows of a cache, gathered from and scattered to its layers by one kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/rows.h"

namespace gem::cuda {

// A layer among those that are copied; its rows lie at `offset` of the copy, one position after the other:
// the keys of all KV heads (key_stride elements each), then their values (head_dim each).
struct CopiedLayer {
  std::uint32_t layer = 0;  // of `layers`
  std::uint32_t kv_heads = 0, head_dim = 0;
  std::uint64_t offset = 0;  // bytes
};

// `count` positions from `first` on; all pointers on the device.
void gather_cache(const CacheLayer* layers, const CopiedLayer* copied, std::uint32_t layer_count,
                  std::uint32_t first, std::uint32_t count, std::byte* out, cudaStream_t stream);
void scatter_cache(const CacheLayer* layers, const CopiedLayer* copied, std::uint32_t layer_count,
                   std::uint32_t first, std::uint32_t count, const std::byte* in, cudaStream_t stream);

}  // namespace gem::cuda
