// A row is cut into up to 1,024 groups of neighbouring tokens. At least kBest tokens are as good as the
// kBest-th best of the groups' maxima, and few more than that: these are gathered and sorted.
#include "backend/cuda/best.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

namespace gem::cuda {
namespace {

constexpr std::uint32_t kBlock = 1024;
constexpr std::uint32_t kLogGroups = 10;   // of kMostGroups
constexpr std::uint32_t kGathered = 2048;  // at most

// An unsigned number that orders as the float does, both zeros alike.
__device__ __forceinline__ std::uint32_t order_of(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(std::uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// One warp a group. NaN where the group has one.
__global__ void maxima_kernel(const float* logits, std::uint32_t vocab, std::uint32_t size,
                              std::uint32_t groups, float* maxima) {
  const std::uint32_t group = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (group >= groups) return;
  const float* row = logits + std::size_t{blockIdx.y} * vocab;
  float most = -INFINITY;
  bool nan = false;
  for (std::uint32_t i = threadIdx.x % 32; i < size; i += 32) {
    const std::uint32_t at = group * size + i;
    if (at >= vocab) break;
    nan |= row[at] != row[at];
    most = fmaxf(most, row[at]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  nan = __any_sync(~0u, nan);
  if (threadIdx.x % 32 == 0) maxima[std::size_t{blockIdx.y} * kMostGroups + group] = nan ? NAN : most;
}

// Sorts 2^log_count numbers, the largest first, by the whole block (Batcher's bitonic sort).
template <typename T>
__device__ void sort_descending(T* keys, std::uint32_t log_count) {
  for (std::uint32_t log_run = 1; log_run <= log_count; ++log_run) {
    for (std::uint32_t log_step = log_run; log_step-- > 0;) {
      __syncthreads();
      for (std::uint32_t i = threadIdx.x; i < 1u << log_count >> 1; i += kBlock) {
        const std::uint32_t a = i >> log_step << (log_step + 1) | (i & ((1u << log_step) - 1));
        const std::uint32_t b = a + (1u << log_step);
        const bool descending = (a >> log_run & 1) == 0;
        if ((keys[a] < keys[b]) == descending) {
          const T other = keys[a];
          keys[a] = keys[b];
          keys[b] = other;
        }
      }
    }
  }
  __syncthreads();
}

struct Gathered {
  std::uint32_t maxima[kMostGroups];
  std::uint32_t active[kMostGroups];
  std::uint64_t keys[kGathered];  // order, then the lower id first
  std::uint32_t active_count, count, nan;
};

// One block a row.
__global__ void __launch_bounds__(kBlock)
    best_kernel(const float* logits, std::uint32_t vocab, std::uint32_t size, std::uint32_t groups,
                const float* maxima, BestRow* out) {
  Gathered& s = block_shared<Gathered>();
  const float* row = logits + std::size_t{blockIdx.x} * vocab;
  const std::uint32_t thread = threadIdx.x;
  BestRow& to = out[blockIdx.x];
  if (thread == 0) s.active_count = s.count = s.nan = 0;
  for (std::uint32_t i = thread; i < kGathered; i += kBlock) s.keys[i] = 0;  // after all others
  __syncthreads();
  const float most = thread < groups ? maxima[std::size_t{blockIdx.x} * kMostGroups + thread] : -INFINITY;
  const std::uint32_t mine = order_of(most);
  s.maxima[thread] = mine;
  if (most != most) s.nan = 1;
  static_assert(kMostGroups == 1u << kLogGroups && kMostGroups == kBlock);
  sort_descending(s.maxima, kLogGroups);
  // Where there are fewer groups than that, every token is a group of its own.
  const std::uint32_t least = s.maxima[min(kBest, groups) - 1];
  if (thread < groups && mine >= least) s.active[atomicAdd(&s.active_count, 1u)] = thread;
  __syncthreads();
  const std::uint32_t count = s.active_count;
  for (std::uint32_t a = thread / 32; a < count; a += kBlock / 32) {
    const std::uint32_t first = s.active[a] * size;
    for (std::uint32_t i = thread % 32; i < size; i += 32) {
      if (first + i >= vocab) break;
      const std::uint32_t order = order_of(row[first + i]);
      if (order < least) continue;
      const std::uint32_t at = atomicAdd(&s.count, 1u);
      if (at < kGathered) s.keys[at] = std::uint64_t{order} << 32 | (~0u - (first + i));
    }
  }
  __syncthreads();
  if (s.nan != 0 || s.count > kGathered) {
    if (thread == 0) to.count = 0;
    return;
  }
  std::uint32_t log_count = 0;  // few more than kBest, mostly
  while (1u << log_count < s.count) ++log_count;
  sort_descending(s.keys, log_count);
  const std::uint32_t kept = min(s.count, kBest);
  if (thread == 0) to.count = kept;
  if (thread < kept) {
    const std::uint64_t key = s.keys[thread];
    to.best[thread] = {value_of(static_cast<std::uint32_t>(key >> 32)),
                       static_cast<std::int32_t>(~0u - static_cast<std::uint32_t>(key))};
  }
}

}  // namespace

void find_best(const float* logits, std::uint32_t rows, std::uint32_t vocab, float* maxima, BestRow* out,
               cudaStream_t stream) {
  std::uint32_t size = 1;
  while (std::uint64_t{size} * kMostGroups < vocab) size *= 2;
  const std::uint32_t groups = (vocab + size - 1) / size;
  launch(maxima_kernel, {dim3((groups + 7) / 8, rows), 256, 0, stream}, logits, vocab, size, groups, maxima);
  check_launch("the best of a row");
  launch(best_kernel, {rows, kBlock, 0, stream}, logits, vocab, size, groups, maxima, out);
  check_launch("the best of a row");
}

}  // namespace gem::cuda
