// Attention of the decode kernel: head norms, RoPE and the cache's new rows, then a row's keys in chunks, each a
// maximum, a sum and a weighted sum of values, which are merged in order of the chunks.
//
// A unit of work is one chunk of one row for one KV head, whose query heads share every key and value that is read.
// It prepares what it needs of this round's keys itself (the rows of one span may see each other): several units
// write the same bits to the same place.
#pragma once

#include "backend/cuda/decode_operand.cuh"

namespace gem::cuda {

// Halves after each row of a shared matrix: fragments without conflicts.
constexpr std::uint32_t kRowPad = 32;

// Geometry of a unit for head widths up to D (a power of two from 32 to 512).
template <int D>
struct Unit {
  static constexpr int kUnitWarps = D / 32;                 // that work on a unit
  static constexpr int kKeys = D / 4 < 32 ? 32 : D / 4;     // at a time
  static constexpr int kKeyTiles = kKeys / kUnitWarps / 8;  // tiles of 8 keys of a warp
  static constexpr int kThreadsOf = kUnitWarps * 32;
  static constexpr int kAtOnce = kWarps / kUnitWarps;  // units in a block
  static constexpr std::uint32_t kQueryStride = D + kRowPad;
  static constexpr std::uint32_t kScoreStride = kKeys + 4;
  static constexpr std::uint32_t kProbStride = kKeys + kRowPad;
  // Of one unit with `group` query heads: queries and probabilities in two halves, scores, three floats a head.
  static constexpr std::uint32_t bytes(std::uint32_t group) {
    return (group * (kQueryStride * 4 + kScoreStride * 4 + kProbStride * 4 + 12) + 127) / 128 * 128;
  }
};

__device__ inline void split(float x, __half* high, __half* low) {
  *high = __float2half_rn(x);
  *low = __float2half_rn(x - __half2float(*high));
}

enum class HeadKind { kQuery, kKey, kValue };

// A head of one row after its norm (and RoPE): lane l has u[i], v[i] at l + 32 i and half of the width later.
template <int D, int Pieces>
struct HeadVector {
  static constexpr int kPairs = D / 64 == 0 ? 1 : D / 64;
  float u[kPairs], v[kPairs];

  __device__ void load(const Parts& qkv, std::uint32_t row, std::uint32_t column, HeadKind kind,
                       const DecodeLayer& layer, std::uint32_t position, float epsilon) {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t half = layer.shape.head_dim / 2;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::uint32_t p = lane + 32 * i;
      u[i] = v[i] = 0;
      if (p >= half) continue;
      u[i] = load_sum<Pieces>(qkv, row, column + p);
      v[i] = load_sum<Pieces>(qkv, row, column + half + p);
      squares += u[i] * u[i] + v[i] * v[i];
    }
    const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(2 * half) + epsilon);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::uint32_t p = lane + 32 * i;
      u[i] *= scale;
      v[i] *= scale;
      if (kind == HeadKind::kValue || p >= half) continue;
      const float* weight = kind == HeadKind::kQuery ? layer.q_norm : layer.k_norm;
      u[i] *= __ldg(weight + p);
      v[i] *= __ldg(weight + half + p);
      // The angle is formed and reduced in float64, so that it stays exact at long positions.
      const double angle = static_cast<double>(position) * __ldg(layer.frequencies + p);
      constexpr double kTurn = 6.283185307179586476925286766559;
      const float a = static_cast<float>(angle - kTurn * rint(angle / kTurn));
      float sine;
      float cosine;
      sincosf(a, &sine, &cosine);
      const float x = u[i] * cosine - v[i] * sine;
      v[i] = v[i] * cosine + u[i] * sine;
      u[i] = x;
    }
  }
  // `store(element, value)` for all elements of the lane.
  template <typename Store>
  __device__ void each(std::uint32_t head_dim, Store&& store) const {
    const std::uint32_t half = head_dim / 2;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::uint32_t p = threadIdx.x % 32 + 32 * i;
      if (p >= half) continue;
      store(p, u[i]);
      store(half + p, v[i]);
    }
  }
};

// Key and value of one row and KV head into the cache. By a warp; `which`: 0 the key, 1 the value.
template <int D, int Pieces>
__device__ inline void prepare_cache(const DecodeJob& job, const DecodeLayer& layer, const CacheLayer& cache,
                                     const Parts& qkv, std::uint32_t row, std::uint32_t position, std::uint32_t kv_head,
                                     int which) {
  const HeadShape& s = layer.shape;
  const std::uint32_t d = s.head_dim;
  const std::uint32_t slot = position % cache.slots;
  HeadVector<D, Pieces> x;
  // Where a layer takes V from K both start from the same columns.
  const std::uint32_t column =
      (s.heads + kv_head + (which == 0 || s.value_from_key ? 0 : s.kv_heads)) * d;
  x.load(qkv, row, column, which == 0 ? HeadKind::kKey : HeadKind::kValue, layer, position, job.epsilon);
  if (which == 0) {
    __half* out = cache.keys + (std::size_t{kv_head} * cache.slots + slot) * cache.key_stride;
    x.each(d, [&](std::uint32_t i, float v) { out[i] = __float2half_rn(v); });
  } else {
    __half* out = cache.values + std::size_t{kv_head} * d * cache.slots + slot;
    x.each(d, [&](std::uint32_t i, float v) { out[std::size_t{i} * cache.slots] = __float2half_rn(v); });
  }
}

// kPhasePrepare: every head of every row by a warp.
template <int D, int Pieces>
__device__ __noinline__ void prepare_all(const DecodeJob& job, const DecodeLayer& layer, std::uint32_t index,
                                         const Parts& qkv) {
  const HeadShape& s = layer.shape;
  const std::uint32_t heads = s.heads + 2 * s.kv_heads;
  for (std::uint32_t i = blockIdx.x * kWarps + threadIdx.x / 32; i < job.row_count * heads; i += gridDim.x * kWarps) {
    const std::uint32_t row = i / heads;
    const std::uint32_t head = i % heads;
    const RowInfo& info = job.rows[row];
    if (head < s.heads) {
      HeadVector<D, Pieces> x;
      x.load(qkv, row, head * s.head_dim, HeadKind::kQuery, layer, info.position, job.epsilon);
      float* out = job.query + (std::size_t{row} * s.heads + head) * s.head_dim;
      x.each(s.head_dim, [&](std::uint32_t e, float v) { out[e] = v; });
    } else {
      const std::uint32_t kv = head - s.heads;
      prepare_cache<D, Pieces>(job, layer, info.layers[index], qkv, row, info.position, kv % s.kv_heads,
                               static_cast<int>(kv / s.kv_heads));
    }
  }
}

// A group of 32 elements of the summed dimension in two steps. Which element a step calls k does not matter
// as long as both operands agree: lane j of four takes elements 8j .. 8j + 7, so that 16 bytes are read at once.
// Rows of A from `group` on are zero.
__device__ inline void mma_group(float (&c)[4], const __half* a, std::uint32_t stride, std::uint32_t group, int lane,
                                 uint4 b) {
  const std::uint32_t r = lane / 4;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const uint4 top = r < group ? *reinterpret_cast<const uint4*>(a + r * stride + (lane % 4) * 8) : zero;
  const uint4 low = r + 8 < group ? *reinterpret_cast<const uint4*>(a + (r + 8) * stride + (lane % 4) * 8) : zero;
  const unsigned a0[4] = {top.x, low.x, top.y, low.y};
  const unsigned a1[4] = {top.z, low.z, top.w, low.w};
  mma(c, a0, b.x, b.y);
  mma(c, a1, b.z, b.w);
}

template <int D>
__device__ inline void unit_sync(int unit) {
  if constexpr (Unit<D>::kUnitWarps == 1) {
    __syncwarp();
  } else {
    group_sync(1 + unit, Unit<D>::kThreadsOf);
  }
}

template <int D, int Pieces>
__device__ __noinline__ void attend_all(const DecodeJob& job, const DecodeLayer& layer, std::uint32_t index,
                                        const Parts& qkv, std::uint8_t* region) {
  using U = Unit<D>;
  const HeadShape& s = layer.shape;
  const std::uint32_t d = s.head_dim;
  const std::uint32_t group = s.heads / s.kv_heads;
  const int lane = threadIdx.x % 32;
  const int unit = static_cast<int>(threadIdx.x) / U::kThreadsOf;  // of the block's
  const std::uint32_t thread = threadIdx.x % U::kThreadsOf;
  const std::uint32_t warp = thread / 32;
  std::uint8_t* memory = region + unit * U::bytes(group);
  __half* q_high = reinterpret_cast<__half*>(memory);
  __half* q_low = q_high + group * U::kQueryStride;
  __half* p_high = q_low + group * U::kQueryStride;
  __half* p_low = p_high + group * U::kProbStride;
  float* scores = reinterpret_cast<float*>(p_low + group * U::kProbStride);
  float* peaks = scores + group * U::kScoreStride;  // so far
  float* totals = peaks + group;
  float* keep = totals + group;  // what the sums so far are multiplied by
  const std::uint32_t items = job.units[layer.kind] * s.kv_heads;

  for (std::uint32_t item = blockIdx.x * U::kAtOnce + unit; item < items; item += gridDim.x * U::kAtOnce) {
    const std::uint32_t at = item / s.kv_heads;
    const std::uint32_t kv_head = item % s.kv_heads;
    // The row whose chunk this is.
    std::uint32_t low = 0;
    std::uint32_t high = job.row_count;
    while (high - low > 1) {
      const std::uint32_t middle = (low + high) / 2;
      (job.rows[middle].first_unit[layer.kind] <= at ? low : high) = middle;
    }
    const std::uint32_t row = low;
    const RowInfo info = job.rows[row];
    const std::uint32_t last = info.position;
    const std::uint32_t first = layer.window != 0 && last + 1 > layer.window ? last + 1 - layer.window : 0;
    const KeyChunks chunks = key_chunks(last, layer.window, U::kKeys);
    const std::uint32_t begin = (chunks.first + at - info.first_unit[layer.kind]) * chunks.length;
    const std::uint32_t end = min(begin + chunks.length, last + 1);
    const CacheLayer cache = info.layers[index];

    // The queries, and this round's keys and values of this row's span that lie in the chunk.
    const std::uint32_t span_position = last - (row - info.span_first);
    const std::uint32_t new_begin = max(begin, span_position);
    const std::uint32_t fresh = job.whole && end > new_begin ? end - new_begin : 0;
    for (std::uint32_t task = warp; task < group + 2 * fresh; task += U::kUnitWarps) {
      if (task >= group) {
        const std::uint32_t position = new_begin + (task - group) / 2;
        prepare_cache<D, Pieces>(job, layer, cache, qkv, row - (last - position), position, kv_head,
                                 static_cast<int>((task - group) % 2));
        continue;
      }
      const std::uint32_t head = kv_head * group + task;
      const auto keep_query = [&](std::uint32_t e, float v) {
        split(v, q_high + task * U::kQueryStride + e, q_low + task * U::kQueryStride + e);
      };
      for (std::uint32_t e = d + lane; e < D; e += 32) keep_query(e, 0.0f);
      if (job.whole) {
        HeadVector<D, Pieces> x;
        x.load(qkv, row, head * d, HeadKind::kQuery, layer, last, job.epsilon);
        x.each(d, keep_query);
      } else {
        const float* q = job.query + (std::size_t{row} * s.heads + head) * d;
        for (std::uint32_t e = lane; e < d; e += 32) keep_query(e, __ldcg(q + e));
      }
      if (lane == 0) {
        peaks[task] = -INFINITY;
        totals[task] = 0;
      }
    }
    unit_sync<D>(unit);

    float sum[4][4] = {};  // 32 columns of the head's width, in tiles of 8
    const std::uint32_t column = warp * 32;
    for (std::uint32_t block = begin; block < end; block += U::kKeys) {
      const std::uint32_t slot = block % cache.slots;  // slots are whole blocks
      // Scores.
      const std::uint32_t my_key = warp * U::kKeyTiles * 8;
      if (block + my_key < end) {
        float c[U::kKeyTiles][4] = {};
        const __half* keys = cache.keys + (std::size_t{kv_head} * cache.slots + slot + my_key + lane / 4) * D + (lane % 4) * 8;
#pragma unroll 8
        for (int k = 0; k < D; k += 32) {
          uint4 b[U::kKeyTiles];
#pragma unroll
          for (int n = 0; n < U::kKeyTiles; ++n) b[n] = __ldcg(reinterpret_cast<const uint4*>(keys + n * 8 * D + k));
#pragma unroll
          for (int n = 0; n < U::kKeyTiles; ++n) {
            mma_group(c[n], q_high + k, U::kQueryStride, group, lane, b[n]);
            mma_group(c[n], q_low + k, U::kQueryStride, group, lane, b[n]);
          }
        }
#pragma unroll
        for (int n = 0; n < U::kKeyTiles; ++n) {
          float* to = scores + my_key + n * 8 + (lane % 4) * 2;
          const std::uint32_t m = lane / 4;
          if (m < group) *reinterpret_cast<float2*>(to + m * U::kScoreStride) = make_float2(c[n][0], c[n][1]);
          if (m + 8 < group)
            *reinterpret_cast<float2*>(to + (m + 8) * U::kScoreStride) = make_float2(c[n][2], c[n][3]);
        }
      }
      // The first values are on their way while the probabilities are made.
      const __half* values = cache.values + (std::size_t{kv_head} * d + column + lane / 4) * cache.slots + slot + (lane % 4) * 8;
      const auto value = [&](int n, int k) {
        return column + n * 8 < d ? __ldcg(reinterpret_cast<const uint4*>(values + std::size_t{n * 8u} * cache.slots + k))
                                  : make_uint4(0, 0, 0, 0);
      };
      uint4 b[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) b[n] = value(n, 0);
      unit_sync<D>(unit);
      // Probabilities, head after head.
      for (std::uint32_t m = warp; m < group; m += U::kUnitWarps) {
        constexpr int kOfLane = U::kKeys / 32;
        float x[kOfLane];
        float peak = -INFINITY;
#pragma unroll
        for (int i = 0; i < kOfLane; ++i) {
          const std::uint32_t key = block + i * 32 + lane;
          x[i] = key >= first && key < end ? scores[m * U::kScoreStride + i * 32 + lane] : -INFINITY;
          peak = fmaxf(peak, x[i]);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, step));
        const float before = peaks[m];
        peak = fmaxf(peak, before);
        float total = 0;
#pragma unroll
        for (int i = 0; i < kOfLane; ++i) {
          const float p = x[i] == -INFINITY ? 0.0f : __expf(x[i] - peak);
          total += p;
          split(p, p_high + m * U::kProbStride + i * 32 + lane, p_low + m * U::kProbStride + i * 32 + lane);
        }
        total = warp_sum(total);
        __syncwarp();  // all lanes have read peaks[m]
        if (lane == 0) {
          const float factor = before == -INFINITY ? 0.0f : __expf(before - peak);
          keep[m] = factor;
          totals[m] = fmaf(totals[m], factor, total);
          peaks[m] = peak;
        }
      }
      unit_sync<D>(unit);
      // Values.
      if (column < d) {
        const std::uint32_t m = lane / 4;
        const float keep0 = m < group ? keep[m] : 0.0f;
        const float keep1 = m + 8 < group ? keep[m + 8] : 0.0f;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          sum[n][0] *= keep0;
          sum[n][1] *= keep0;
          sum[n][2] *= keep1;
          sum[n][3] *= keep1;
        }
#pragma unroll
        for (int k = 0; k < U::kKeys; k += 32) {
          uint4 next[4];
          if (k + 32 < U::kKeys) {
#pragma unroll
            for (int n = 0; n < 4; ++n) next[n] = value(n, k + 32);
          }
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            mma_group(sum[n], p_high + k, U::kProbStride, group, lane, b[n]);
            mma_group(sum[n], p_low + k, U::kProbStride, group, lane, b[n]);
          }
#pragma unroll
          for (int n = 0; n < 4; ++n) b[n] = next[n];
        }
      }
    }
    const std::size_t to = std::size_t{at} * s.heads + kv_head * group;
    if (column < d) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const std::uint32_t c = column + n * 8 + (lane % 4) * 2;
        if (c >= d) continue;
        const std::uint32_t m = lane / 4;
        if (m < group) *reinterpret_cast<float2*>(job.sums + (to + m) * d + c) = make_float2(sum[n][0], sum[n][1]);
        if (m + 8 < group)
          *reinterpret_cast<float2*>(job.sums + (to + m + 8) * d + c) = make_float2(sum[n][2], sum[n][3]);
      }
    }
    if (thread < group) job.stats[to + thread] = make_float2(peaks[thread], totals[thread]);
    unit_sync<D>(unit);  // before the next unit's queries
  }
}

// Four neighbouring columns of a row's attention: its chunks merged in order. All eight lanes of a 32-block call it.
__device__ inline float4 merged(const DecodeJob& job, const DecodeLayer& layer, std::uint32_t row, std::uint32_t col) {
  const HeadShape& s = layer.shape;
  float4 y = make_float4(0, 0, 0, 0);
  if (col >= s.heads * s.head_dim) return y;
  const std::uint32_t head = col / s.head_dim;
  const RowInfo& info = job.rows[row];
  const std::uint32_t count = key_chunks(info.position, layer.window, key_block(s.head_dim)).count;
  const float2* stats = job.stats + std::size_t{info.first_unit[layer.kind]} * s.heads + head;
  const float* sums = job.sums + (std::size_t{info.first_unit[layer.kind]} * s.heads + head) * s.head_dim + col % s.head_dim;
  float peak = -INFINITY;
  for (std::uint32_t c = 0; c < count; ++c) peak = fmaxf(peak, __ldcg(&stats[std::size_t{c} * s.heads].x));
  float total = 0;
#pragma unroll 4
  for (std::uint32_t c = 0; c < count; ++c) {
    const float2 chunk = __ldcg(stats + std::size_t{c} * s.heads);
    const float weight = __expf(chunk.x - peak);
    const float4 v = load4(sums + std::size_t{c} * s.heads * s.head_dim);
    total = fmaf(weight, chunk.y, total);
    y.x = fmaf(weight, v.x, y.x);
    y.y = fmaf(weight, v.y, y.y);
    y.z = fmaf(weight, v.z, y.z);
    y.w = fmaf(weight, v.w, y.w);
  }
  const float scale = 1.0f / total;
  return make_float4(y.x * scale, y.y * scale, y.z * scale, y.w * scale);
}

// A value is at most the square root of the head's width: it comes out of a norm without weights.
constexpr float kAttendedUp = 1024.0f;

}  // namespace gem::cuda
