// Activations as the B operand of the decode products: 16 bits a value, as two signed bytes, times a power of
// two that 32 neighbouring values of a row share: x = (256 high + low) 2^e. As the cpu backend rounds them
// (backend/cpu/kernels.h) but for the scale, which need not be a power of two there. Sums of codes of weights
// times such values are exact in 32 bits, so that it does not matter which instruction forms them.
//
// For each pass of up to R rows (R = 8, 16 or 32), in global memory and in a block's shared memory alike:
//   blocks  [cols / 32][block rows][16 words]: lane j of four has words 4j .. 4j + 3: the high bytes of its
//           four columns of the first 16, 4j .. 4j + 3, and of the second, then the low bytes (b0 and b1 of
//           mma.m16n8k32, twice)
//   origins [cols / 32][block rows]
#pragma once

#include "backend/cuda/decode_common.cuh"

namespace gem::cuda {

constexpr std::uint32_t kBlockCols = 32;
constexpr std::uint32_t kRowWords = 16;  // of a row of a block
constexpr std::uint32_t kFewRows = 4;    // that take half of the products (decode_product.cuh)
// Places for rows of `blocks`: as many as a pass may have, so that the distances are constants of a kernel.
__host__ __device__ constexpr std::uint32_t block_rows(std::uint32_t pass_rows, std::uint32_t rows) {
  return rows <= kFewRows && pass_rows == 8 ? kFewRows : pass_rows;
}
// Of a column of a block: the word with its high byte; two words later is its low one.
__host__ __device__ constexpr std::uint32_t word_of(std::uint32_t column) {
  return column % 16 / 4 * 4 + column / 16;
}

// A sum of 23 bits becomes a float without a conversion: added to these bits, those of 1.5 * 2^(23 + e), it
// gives the bits of (1.5 * 2^23 + sum) 2^e.
constexpr std::int32_t kOriginBits = 0x4b400000;
// At most this is the sum of the magnitudes of a block's integers (and 32 of rounding), so that eight times
// it, what codes of four bits less their offset make of it, is 2^22 at most.
constexpr float kMostLength = 0x1p19f - 64;
constexpr float kMostInteger = 127 * 256 + 127;  // that two signed bytes hold
// From here on a number counts as infinite: its block's results are NaN.
constexpr unsigned kTooLarge = (127u + 104u) << 23;

// What a block of a row adds to, and how its sums are read.
struct alignas(8) Origin {
  std::int32_t start;  // bits to begin with for codes whose offset is 8, which is in them
  float zero;          // what stands for a sum of zero; NaN where the block is not finite

  // Eight times the sum of the block's values, negative; exact.
  __device__ __forceinline__ float offset() const { return __int_as_float(start) - zero; }
};
constexpr float kPerOffset = -0.125f;     // the sum of the values is this times offset()
constexpr float kPerZero = 0x1p-22f / 3;  // zero times this is 2^e (rounded to it), or NaN

struct Operand {
  std::uint32_t* blocks;
  Origin* origins;
  std::uint32_t rows;  // of this pass
  std::uint32_t block_rows;
  std::uint32_t chunk0, chunk1;  // chunks that are kept here
};

// First chunk of slice i of the whole matrix.
__device__ __forceinline__ std::uint32_t slice_begin(const DecodeCut& cut, std::uint32_t i) {
  return i * cut.chunks / (cut.parts * kSlices);
}

// What a block multiplies in a pass: which columns, and which tiles each of its groups of warps.
struct MyPart {
  std::uint32_t index;  // of the partial result
  std::uint32_t chunk0, chunk1;
  std::uint32_t begin, end;       // this warp's chunks
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
  for (std::uint32_t i = 0; i <= kGroupWarps; ++i)
    here.begin[i] = static_cast<std::uint16_t>(slice_begin(cut, here.index * kGroupWarps + i));
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
  p.chunk0 = here.begin[0];
  p.chunk1 = here.begin[kGroupWarps];
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
  o.blocks = job.operand + std::size_t{op.chunks} * 2 * kRows * kRowWords * pass;
  o.origins = reinterpret_cast<Origin*>(job.origins) + std::size_t{op.chunks} * 2 * kRows * pass;
  o.rows = rows;
  o.block_rows = block_rows(kRows, rows);
  o.chunk0 = 0;
  o.chunk1 = op.chunks;
  return o;
}
// The block's columns of it in shared memory.
template <int Pieces>
__device__ __forceinline__ Operand shared_operand(const MyPart& part, std::uint32_t rows) {
  const std::uint32_t chunks = part.chunk1 - part.chunk0;
  Operand o;
  o.block_rows = block_rows(8 * Pieces, rows);
  o.blocks = reinterpret_cast<std::uint32_t*>(region());
  o.origins = reinterpret_cast<Origin*>(o.blocks + chunks * 2 * o.block_rows * kRowWords);
  o.rows = rows;
  o.chunk0 = part.chunk0;
  o.chunk1 = part.chunk1;
  return o;
}

// Four neighbouring values, columns col .. col + 3 (col % 4 == 0); the aligned group of eight lanes holds a
// 32-block and must call it together. Columns that are not kept here are left out.
__device__ __forceinline__ void store_operand(const Operand& to, std::uint32_t row, std::uint32_t col,
                                              float4 v) {
  if (col / kChunkCols < to.chunk0 || col / kChunkCols >= to.chunk1) return;
  const std::uint32_t thread = thread_index();
  const unsigned group = 0xffu << (thread & 24u);
  const float x[4] = {v.x, v.y, v.z, v.w};
  // Magnitudes are in the order of their bits, NaN the last.
  unsigned top = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) top = max(top, __float_as_uint(x[i]) & 0x7fffffffu);
  float length = (fabsf(x[0]) + fabsf(x[1])) + (fabsf(x[2]) + fabsf(x[3]));
#pragma unroll
  for (int step = 4; step > 0; step /= 2) {
    top = max(top, __shfl_xor_sync(group, top, step));
    length += __shfl_xor_sync(group, length, step);
  }
  // The largest becomes 2^14 .. 2^15, or half of that where the block would be too much otherwise.
  int e = max(static_cast<int>(top >> 23) - (127 + 14), -126);
  float down = __uint_as_float(static_cast<unsigned>(127 - e) << 23);  // 2^-e
  if (__uint_as_float(top) * down > kMostInteger || length * down > kMostLength) {
    ++e;
    down *= 0.5f;
  }
  const bool finite = top < kTooLarge;
  if (!finite) e = 0, down = 0;  // the sum of e below stays in range
  int q[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) q[i] = __float2int_rn(x[i] * down);
  int sum = (q[0] + q[1]) + (q[2] + q[3]);
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(group, sum, step);
  // The low byte is signed, so the high one is that of the value and 128.
  unsigned words[2];
#pragma unroll
  for (int plane = 0; plane < 2; ++plane) {
    const int more = plane == 0 ? 128 : 0;
    const unsigned pick = plane == 0 ? 0x51u : 0x40u;
    const unsigned first =
        __byte_perm(static_cast<unsigned>(q[0] + more), static_cast<unsigned>(q[1] + more), pick);
    const unsigned second =
        __byte_perm(static_cast<unsigned>(q[2] + more), static_cast<unsigned>(q[3] + more), pick);
    words[plane] = __byte_perm(first, second, 0x5410u);
  }
  const std::uint32_t at = col - to.chunk0 * kChunkCols;
  const std::uint32_t place = at / kBlockCols * to.block_rows + row;
  std::uint32_t* into = to.blocks + place * kRowWords + word_of(at % kBlockCols);
  into[0] = words[0];
  into[2] = words[1];
  if ((thread & 7u) == 0) {
    const std::int32_t zero = kOriginBits + e * (1 << 23);
    Origin origin;
    origin.start = zero - 8 * sum;
    origin.zero = finite ? __int_as_float(zero) : __uint_as_float(0x7fffffffu);
    to.origins[place] = origin;
  }
}

// Copies the block's columns from global to shared memory; the caller waits for all threads, and counts it
// afterwards.
__device__ __forceinline__ void load_operand(const Operand& from, const Operand& to) {
  const std::uint32_t thread = thread_index();
  const std::uint32_t places = (to.chunk1 - to.chunk0) * 2 * to.block_rows;
  const std::size_t first = std::size_t{to.chunk0} * 2 * to.block_rows;
  const std::uint32_t* blocks = from.blocks + first * kRowWords;
  const Origin* origins = from.origins + first;
  const std::uint32_t block_bytes = places * kRowWords * 4;
  const std::uint32_t origin_bytes = places * static_cast<std::uint32_t>(sizeof(Origin));
#if __CUDA_ARCH__ >= 900
  DecodeShared& s = block_state();
  std::uint64_t* const barrier = &s.operand_barrier;
  if (thread == 0) {
    copies_see_writes();
    slot_expect(barrier, block_bytes + origin_bytes);
    slot_copy(barrier, to.blocks, blocks, block_bytes, read_once());
    slot_copy(barrier, to.origins, origins, origin_bytes, read_once());
  }
  slot_wait(barrier, s.operands % 2);
#else
  const auto copy = [&](void* into, const void* out_of, std::uint32_t bytes) {
#pragma unroll 4
    for (std::uint32_t i = thread; i < bytes / 16; i += kThreads)
      static_cast<uint4*>(into)[i] = __ldcg(static_cast<const uint4*>(out_of) + i);
  };
  copy(to.blocks, blocks, block_bytes);
  copy(to.origins, origins, origin_bytes);
#endif
}

}  // namespace gem::cuda
