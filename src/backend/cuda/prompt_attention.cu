#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/kv_element.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/prompt.h"
#include "backend/cuda/ptx.cuh"

namespace gem::cuda {
namespace {

__device__ inline unsigned pack_half(float a, float b) {
  const __half2 h = __floats2half2_rn(a, b);
  return *reinterpret_cast<const unsigned*>(&h);
}

// Shared matrices of f16, rows of W elements in 16-byte pieces; pieces are permuted within groups so that
// eight neighbouring rows at one column lie in different banks.
template <int W>
__device__ inline std::uint32_t piece(std::uint32_t row, std::uint32_t col) {
  constexpr std::uint32_t kPieces = W / 8;
  const std::uint32_t turn = kPieces >= 8 ? row % 8 : kPieces == 4 ? row / 2 % 4 : row / 4 % 2;
  return (row * kPieces + ((col / 8) ^ turn)) * 8;
}

// How a block works. It has Rows rows of a tile and one query head: Rows / 16 warps of 16 rows each, times WN
// warps that share those rows: they split the keys of a block of BK for the scores and the head's width for
// the sums. `Stages`: blocks of keys in shared memory, one of them being read.
template <int Width, int Block, int Rows, int Sharing, int Stages>
struct Shape {
  static constexpr int D = Width, BK = Block, kRows = Rows, WN = Sharing, kStages = Stages;
  static constexpr int kWarps = kRows / 16 * WN;
  static constexpr std::size_t kShared =
      (kRows * D + kStages * 2 * BK * D + (WN > 1 ? kRows * BK : 0)) * sizeof(__half) +
      (WN > 1 ? WN * kRows * sizeof(float) : 0);
};

// Eight elements as f16, on their way or there already.
template <bool Halves>
__device__ inline void copy_eight(__half* to, const std::byte* base, std::size_t index, KvElement element) {
  if constexpr (Halves) {
    copy16(to, reinterpret_cast<const __half*>(base) + index);
  } else {
    KvWords<false> words;
    words.load(base, index, element);
    *reinterpret_cast<uint4*>(to) = words.high;
  }
}

template <typename S, bool Halves>
__global__ void __launch_bounds__(S::kWarps * 32)
    attend_kernel(const float* query, const RowInfo* rows, const PromptTile* tiles, std::uint32_t layer,
                  HeadShape s, std::uint32_t window, std::uint16_t* out) {
  constexpr int D = S::D, BK = S::BK, WN = S::WN, kRows = S::kRows, kWarps = S::kWarps, kStages = S::kStages;
  constexpr int kKeyTiles = BK / 8 / WN;  // column tiles of the scores of a warp
  constexpr int kOutTiles = D / 8 / WN;   // column tiles of the sums of a warp
  std::uint8_t* shared = dynamic_shared();
  __half* q = reinterpret_cast<__half*>(shared);               // [kRows][D]
  __half* keys = q + kRows * D;                                // kStages of [BK][D]
  __half* values = keys + kStages * BK * D;                    // kStages of [D][BK]
  __half* p = values + kStages * BK * D;                       // [kRows][BK], WN > 1
  float* exchange = reinterpret_cast<float*>(p + kRows * BK);  // [WN][kRows], WN > 1
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int wm = warp / WN;
  const int wn = warp % WN;

  PromptTile tile = tiles[gridDim.x - 1 - blockIdx.x];  // the longest rows first
  const std::uint32_t skipped = blockIdx.z * kRows;
  if (skipped >= tile.rows) return;
  tile.first_row += skipped;
  tile.rows = min(tile.rows - skipped, static_cast<std::uint32_t>(kRows));
  const std::uint32_t head = blockIdx.y;
  const std::uint32_t kv_head = head / (s.heads / s.kv_heads);
  const std::uint32_t d = s.head_dim;
  const RowInfo info = rows[tile.first_row];
  const CacheLayer cache = info.layers[layer];
  const std::uint32_t position = info.position;  // of the tile's first row
  const std::uint32_t last = position + tile.rows - 1;
  const std::uint32_t first = window != 0 && position + 1 > window ? position + 1 - window : 0;

  for (std::uint32_t i = threadIdx.x; i < kRows * D / 4; i += kWarps * 32) {
    const std::uint32_t r = i / (D / 4);
    const std::uint32_t c = i % (D / 4) * 4;
    float4 x = make_float4(0, 0, 0, 0);
    if (r < tile.rows && c < d)
      x = *reinterpret_cast<const float4*>(query + (std::size_t{tile.first_row + r} * s.heads + head) * d +
                                           c);
    *reinterpret_cast<uint2*>(q + piece<D>(r, c) + c % 8) =
        make_uint2(pack_half(x.x, x.y), pack_half(x.z, x.w));
  }
  const auto request = [&](std::uint32_t begin, int slot) {
    const std::uint32_t at = begin % cache.slots;
    const std::size_t k = (std::size_t{kv_head} * cache.slots + at) * D;
    for (std::uint32_t i = threadIdx.x; i < BK * D / 8; i += kWarps * 32) {
      const std::uint32_t r = i / (D / 8);
      const std::uint32_t c = i % (D / 8) * 8;
      copy_eight<Halves>(keys + slot * BK * D + piece<D>(r, c), cache.keys, k + std::size_t{r} * D + c,
                         cache.element);
    }
    const std::size_t v = std::size_t{kv_head} * d * cache.slots + at;
    for (std::uint32_t i = threadIdx.x; i < D * BK / 8; i += kWarps * 32) {
      const std::uint32_t r = i / (BK / 8);
      const std::uint32_t c = i % (BK / 8) * 8;
      __half* to = values + slot * BK * D + piece<BK>(r, c);
      if (r < d) {
        copy_eight<Halves>(to, cache.values, v + std::size_t{r} * cache.slots + c, cache.element);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    }
    copies_commit();
  };

  float sum[kOutTiles][4] = {};
  float peak[2] = {-INFINITY, -INFINITY};  // of rows lane / 4 and lane / 4 + 8
  float total[2] = {};
  const std::uint32_t row = wm * 16 + lane / 4;
  const std::uint32_t from = first / BK * BK;
  request(from, 0);
  int slot = 0;
  for (std::uint32_t begin = from; begin <= last; begin += BK) {
    const bool more = begin + BK <= last;
    if (more && kStages > 1) {
      request(begin + BK, slot ^ 1);
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    __syncthreads();
    const __half* k = keys + slot * BK * D;
    const __half* v = values + slot * BK * D;

    float score[kKeyTiles][4] = {};
#pragma unroll 4
    for (int c = 0; c < D; c += 16) {
      unsigned a[4];
      load_matrices(a, q + piece<D>(wm * 16 + lane % 16, c + lane / 16 * 8));
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        // Two tiles of eight keys: matrices (keys 0-7, c), (keys 0-7, c + 8), (keys 8-15, c), (keys 8-15, c +
        // 8).
        unsigned b[4];
        const std::uint32_t key = (wn * kKeyTiles + n + lane / 16) * 8 + lane % 8;
        load_matrices(b, k + piece<D>(key, c + lane / 8 % 2 * 8));
        mma(score[n], a, b[0], b[1]);
        mma(score[n + 1], a, b[2], b[3]);
      }
    }
    // A key is seen by rows at or after it, within the window.
    float high[2] = {-INFINITY, -INFINITY};
    const bool inside = begin + BK - 1 <= position && (window == 0 || begin + window > last);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!inside) {
          const std::uint32_t key = begin + (wn * kKeyTiles + n) * 8 + lane % 4 * 2 + i % 2;
          const std::uint32_t at = position + row + i / 2 * 8;
          if (key > at || (window != 0 && key + window <= at)) score[n][i] = -INFINITY;
        }
        high[i / 2] = fmaxf(high[i / 2], score[n][i]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 1));
      high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 2));
    }
    if constexpr (WN > 1) {
      if (lane % 4 == 0) {
        exchange[wn * kRows + row] = high[0];
        exchange[wn * kRows + row + 8] = high[1];
      }
      __syncthreads();
#pragma unroll
      for (int w = 0; w < WN; ++w) {
        high[0] = fmaxf(high[0], exchange[w * kRows + row]);
        high[1] = fmaxf(high[1], exchange[w * kRows + row + 8]);
      }
    }
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(peak[h], high[h]);
      // Nothing seen so far: nothing to keep, and no weight below may become NaN.
      keep[h] = next == -INFINITY ? 1.0f : __expf(peak[h] - next);
      peak[h] = next;
      total[h] *= keep[h];
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = score[n][i] == -INFINITY ? 0.0f : __expf(score[n][i] - peak[i / 2]);
        score[n][i] = x;
        total[i / 2] += x;
      }
    }
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) {
      sum[n][0] *= keep[0];
      sum[n][1] *= keep[0];
      sum[n][2] *= keep[1];
      sum[n][3] *= keep[1];
    }
    if constexpr (WN > 1) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const std::uint32_t col = (wn * kKeyTiles + n) * 8 + lane % 4 * 2;
        *reinterpret_cast<unsigned*>(p + piece<BK>(row, col) + col % 8) = pack_half(score[n][0], score[n][1]);
        *reinterpret_cast<unsigned*>(p + piece<BK>(row + 8, col) + col % 8) =
            pack_half(score[n][2], score[n][3]);
      }
      __syncthreads();
    }
#pragma unroll
    for (int c = 0; c < BK; c += 16) {
      unsigned a[4];
      if constexpr (WN > 1) {
        load_matrices(a, p + piece<BK>(wm * 16 + lane % 16, c + lane / 16 * 8));
      } else {
        a[0] = pack_half(score[c / 8][0], score[c / 8][1]);
        a[1] = pack_half(score[c / 8][2], score[c / 8][3]);
        a[2] = pack_half(score[c / 8 + 1][0], score[c / 8 + 1][1]);
        a[3] = pack_half(score[c / 8 + 1][2], score[c / 8 + 1][3]);
      }
#pragma unroll
      for (int n = 0; n < kOutTiles; n += 2) {
        unsigned b[4];
        const std::uint32_t at = (wn * kOutTiles + n + lane / 16) * 8 + lane % 8;
        load_matrices(b, v + piece<BK>(at, c + lane / 8 % 2 * 8));
        mma(sum[n], a, b[0], b[1]);
        mma(sum[n + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();
    if constexpr (kStages > 1) {
      slot ^= 1;
    } else if (more) {
      request(begin + BK, 0);
    }
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] += __shfl_xor_sync(~0u, total[h], 1);
    total[h] += __shfl_xor_sync(~0u, total[h], 2);
  }
  if constexpr (WN > 1) {
    if (lane % 4 == 0) {
      exchange[wn * kRows + row] = total[0];
      exchange[wn * kRows + row + 8] = total[1];
    }
    __syncthreads();
    total[0] = total[1] = 0;
#pragma unroll
    for (int w = 0; w < WN; ++w) {
      total[0] += exchange[w * kRows + row];
      total[1] += exchange[w * kRows + row + 8];
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row + h * 8 >= tile.rows) continue;
    const float scale = 1.0f / total[h];
    std::uint16_t* to = out + (std::size_t{tile.first_row + row + h * 8} * s.heads + head) * d;
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) {
      const std::uint32_t c = (wn * kOutTiles + n) * 8 + lane % 4 * 2;
      if (c >= d) continue;
      const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[n][2 * h] * scale, sum[n][2 * h + 1] * scale);
      *reinterpret_cast<__nv_bfloat162*>(to + c) = pair;
    }
  }
}

template <typename S, bool Halves>
void run(const AttendPrompt& a) {
  static const bool ready = [] {
    check(cudaFuncSetAttribute(attend_kernel<S, Halves>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(S::kShared)),
          "shared memory of a prompt's attention");
    return true;
  }();
  (void)ready;
  const dim3 grid(a.tile_count, a.shape.heads, kPromptTile / S::kRows);
  launch(attend_kernel<S, Halves>, {grid, S::kWarps * 32, S::kShared, a.stream}, a.query, a.rows, a.tiles,
         a.layer, a.shape, a.window, a.out);
  check_launch("prompt attention");
}

// The first shape that the device has the memory for.
template <typename First, typename... Others>
void run_first(const AttendPrompt& a, std::uint32_t block_bytes) {
  if (First::kShared <= block_bytes) return a.halves ? run<First, true>(a) : run<First, false>(a);
  if constexpr (sizeof...(Others) > 0) {
    run_first<Others...>(a, block_bytes);
  } else {
    raise(cudaErrorInvalidValue, "the device has too little shared memory for the attention of prompts");
  }
}

}  // namespace

void attend_prompt(const AttendPrompt& a, std::uint32_t block_bytes) {
  switch ((a.shape.head_dim + 31) / 32) {
    case 1:
      return run_first<Shape<32, 64, 64, 1, 2>>(a, block_bytes);
    case 2:
      return run_first<Shape<64, 64, 64, 1, 2>>(a, block_bytes);
    case 4:
      return run_first<Shape<128, 64, 64, 1, 2>, Shape<128, 32, 32, 1, 2>>(a, block_bytes);
    case 8:
      return run_first<Shape<256, 64, 64, 2, 2>, Shape<256, 32, 32, 2, 2>>(a, block_bytes);
    case 16:
      return run_first<Shape<512, 32, 64, 2, 2>, Shape<512, 32, 32, 2, 1>>(a, block_bytes);
    default:
      raise(cudaErrorInvalidValue, "this head width has no attention kernel");
  }
}

}  // namespace gem::cuda
