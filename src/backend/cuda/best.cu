// A row is cut into up to 1,024 groups of neighbouring tokens. At least kBest tokens are as good as the
// kBest-th best of the groups' maxima, and few more than that: these are gathered and ranked. Both ranks are
// found by counting what is better, which needs no barrier: all threads read the same number at a time.
#include "backend/cuda/best.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

namespace gem::cuda {
namespace {

constexpr std::uint32_t kBlock = 1024;
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

struct Gathered {
  uint4 maxima[kMostGroups / 4];
  std::uint32_t active[kMostGroups];
  std::uint64_t keys[kGathered];  // order, then the lower id first: no two are the same
  std::uint32_t least, active_count, count, nan;
};

// One block a row.
__global__ void __launch_bounds__(kBlock)
    best_kernel(const float* logits, std::uint32_t vocab, std::uint32_t size, std::uint32_t groups,
                const float* maxima, BestRow* out) {
  Gathered& s = block_shared<Gathered>();
  const float* row = logits + std::size_t{blockIdx.x} * vocab;
  const std::uint32_t thread = threadIdx.x;
  BestRow& to = out[blockIdx.x];
  if (thread == 0) s.least = s.active_count = s.count = s.nan = 0;
  __syncthreads();
  const float most = thread < groups ? maxima[std::size_t{blockIdx.x} * kMostGroups + thread] : -INFINITY;
  const std::uint32_t mine = order_of(most);
  static_assert(kMostGroups == kBlock);
  reinterpret_cast<std::uint32_t*>(s.maxima)[thread] = mine;
  if (most != most) atomicMax(&s.nan, 1u);
  __syncthreads();
  std::uint32_t better = 0;
  std::uint32_t as_good = 0;
  for (std::uint32_t i = 0; i < kMostGroups / 4; ++i) {
    const uint4 others = s.maxima[i];
    better += (others.x > mine) + (others.y > mine) + (others.z > mine) + (others.w > mine);
    as_good += (others.x == mine) + (others.y == mine) + (others.z == mine) + (others.w == mine);
  }
  // Where there are fewer groups than that, every token is a group of its own.
  const std::uint32_t wanted = min(kBest, groups);
  if (better < wanted && better + as_good >= wanted)
    atomicMax(&s.least, mine);  // of one or more that are equal
  __syncthreads();
  const std::uint32_t least = s.least;
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
  const std::uint32_t found = s.count;
  if (thread == 0) to.count = min(found, kBest);
  for (std::uint32_t i = thread; i < found; i += kBlock) {
    const std::uint64_t key = s.keys[i];
    std::uint32_t rank = 0;
    for (std::uint32_t k = 0; k < found; ++k) rank += s.keys[k] > key;
    if (rank < kBest)
      to.best[rank] = {value_of(static_cast<std::uint32_t>(key >> 32)),
                       static_cast<std::int32_t>(~0u - static_cast<std::uint32_t>(key))};
  }
}

struct Drawn {
  double weights[kBest];
  double scores[kBest];
};

// One block a row, one thread a token; the sums in order, as the sampler has them (engine/sampler.cpp).
__global__ void __launch_bounds__(kBest)
    draw_kernel(const BestRow* best, const KeyedDraw* draws, std::uint32_t step, RowInfo* infos,
                std::int32_t* tokens) {
  Drawn& s = block_shared<Drawn>();
  const BestRow& row = best[blockIdx.x];
  const KeyedDraw& draw = draws[blockIdx.x];
  const std::uint32_t thread = threadIdx.x;
  const bool greedy = draw.temperature == 0;
  const std::uint32_t count = min(row.count, greedy ? 1u : draw.top_k);
  const auto give = [&](std::int32_t token) {
    infos[blockIdx.x].token = token;
    tokens[blockIdx.x] = token;
  };
  if (thread == 0 && count == 0) give(-1);
  const ScoredToken mine = row.best[thread];
  const double peak = static_cast<double>(row.best[0].logit);
  const double t = greedy ? 1.0 : draw.temperature;
  const double weight = thread < count ? exp((static_cast<double>(mine.logit) - peak) / t) : 0.0;
  s.weights[thread] = weight;
  __syncthreads();
  double before = 0;
  double total = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (i == thread) before = total;
    total += s.weights[i];
  }
  const bool all = draw.top_p >= 1 && draw.min_p <= 0;
  const bool kept =
      thread < count && (thread == 0 || all || (before < draw.top_p * total && weight >= draw.min_p));
  double score = -INFINITY;
  if (kept) {
    const double u = keyed_uniform(draw.seed, draw.position + step, static_cast<std::uint32_t>(mine.token));
    score = greedy ? 0.0 : static_cast<double>(mine.logit) / t - log(-log(u));
  }
  s.scores[thread] = score;
  __syncthreads();
  bool first = kept;
  for (std::uint32_t i = 0; i < count; ++i)
    first &= i == thread || s.scores[i] < score || (i > thread && s.scores[i] == score);
  if (first) give(mine.token);
}

}  // namespace

void draw_best(const BestRow* best, const KeyedDraw* draws, std::uint32_t rows, std::uint32_t step,
               RowInfo* infos, std::int32_t* tokens, cudaStream_t stream) {
  launch(draw_kernel, {rows, kBest, 0, stream}, best, draws, step, infos, tokens);
  check_launch("the next tokens of chains");
}

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
