// Activations as the B operand of the decode products: every value as two f16 halves, high + low, times a
// power of two that is the same for a slice of a row, so that a product's error is that of f32 (22 bits of
// mantissa).
//
// For each pass of up to R rows (R = 8, 16 or 32), in global memory and in a block's shared memory alike:
//   blocks [cols / 32][32 * block rows words]: 16 words of high halves a row and 16 of low ones.
//          Lane j of four has words 4j .. 4j + 3 of either: columns 2j, 2j + 1 and 2j + 8, 2j + 9 of the
//          first 16 columns, then those of the second (b0 and b1 of mma.m16n8k16, twice). Of up to four rows
//          a row's high and low halves lie together; else all rows' high halves lie before their low ones.
//   sums   [cols / 32][R floats]: kSumUnit times the sum of a block's scaled values, for codes with an offset
//          or a minimum; of up to four rows a row's s and 16 s, else one of each row
//   scales [slices][R]: what a slice's sums are multiplied by
#pragma once

#include "backend/cuda/decode_common.cuh"

namespace gem::cuda {

constexpr std::uint32_t kBlockCols = 32;
constexpr std::uint32_t kHalfWords = 16;  // of a row of a block
constexpr std::uint32_t kFewRows = 4;     // that take half of the products (decode_product.cuh)
constexpr float kSumUnit = -0x1p-21f;  // the offset of 4-bit codes, as the codes stand (decode_fragment.cuh)
// Places for rows of `blocks`: as many as a pass may have, so that the distances are constants of a kernel.
__host__ __device__ constexpr std::uint32_t block_rows(std::uint32_t pass_rows, std::uint32_t rows) {
  return rows <= kFewRows && pass_rows == 8 ? kFewRows : pass_rows;
}
// Words from a row to the next, and from its high halves to the low ones.
__host__ __device__ constexpr std::uint32_t row_words(std::uint32_t block_rows) {
  return block_rows == kFewRows ? 2 * kHalfWords : kHalfWords;
}
__host__ __device__ constexpr std::uint32_t low_words(std::uint32_t block_rows) {
  return block_rows == kFewRows ? kHalfWords : kHalfWords * block_rows;
}
__host__ __device__ constexpr std::uint32_t block_words(std::uint32_t block_rows) {
  return 2 * kHalfWords * block_rows;
}
// Of a column of a block: the word with its high half.
__host__ __device__ constexpr std::uint32_t word_of(std::uint32_t column) {
  return column % 8 / 2 * 4 + column / 16 * 2 + column % 16 / 8;
}

struct Operand {
  std::uint32_t* blocks;
  float* sums;
  float* scales;
  std::uint32_t rows;  // of this pass
  std::uint32_t block_rows;
  std::uint32_t pitch;           // R
  std::uint32_t chunk0, chunk1;  // chunks that are kept here
  std::uint32_t slice0;          // of scales[0]
};

// First chunk of slice i of the whole matrix.
__device__ __forceinline__ std::uint32_t slice_begin(const DecodeCut& cut, std::uint32_t i) {
  return i * cut.chunks / (cut.parts * kSlices);
}
__device__ __forceinline__ std::uint32_t slice_begin(const DecodeOp& op, std::uint32_t i) {
  return slice_begin(DecodeCut{op.chunks, op.parts}, i);
}

// What a block multiplies in a pass: which columns, and which tiles each of its groups of warps.
struct MyPart {
  std::uint32_t index;   // of the partial result
  std::uint32_t slice0;  // first slice
  std::uint32_t chunk0, chunk1;
  std::uint32_t slice;            // of this warp
  std::uint32_t begin, end;       // its chunks
  std::uint32_t worker, workers;  // tiles worker, worker + workers, …; no worker has worker >= workers
};
// Divisions take long where nothing else is done: once for all products of the round.
template <int Pieces>
__device__ __forceinline__ CutHere cut_here(const DecodeCut& cut) {
  constexpr std::uint32_t kGroupWarps = kSlices / Pieces;
  constexpr std::uint32_t kGroups = kWarps / kGroupWarps;
  const std::uint32_t block = block_index();
  const std::uint32_t pieces = cut.parts * Pieces;
  CutHere here = {};
  if (pieces == 0) return here;
  here.index = static_cast<std::uint16_t>(block % pieces);
  here.slice0 = static_cast<std::uint16_t>(here.index * kGroupWarps);
  for (std::uint32_t i = 0; i <= kGroupWarps; ++i)
    here.begin[i] = static_cast<std::uint16_t>(slice_begin(cut, here.slice0 + i));
  here.worker0 = static_cast<std::uint16_t>(block / pieces * kGroups);
  here.workers = static_cast<std::uint16_t>(gridDim.x / pieces * kGroups);
  here.per_worker = 1.0f / static_cast<float>(here.workers);
  return here;
}
template <int Pieces>
__device__ __forceinline__ MyPart my_part(const DecodeOp& op) {
  constexpr std::uint32_t kGroupWarps = kSlices / Pieces;
  const std::uint32_t warp = thread_index() / 32;
  const CutHere& here = block_state().cuts[op.cut];
  const std::uint32_t own = warp % kGroupWarps;
  MyPart p;
  p.index = here.index;
  p.slice0 = here.slice0;
  p.chunk0 = here.begin[0];
  p.chunk1 = here.begin[kGroupWarps];
  p.slice = here.slice0 + own;
  p.begin = here.begin[own];
  p.end = here.begin[own + 1];
  p.workers = here.workers;
  p.worker = here.worker0 + warp / kGroupWarps;
  return p;
}

// The whole operand in global memory.
template <int Pieces>
__device__ __forceinline__ Operand global_operand(const DecodeJob& job, const DecodeOp& op,
                                                  std::uint32_t pass, std::uint32_t rows) {
  constexpr std::uint32_t kRows = 8 * Pieces;
  Operand o;
  o.blocks = job.operand + std::size_t{op.chunks} * 2 * block_words(kRows) * pass;
  o.sums = job.operand_sums + std::size_t{op.chunks} * 2 * kRows * pass;
  o.scales = job.operand_scales + std::size_t{op.parts} * kSlices * kRows * pass;
  o.rows = rows;
  o.block_rows = block_rows(kRows, rows);
  o.pitch = kRows;
  o.chunk0 = 0;
  o.chunk1 = op.chunks;
  o.slice0 = 0;
  return o;
}
// The block's columns of it in shared memory.
template <int Pieces>
__device__ __forceinline__ Operand shared_operand(const MyPart& part, std::uint32_t rows) {
  const std::uint32_t chunks = part.chunk1 - part.chunk0;
  Operand o;
  o.pitch = 8 * Pieces;
  o.block_rows = block_rows(o.pitch, rows);
  o.blocks = reinterpret_cast<std::uint32_t*>(region());
  o.sums = reinterpret_cast<float*>(o.blocks + chunks * 2 * block_words(o.block_rows));
  o.scales = o.sums + chunks * 2 * o.pitch;
  o.rows = rows;
  o.chunk0 = part.chunk0;
  o.chunk1 = part.chunk1;
  o.slice0 = part.slice0;
  return o;
}

// Four neighbouring values, columns col .. col + 3 (col % 4 == 0); the aligned group of eight lanes holds a
// 32-block and must call it together. Columns that are not kept here are left out.
__device__ __forceinline__ void store_operand(const Operand& to, std::uint32_t row, std::uint32_t col,
                                              float4 v, float up) {
  if (col / kChunkCols < to.chunk0 || col / kChunkCols >= to.chunk1) return;
  const std::uint32_t thread = thread_index();
  const float x[4] = {v.x * up, v.y * up, v.z * up, v.w * up};
  unsigned high[2];
  unsigned low[2];
  float sum = 0;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const __half2 h = __floats2half2_rn(x[2 * pair], x[2 * pair + 1]);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(x[2 * pair] - back.x, x[2 * pair + 1] - back.y);
    const float2 rest = __half22float2(l);
    sum += (back.x + rest.x) + (back.y + rest.y);
    high[pair] = *reinterpret_cast<const unsigned*>(&h);
    low[pair] = *reinterpret_cast<const unsigned*>(&l);
  }
  const unsigned group = 0xffu << (thread & 24u);
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(group, sum, step);
  const std::uint32_t at = col - to.chunk0 * kChunkCols;
  std::uint32_t* words = to.blocks + at / kBlockCols * block_words(to.block_rows) +
                         row * row_words(to.block_rows) + word_of(at % kBlockCols);
  const std::uint32_t below = low_words(to.block_rows);
  words[0] = high[0];
  words[4] = high[1];
  words[below] = low[0];
  words[below + 4] = low[1];
  if ((thread & 7u) == 0) {
    float* sums = to.sums + at / kBlockCols * to.pitch;
    sum *= kSumUnit;
    if (to.block_rows == kFewRows) {
      *reinterpret_cast<float2*>(sums + row * 2) = make_float2(sum, 16 * sum);
    } else {
      sums[row] = sum;
    }
  }
}

// Copies the block's columns from global to shared memory, with the scales of `slices` slices; the caller
// waits for all threads, and counts it afterwards.
__device__ __forceinline__ void load_operand(const Operand& from, const Operand& to, std::uint32_t slices) {
  const std::uint32_t thread = thread_index();
  const std::uint32_t chunks = to.chunk1 - to.chunk0;
  const std::uint32_t* blocks = from.blocks + std::size_t{to.chunk0} * 2 * block_words(to.block_rows);
  const float* sums = from.sums + to.chunk0 * 2 * to.pitch;
  const float* scales = from.scales + to.slice0 * to.pitch;
  const std::uint32_t block_bytes = chunks * 2 * block_words(to.block_rows) * 4;
  const std::uint32_t sum_bytes = chunks * 2 * to.pitch * 4;
  const std::uint32_t scale_bytes = slices * to.pitch * 4;
#if __CUDA_ARCH__ >= 900
  DecodeShared& s = block_state();
  std::uint64_t* const barrier = &s.operand_barrier;
  if (thread == 0) {
    copies_see_writes();
    slot_expect(barrier, block_bytes + sum_bytes + scale_bytes);
    slot_copy(barrier, to.blocks, blocks, block_bytes, read_once());
    slot_copy(barrier, to.sums, sums, sum_bytes, read_once());
    slot_copy(barrier, to.scales, scales, scale_bytes, read_once());
  }
  slot_wait(barrier, s.operands % 2);
#else
  const auto copy = [&](void* into, const void* out_of, std::uint32_t bytes) {
#pragma unroll 4
    for (std::uint32_t i = thread; i < bytes / 16; i += kThreads)
      static_cast<uint4*>(into)[i] = __ldcg(static_cast<const uint4*>(out_of) + i);
  };
  copy(to.blocks, blocks, block_bytes);
  copy(to.sums, sums, sum_bytes);
  copy(to.scales, scales, scale_bytes);
#endif
}

}  // namespace gem::cuda
