#include "backend/cuda/cache_copy.h"
#include "backend/cuda/launch.cuh"

namespace gem::cuda {
namespace {

template <bool Out, typename Element>
__device__ void copy_row(const CopiedLayer& c, const CacheLayer& cache, std::uint32_t position,
                         std::uint32_t index, std::byte* rows) {
  auto* const cached_keys = reinterpret_cast<Element*>(cache.keys);
  auto* const cached_values = reinterpret_cast<Element*>(cache.values);
  const std::uint32_t stride = cache.key_stride;
  const std::uint32_t slot = position % cache.slots;
  const std::uint32_t keys = c.kv_heads * stride;
  const std::uint32_t values = c.kv_heads * c.head_dim;
  Element* row = reinterpret_cast<Element*>(rows + c.offset) + std::size_t{index} * (keys + values);
  for (std::uint32_t i = threadIdx.x; i < keys + values; i += blockDim.x) {
    Element* at = i < keys
                      ? cached_keys + (std::size_t{i / stride} * cache.slots + slot) * stride + i % stride
                      : cached_values + std::size_t{i - keys} * cache.slots + slot;
    if constexpr (Out) {
      row[i] = *at;
    } else {
      *at = row[i];
    }
  }
}

// One block: one position of one layer.
template <bool Out>
__global__ void copy_kernel(const CacheLayer* layers, const CopiedLayer* copied, std::uint32_t first,
                            std::byte* rows) {
  const CopiedLayer c = copied[blockIdx.y];
  const CacheLayer cache = layers[c.layer];
  if (cache.element == KvElement::kF32) {
    copy_row<Out, std::uint32_t>(c, cache, first + blockIdx.x, blockIdx.x, rows);
  } else {
    copy_row<Out, std::uint16_t>(c, cache, first + blockIdx.x, blockIdx.x, rows);
  }
}

}  // namespace

void gather_cache(const CacheLayer* layers, const CopiedLayer* copied, std::uint32_t layer_count,
                  std::uint32_t first, std::uint32_t count, std::byte* out, cudaStream_t stream) {
  launch(copy_kernel<true>, {dim3(count, layer_count), 256, 0, stream}, layers, copied, first, out);
  check_launch("copying a cache");
}

void scatter_cache(const CacheLayer* layers, const CopiedLayer* copied, std::uint32_t layer_count,
                   std::uint32_t first, std::uint32_t count, const std::byte* in, cudaStream_t stream) {
  launch(copy_kernel<false>, {dim3(count, layer_count), 256, 0, stream}, layers, copied, first,
         const_cast<std::byte*>(in));
  check_launch("copying a cache");
}

}  // namespace gem::cuda
