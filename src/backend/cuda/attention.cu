#include "backend/cuda/attention.h"

#include <algorithm>

#include "backend/cuda/launch.h"

namespace gem::cuda {
namespace {

constexpr int kAttendWarps = 8;
constexpr std::uint32_t kWarpKeys = kKeyChunk / kAttendWarps;  // keys whose scores a warp computes
constexpr int kTilesOfKeys = kWarpKeys / 8;
constexpr std::uint32_t kRowPad =
    32;  // halves after each row of a shared matrix: fragments without conflicts

__device__ inline void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                           unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A group of 32 elements of the summed dimension in two steps. Which element a step calls k does not matter
// as long as both operands agree: lane j of four takes elements 8j .. 8j + 7, so that 16 bytes are read at
// once.
__device__ inline void mma_group(float (&c)[4], const __half* a, std::uint32_t stride, int lane, uint4 b) {
  const uint4 top = *reinterpret_cast<const uint4*>(a + (lane / 4) * stride + (lane % 4) * 8);
  const uint4 low = *reinterpret_cast<const uint4*>(a + (lane / 4 + 8) * stride + (lane % 4) * 8);
  mma(c, top.x, low.x, top.y, low.y, b.x, b.y);
  mma(c, top.z, low.z, top.w, low.w, b.z, b.w);
}

__device__ inline void split(float x, __half* high, __half* low) {
  *high = __float2half_rn(x);
  *low = __float2half_rn(x - __half2float(*high));
}

// One block: one chunk of keys, one KV head, one row. D: head width rounded up to 32.
template <int D>
__global__ void __launch_bounds__(kAttendWarps * 32)
    attend_kernel(const float* query, const RowInfo* rows, std::uint32_t layer, HeadShape s,
                  std::uint32_t window, AttentionScratch scratch) {
  constexpr std::uint32_t kQueryStride = D + kRowPad;
  constexpr std::uint32_t kKeyStride = kKeyChunk + kRowPad;
  extern __shared__ __align__(16) std::uint8_t shared[];
  __half* q_high = reinterpret_cast<__half*>(shared);
  __half* q_low = q_high + 16 * kQueryStride;
  float* scores = reinterpret_cast<float*>(q_low + 16 * kQueryStride);  // [16][kKeyChunk + 4]
  __half* p_high = reinterpret_cast<__half*>(scores + 16 * (kKeyChunk + 4));
  __half* p_low = p_high + 16 * kKeyStride;
  let_next_start();
  wait_for_previous();

  const std::uint32_t row = blockIdx.z;
  const std::uint32_t kv_head = blockIdx.y;
  const RowInfo info = rows[row];
  const std::uint32_t last = info.position;
  const std::uint32_t first = window != 0 && last + 1 > window ? last + 1 - window : 0;
  const std::uint32_t begin = (first / kKeyChunk + blockIdx.x) * kKeyChunk;  // of the chunk
  if (begin > last) return;
  const CacheLayer cache = info.layers[layer];
  const std::uint32_t slot = begin % cache.slots;  // slots are whole chunks
  const std::uint32_t group = s.heads / s.kv_heads;
  const std::uint32_t d = s.head_dim;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;

  // The values are on their way to the second-level cache while the scores are made: a line is 64 keys.
  for (std::uint32_t i = threadIdx.x; i < d * (kKeyChunk / 64); i += kAttendWarps * 32) {
    const __half* line = cache.values + (std::size_t{kv_head} * d + i / (kKeyChunk / 64)) * cache.slots +
                         slot + i % (kKeyChunk / 64) * 64;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
  }
  for (std::uint32_t i = threadIdx.x; i < 16 * D; i += kAttendWarps * 32) {
    const std::uint32_t m = i / D;
    const std::uint32_t k = i % D;
    const float x =
        m < group && k < d ? query[(std::size_t{row} * s.heads + kv_head * group + m) * d + k] : 0.0f;
    split(x, q_high + m * kQueryStride + k, q_low + m * kQueryStride + k);
  }
  __syncthreads();

  // Scores: a warp takes 16 keys, in two tiles of 8.
  const __half* keys = cache.keys + (std::size_t{kv_head} * cache.slots + slot + warp * kWarpKeys) * D;
  if (begin + warp * kWarpKeys <= last) {
    float c[kTilesOfKeys][4] = {};
#pragma unroll 8
    for (int k = 0; k < D; k += 32) {
      uint4 b[kTilesOfKeys];
#pragma unroll
      for (int n = 0; n < kTilesOfKeys; ++n)
        b[n] = *reinterpret_cast<const uint4*>(keys + (n * 8 + lane / 4) * D + k + (lane % 4) * 8);
#pragma unroll
      for (int n = 0; n < kTilesOfKeys; ++n) {
        mma_group(c[n], q_high + k, kQueryStride, lane, b[n]);
        mma_group(c[n], q_low + k, kQueryStride, lane, b[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < kTilesOfKeys; ++n) {
      const std::uint32_t key = warp * kWarpKeys + n * 8 + (lane % 4) * 2;
      float* top = scores + (lane / 4) * (kKeyChunk + 4) + key;
      float* low = top + 8 * (kKeyChunk + 4);
      top[0] = c[n][0];
      top[1] = c[n][1];
      low[0] = c[n][2];
      low[1] = c[n][3];
    }
  }
  __syncthreads();

  // Softmax of the chunk: a warp takes two query heads.
  const std::uint32_t chunks_at =
      (std::size_t{row} * s.heads + kv_head * group) * scratch.chunks + blockIdx.x;
  for (std::uint32_t m = warp * 2; m < static_cast<std::uint32_t>(warp) * 2 + 2; ++m) {
    float x[kKeyChunk / 32];
    float peak = -INFINITY;
#pragma unroll
    for (int i = 0; i < static_cast<int>(kKeyChunk / 32); ++i) {
      const std::uint32_t key = begin + i * 32 + lane;
      const bool visible = m < group && key >= first && key <= last;
      x[i] = visible ? scores[m * (kKeyChunk + 4) + i * 32 + lane] : -INFINITY;
      peak = fmaxf(peak, x[i]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, step));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < static_cast<int>(kKeyChunk / 32); ++i) {
      const float p = x[i] == -INFINITY ? 0.0f : __expf(x[i] - peak);
      sum += p;
      split(p, p_high + m * kKeyStride + i * 32 + lane, p_low + m * kKeyStride + i * 32 + lane);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0 && m < group) scratch.stats[chunks_at + m * scratch.chunks] = make_float2(peak, sum);
  }
  __syncthreads();

  // Values: a warp takes an eighth of the head's width.
  const std::uint32_t used = min(kKeyChunk, (last - begin) / 32 * 32 + 32);  // keys, in groups of 32
  constexpr int kTiles = D >= 64 ? D / 64 : 1;
  const std::uint32_t column = warp * kTiles * 8;
  if (column < d) {
    float c[kTiles][4] = {};
    const __half* values = cache.values + (std::size_t{kv_head} * d + column) * cache.slots + slot;
#pragma unroll 4
    for (std::uint32_t k = 0; k < used; k += 32) {
      uint4 b[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        b[n] = column + n * 8 < d
                   ? *reinterpret_cast<const uint4*>(values + std::size_t{n * 8u + lane / 4} * cache.slots +
                                                     k + (lane % 4) * 8)
                   : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        mma_group(c[n], p_high + k, kKeyStride, lane, b[n]);
        mma_group(c[n], p_low + k, kKeyStride, lane, b[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const std::uint32_t at = column + n * 8 + (lane % 4) * 2;
      if (at >= d) continue;
      const std::uint32_t m = lane / 4;
      if (m < group)
        *reinterpret_cast<float2*>(scratch.sums + std::size_t{chunks_at + m * scratch.chunks} * d + at) =
            make_float2(c[n][0], c[n][1]);
      if (m + 8 < group)
        *reinterpret_cast<float2*>(scratch.sums + std::size_t{chunks_at + (m + 8) * scratch.chunks} * d +
                                   at) = make_float2(c[n][2], c[n][3]);
    }
  }
}

// Four neighbouring columns a thread.
__global__ void merge_kernel(const RowInfo* rows, HeadShape s, std::uint32_t window, AttentionScratch scratch,
                             OperandView out) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t row = blockIdx.y;
  const std::uint32_t width = s.heads * s.head_dim;
  const std::uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (col - (threadIdx.x & 7u) * 4 >= out.cols) return;
  float4 y = make_float4(0, 0, 0, 0);
  if (col < width) {
    const std::uint32_t head = col / s.head_dim;
    const std::uint32_t last = rows[row].position;
    const std::uint32_t first = window != 0 && last + 1 > window ? last + 1 - window : 0;
    const std::uint32_t chunks = last / kKeyChunk - first / kKeyChunk + 1;
    const std::size_t at = (std::size_t{row} * s.heads + head) * scratch.chunks;
    float peak = -INFINITY;
    for (std::uint32_t c = 0; c < chunks; ++c) peak = fmaxf(peak, scratch.stats[at + c].x);
    float sum = 0;
#pragma unroll 4
    for (std::uint32_t c = 0; c < chunks; ++c) {
      const float2 stats = scratch.stats[at + c];
      const float weight = __expf(stats.x - peak);
      const float4 v =
          *reinterpret_cast<const float4*>(scratch.sums + (at + c) * s.head_dim + col % s.head_dim);
      sum = fmaf(weight, stats.y, sum);
      y.x = fmaf(weight, v.x, y.x);
      y.y = fmaf(weight, v.y, y.y);
      y.z = fmaf(weight, v.z, y.z);
      y.w = fmaf(weight, v.w, y.w);
    }
    const float scale = 1.0f / sum;
    y.x *= scale;
    y.y *= scale;
    y.z *= scale;
    y.w *= scale;
  }
  store_operand(out, row, col, y);
}

template <int D>
void run(const float* query, const RowInfo* rows, std::uint32_t count, std::uint32_t layer,
         const HeadShape& shape, std::uint32_t window, const AttentionScratch& scratch, cudaStream_t stream) {
  constexpr std::size_t kShared = 2 * 16 * (D + kRowPad) * sizeof(__half) +
                                  16 * (kKeyChunk + 4) * sizeof(float) +
                                  2 * 16 * (kKeyChunk + kRowPad) * sizeof(__half);
  static const bool ready = [] {
    check(cudaFuncSetAttribute(attend_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kShared)),
          "shared memory of attention");
    return true;
  }();
  (void)ready;
  launch("attention", attend_kernel<D>, dim3(scratch.chunks, shape.kv_heads, count), kAttendWarps * 32,
         kShared, stream, query, rows, layer, shape, window, scratch);
}

}  // namespace

std::uint32_t attention_chunks(std::uint32_t window, std::uint32_t context) {
  const std::uint32_t all = (context + kKeyChunk - 1) / kKeyChunk;
  return window == 0 ? all : std::min(all, (window + kKeyChunk - 2) / kKeyChunk + 1);
}

void attend_rows(const float* query, const RowInfo* rows, std::uint32_t count, std::uint32_t layer,
                 const HeadShape& shape, std::uint32_t window, const AttentionScratch& scratch,
                 const OperandView& out, cudaStream_t stream) {
  switch ((shape.head_dim + 31) / 32) {
    case 1:
      run<32>(query, rows, count, layer, shape, window, scratch, stream);
      break;
    case 2:
      run<64>(query, rows, count, layer, shape, window, scratch, stream);
      break;
    case 4:
      run<128>(query, rows, count, layer, shape, window, scratch, stream);
      break;
    case 8:
      run<256>(query, rows, count, layer, shape, window, scratch, stream);
      break;
    case 16:
      run<512>(query, rows, count, layer, shape, window, scratch, stream);
      break;
    default:
      raise(cudaErrorInvalidValue, "this head width has no attention kernel");
  }
  launch("attention merge", merge_kernel, dim3((out.cols + 511) / 512, count), 128, 0, stream, rows, shape,
         window, scratch, out);
}

}  // namespace gem::cuda
