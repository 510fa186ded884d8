// What the parts of the decode kernel share: its shared memory, barriers, sums over a block.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/decode.h"
#include "backend/cuda/ptx.cuh"

namespace gem::cuda {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr std::uint32_t kMostSlots = 8;

constexpr std::uint32_t kCachedRows = 32;  // whose infos are kept in shared memory

// A piece of weights that a warp will ask for: chunks of one tile, or the same chunks of two tiles that are
// multiplied together. The next 32 are known.
struct Piece {
  // The address, and in the upper 12 bits its length in 16 bytes; 0: there are no more.
  std::uint64_t word = 0;

  static __device__ __forceinline__ Piece of(const std::uint8_t* from, std::uint32_t bytes) {
    return {reinterpret_cast<std::uint64_t>(from) | std::uint64_t{bytes / 16} << 52};
  }
  __device__ __forceinline__ const std::uint8_t* from() const {
    return reinterpret_cast<const std::uint8_t*>(word & ~std::uint64_t{0} >> 12);
  }
  __device__ __forceinline__ std::uint32_t bytes() const {
    return static_cast<std::uint32_t>(word >> 52) * 16;
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
  std::uint16_t begin[kSlices + 1];  // the slices' first chunks
  std::uint16_t worker0, workers;    // of the block's first group of warps, and of all blocks
  float per_worker;                  // 1 / workers
};

// A unit of attention's work: neighbouring chunks of keys for query heads of one KV head, of one row or of
// some that follow each other in a span. Its queries are those of the first row, then of the next.
struct UnitPlan {
  std::uint32_t item, kv_heads;        // what it is the plan of, in all layers that divide their heads so
  std::uint32_t row, rows;             // no rows: there is nothing to do
  std::uint32_t chunk, length;         // the first one among those of its length
  std::uint32_t kv_head, head, heads;  // the first query head and how many, of a row
  std::uint32_t begin, end;            // the keys that any of the rows sees
  std::uint32_t fresh_begin, fresh;    // of these, those that this round brings
  std::uint32_t fresh_row;             // which brings the first of them
  std::uint64_t row_of;                // a query's row, four bits each
  CacheLayer cache;

  __device__ __forceinline__ std::uint32_t row_of_query(std::uint32_t query) const {
    return static_cast<std::uint32_t>(row_of >> (4 * query)) & 15u;
  }
};
static_assert(kMaxGroup == 16);

constexpr std::uint32_t kSumPlaces = 4;

// All that a block knows. What is the same for all its threads lies here too, not in their registers: between
// the functions of a round these are kept in local memory, which is slow to read when much else is read.
struct DecodeShared {
  Piece pieces[kWarps][32];
  // Of pieces of two tiles: from the first one's chunks to the other's, in 16 bytes; else 0.
  std::int32_t seconds[kWarps][32];
  CursorState cursors[kWarps];
  ReaderState readers[kWarps];
  DecodeJob job;
  std::uint32_t rings, region, reduce;  // where they begin in the dynamic shared memory
  unsigned target;                      // of the grid's barrier; only the first thread looks at it
  std::uint32_t operands;               // that were copied to this block's memory so far
  CutHere cuts[kMostCuts];
  std::uint64_t barriers[kWarps][kMostSlots];
  std::uint64_t operand_barrier;
  float4 sums[kSumPlaces][kWarps / 4];
  UnitPlan plans[2][kWarps];  // of sliding and full layers
  DecodeLayer layers[2];
  RowInfo rows[kCachedRows];
  CacheLayer caches[2][kCachedRows];  // of the layer and the next
};

__device__ __forceinline__ DecodeShared& block_state() {
  return block_shared<DecodeShared>();
}
// The products of the round. Then the rings of all warps, then a region for what the block works on.
__device__ __forceinline__ const DecodeOp& product_of(std::uint32_t o) {
  return reinterpret_cast<const DecodeOp*>(dynamic_shared())[o];
}
__device__ __forceinline__ std::uint8_t* region() {
  return dynamic_shared() + block_state().region;
}

// A barrier of the whole grid in two halves: what does not need the other blocks' results is done in between.
__device__ __forceinline__ void grid_arrive() {
  __syncthreads();
  if (thread_index() != 0) return;
  DecodeShared& s = block_state();
  s.target += gridDim.x;
  add_release(s.job.barrier);
}
// Until every block has arrived as often as this one; what they wrote before is visible afterwards.
__device__ __forceinline__ void grid_wait() {
  if (thread_index() == 0) {
    const DecodeShared& s = block_state();
    const unsigned* counter = s.job.barrier;
    const unsigned target = s.target;
    std::uint32_t spins = 0;
    while (load_counter(counter) < target) {
      if (++spins == 1u << 26) __trap();  // half a minute: some block has died
    }
  }
  __syncthreads();
}
__device__ __forceinline__ void grid_sync() {
  grid_arrive();
  grid_wait();
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The sum over the block in a fixed order; every thread gets it. `place`: below kSumPlaces, and not that of
// the sum before, which some thread may still be reading.
__device__ __forceinline__ float block_sum(std::uint32_t place, float x) {
  DecodeShared& s = block_state();
  const std::uint32_t thread = thread_index();
  x = warp_sum(x);
  if (thread % 32 == 0) reinterpret_cast<float*>(s.sums[place])[thread / 32] = x;
  __syncthreads();
  static_assert(kWarps == 16);
  const float4* sums = s.sums[place];
  const float4 sum = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
  return (sum.x + sum.y) + (sum.z + sum.w);
}

__device__ __forceinline__ float square_sum(float4 v) {
  return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}
// Other blocks wrote it in this kernel: not through the first-level cache.
__device__ __forceinline__ float4 load4(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}

// The result of a product: `pieces` partial sums of each part, [parts * pieces][rows][width].
struct Parts {
  const float* data;
  std::uint32_t parts, rows, width;

  __device__ __forceinline__ const float* row(std::uint32_t r) const { return data + std::size_t{r} * width; }
};

__device__ __forceinline__ void clear(float4& x) {
  x = make_float4(0, 0, 0, 0);
}
// Of `Pieces` values at v, in the order that every sum of pieces has.
template <int Pieces>
__device__ __forceinline__ float4 sum_pieces(const float4* v) {
  if constexpr (Pieces == 1) return v[0];
  if constexpr (Pieces == 2) return add(v[0], v[1]);
  if constexpr (Pieces == 4) return add(add(v[0], v[1]), add(v[2], v[3]));
}

// Adds the next `Batch` partial sums, `stride` floats apart, at `Vectors` places. While weights stream in, a
// read takes microseconds, so all are asked for before the first is used.
template <int Pieces, int Batch, int Vectors>
__device__ __forceinline__ void add_parts(const float* (&at)[Vectors], std::size_t stride,
                                          float4 (&sums)[Vectors]) {
  float4 part[Vectors][Batch];
#pragma unroll
  for (int k = 0; k < Batch; ++k) {
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      part[i][k] = load4(at[i]);
      at[i] += stride;
    }
  }
#pragma unroll
  for (int k = 0; k < Batch; k += Pieces) {
#pragma unroll
    for (int i = 0; i < Vectors; ++i) sums[i] = add(sums[i], sum_pieces<Pieces>(part[i] + k));
  }
}
// The sums of all parts of four neighbouring columns, in order, at `Vectors` places of a row.
template <int Pieces, int Vectors>
__device__ __forceinline__ void sum_parts(const Parts& p, const float* (&at)[Vectors],
                                          float4 (&sums)[Vectors]) {
  constexpr int kMost = Vectors < 3 ? 8 : 4;  // at once: what fits the registers
  const std::size_t stride = std::size_t{p.rows} * p.width;
  std::uint32_t left = p.parts * Pieces;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) clear(sums[i]);
#pragma unroll 1
  for (; left >= kMost; left -= kMost) add_parts<Pieces, kMost>(at, stride, sums);
  if (kMost > 4 && left >= 4) {
    add_parts<Pieces, 4>(at, stride, sums);
    left -= 4;
  }
  if constexpr (Pieces <= 2) {
    if (left >= 2) {
      add_parts<Pieces, 2>(at, stride, sums);
      left -= 2;
    }
  }
  if constexpr (Pieces == 1) {
    if (left > 0) add_parts<Pieces, 1>(at, stride, sums);
  }
}

// 0.5 x (1 + tanh(y)) = x / (1 + exp(-2 y)).
__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kTwoRootsOfTwoOverPi = 1.59576912160573071176f;
  return __fdividef(x, 1.0f + __expf(-kTwoRootsOfTwoOverPi * fmaf(0.044715f * x * x, x, x)));
}

}  // namespace gem::cuda
