// What the parts of the decode kernel share: its shared memory, barriers, sums over a block.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/decode.h"
#include "backend/cuda/ptx.cuh"

namespace gem::cuda {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr std::uint32_t kMostSlots = 8;
constexpr int kRowVectors = kWidestRow / (4 * kThreads);  // float4 a thread

constexpr std::uint32_t kCachedRows = 32;  // whose infos are kept in shared memory

// A piece of weights that a warp will ask for: chunks of one tile, or the same chunks of two tiles that are
// multiplied together. The next 32 are known.
struct Piece {
  std::uint64_t word = 0;  // address and length, both whole times 16 bytes; 0: there are no more

  static __device__ __forceinline__ Piece of(const std::uint8_t* from, std::uint32_t bytes) {
    return {reinterpret_cast<std::uint64_t>(from) << 8 | bytes / 16};
  }
  __device__ __forceinline__ const std::uint8_t* from() const {
    return reinterpret_cast<const std::uint8_t*>(word >> 12 << 4);
  }
  __device__ __forceinline__ std::uint32_t bytes() const {
    return static_cast<std::uint32_t>(word & 0xfff) * 16;
  }
};
// The first piece that is not known: of a run of tiles of one format, in a pass of a product.
struct CursorState {
  std::uint32_t op, pass, run, piece;
};
// Where a warp is between products: the slot that it reads next, and of its lanes' pieces the next to ask
// for.
struct ReaderState {
  std::uint32_t slot, parity;
  std::uint32_t next;
};

// What a block multiplies of a matrix that is cut so.
struct CutHere {
  std::uint16_t index;               // of the partial result
  std::uint16_t slice0;              // first slice
  std::uint16_t begin[kSlices + 1];  // the slices' first chunks
  std::uint16_t worker0, workers;    // of the block's first group of warps, and of all blocks
  float per_worker;                  // 1 / workers
};

// A unit of attention's work: a chunk of one row's keys for query heads of one KV head.
struct UnitPlan {
  std::uint32_t item, kv_heads;        // what it is the plan of, in all layers that divide their heads so
  std::uint32_t row, chunk;            // chunk: among those of all rows
  std::uint32_t kv_head, head, heads;  // the first query head and how many
  std::uint32_t begin, end;            // the chunk's keys
  std::uint32_t first, last;           // the keys that the row sees
  std::uint32_t fresh_begin, fresh;    // of the chunk, those that this round brings
  CacheLayer cache;
};

constexpr std::uint32_t kSumPlaces = 4;

struct DecodeShared {
  Piece pieces[kWarps][32];
  std::int32_t seconds[kWarps]
                      [32];  // of pieces of two tiles: from the first to the second, in 16 bytes; else 0
  CursorState cursors[kWarps];
  ReaderState readers[kWarps];
  DecodeJob job;
  CutHere cuts[kMostCuts];
  std::uint64_t barriers[kWarps][kMostSlots];
  std::uint64_t operand_barrier;
  float sums[kSumPlaces][kWarps];
  UnitPlan plans[2][kWarps];  // of sliding and full layers
  DecodeLayer layers[2];
  RowInfo rows[kCachedRows];
  CacheLayer caches[2][kCachedRows];  // of the layer and the next
};

// A barrier of the whole grid in two halves: what does not need the other blocks' results is done in between.
__device__ __forceinline__ void grid_arrive(unsigned* counter, unsigned& target) {
  __syncthreads();
  target += gridDim.x;
  if (thread_index() == 0) add_release(counter);
}
// Until every block has arrived as often as this one; what they wrote before is visible afterwards.
__device__ __forceinline__ void grid_wait(unsigned* counter, unsigned target) {
  if (thread_index() == 0) {
    std::uint32_t spins = 0;
    while (load_counter(counter) < target) {
      if (++spins == 1u << 26) __trap();  // half a minute: some block has died
    }
  }
  __syncthreads();
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The sum over the block in a fixed order; every thread gets it. `place`: below kSumPlaces, and not that of
// the sum before, which some thread may still be reading.
__device__ __forceinline__ float block_sum(DecodeShared& s, std::uint32_t place, float x) {
  const std::uint32_t thread = thread_index();
  x = warp_sum(x);
  if (thread % 32 == 0) s.sums[place][thread / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += s.sums[place][w];
  return sum;
}

__device__ __forceinline__ float square_sum(float4 v) {
  return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}
__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// Other blocks wrote it in this kernel: not through the first-level cache.
__device__ __forceinline__ float4 load4(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}

// The result of a product: `pieces` partial sums of each part, [parts * pieces][rows][width]. While weights
// stream in, a read takes microseconds, so up to `Batch` partial sums are asked for before the first is used.
struct Parts {
  const float* data;
  std::uint32_t parts, rows, width;
};

__device__ __forceinline__ float add(float a, float b) {
  return a + b;
}
__device__ __forceinline__ void clear(float& x) {
  x = 0;
}
__device__ __forceinline__ void clear(float4& x) {
  x = make_float4(0, 0, 0, 0);
}

// Of `Pieces` values at v, in the order that every sum of pieces has.
template <int Pieces, typename T>
__device__ __forceinline__ T sum_pieces(const T* v) {
  if constexpr (Pieces == 1) return v[0];
  if constexpr (Pieces == 2) return add(v[0], v[1]);
  if constexpr (Pieces == 4) return add(add(v[0], v[1]), add(v[2], v[3]));
}

// T: float, or float4 for four neighbouring columns. First issue(), then total().
template <int Pieces, typename T, int Batch>
struct PartSum {
  static_assert(Batch % Pieces == 0);
  T v[Batch];

  __device__ void issue(const Parts& p, std::uint32_t row, std::uint32_t col, bool wanted = true) {
    const std::size_t stride = std::size_t{p.rows} * p.width;
    const float* at = p.data + std::size_t{row} * p.width + col;
#pragma unroll
    for (int i = 0; i < Batch; ++i, at += stride)
      load_if(wanted && i < static_cast<int>(p.parts) * Pieces, at, v[i]);
  }
  // The sum of the part whose pieces begin at v[i].
  __device__ T part(int i) const {
    return sum_pieces<Pieces>(v + i);
  }
  __device__ T total(const Parts& p, std::uint32_t row, std::uint32_t col) {
    T sum = part(0);
#pragma unroll
    for (int i = Pieces; i < Batch; i += Pieces) {
      if (i < static_cast<int>(p.parts) * Pieces) sum = add(sum, part(i));
    }
    const std::size_t stride = std::size_t{p.rows} * p.width;
    const float* at = p.data + std::size_t{row} * p.width + col;
#pragma unroll 1
    for (std::uint32_t first = Batch; first < p.parts * Pieces; first += Batch) {
#pragma unroll
      for (int i = 0; i < Batch; ++i) load_if(first + i < p.parts * Pieces, at + (first + i) * stride, v[i]);
#pragma unroll
      for (int i = 0; i < Batch; i += Pieces) {
        if (first + i < p.parts * Pieces) sum = add(sum, part(i));
      }
    }
    return sum;
  }
};

__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kRootTwoOverPi = 0.79788456080286535588f;
  return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + 0.044715f * x * x * x)));
}

}  // namespace gem::cuda
