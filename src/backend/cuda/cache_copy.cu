#include "backend/cuda/cache_copy.h"
#include "backend/cuda/launch.cuh"

namespace gem::cuda {
namespace {

// One block: one position of one layer.
template <bool Out>
__global__ void copy_kernel(const CacheLayer* layers, const CopiedLayer* copied, std::uint32_t first,
                            __half* rows) {
  const CopiedLayer c = copied[blockIdx.y];
  const CacheLayer cache = layers[c.layer];
  const std::uint32_t slot = (first + blockIdx.x) % cache.slots;
  const std::uint32_t keys = c.kv_heads * cache.key_stride;
  const std::uint32_t values = c.kv_heads * c.head_dim;
  __half* row = rows + c.offset + std::size_t{blockIdx.x} * (keys + values);
  for (std::uint32_t i = threadIdx.x; i < keys + values; i += blockDim.x) {
    __half* at;
    if (i < keys) {
      at = cache.keys + (std::size_t{i / cache.key_stride} * cache.slots + slot) * cache.key_stride +
           i % cache.key_stride;
    } else {
      at = cache.values + std::size_t{i - keys} * cache.slots + slot;
    }
    if constexpr (Out) {
      row[i] = *at;
    } else {
      *at = row[i];
    }
  }
}

}  // namespace

void gather_cache(const CacheLayer* layers, const CopiedLayer* copied, std::uint32_t layer_count,
                  std::uint32_t first, std::uint32_t count, __half* out, cudaStream_t stream) {
  launch(copy_kernel<true>, {dim3(count, layer_count), 256, 0, stream}, layers, copied, first, out);
  check_launch("copying a cache");
}

void scatter_cache(const CacheLayer* layers, const CopiedLayer* copied, std::uint32_t layer_count,
                   std::uint32_t first, std::uint32_t count, const __half* in, cudaStream_t stream) {
  launch(copy_kernel<false>, {dim3(count, layer_count), 256, 0, stream}, layers, copied, first,
         const_cast<__half*>(in));
  check_launch("copying a cache");
}

}  // namespace gem::cuda
