// Products of the decode kernel: every warp streams its slices of the tiles of all products of the round
// through a ring of copies and multiplies them on the tensor cores.
#pragma once

#include "backend/cuda/decode_operand.cuh"

namespace gem::cuda {

__device__ __forceinline__ unsigned half_pair(float value) {
  const __half2 h = __float2half2_rn(value);
  return *reinterpret_cast<const unsigned*>(&h);
}
__device__ __forceinline__ unsigned subtract(unsigned a, unsigned b) {
  const __half2 r = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<const unsigned*>(&r);
}

// A chunk of 64 columns of 16 rows as the A operand. step<S>() gives the four registers of 16 columns: rows r
// and r + 8 (r = lane / 4) alternating. Codes become f16 without arithmetic where their bits are those of a
// subnormal: code * 2^-24. What that leaves out (kUnit, and the offset times the sum of the activations) is
// made good on the f32 sums.
template <Format F>
struct Fragment;

// The lane's nibbles of a chunk as registers.
template <int Step>
__device__ __forceinline__ void nibbles_step(const uint4& words, unsigned (&a)[4]) {
  const unsigned w = Step == 0 ? words.x : Step == 1 ? words.y : Step == 2 ? words.z : words.w;
  const unsigned v = w >> 8;
  a[0] = w & 0x000f000fu;
  a[1] = w & 0x00f000f0u;
  a[2] = v & 0x000f000fu;
  a[3] = v & 0x00f000f0u;
}
// Its bytes: in the mantissa of 1024 a byte is 1024 + byte; a signed one is taken plus 128.
template <int Step, bool Signed>
__device__ __forceinline__ void bytes_step(const uint4 (&words)[2], unsigned (&a)[4]) {
  const uint4& q = words[Step / 2];
  constexpr unsigned kFlip = Signed ? 0x80808080u : 0u;
  const unsigned first = (Step % 2 == 0 ? q.x : q.z) ^ kFlip;
  const unsigned second = (Step % 2 == 0 ? q.y : q.w) ^ kFlip;
  const unsigned bias = half_pair(Signed ? 1152.0f : 1024.0f);
  a[0] = subtract(__byte_perm(first, 0x64646464u, 0x4240), bias);
  a[1] = subtract(__byte_perm(first, 0x64646464u, 0x4341), bias);
  a[2] = subtract(__byte_perm(second, 0x64646464u, 0x4240), bias);
  a[3] = subtract(__byte_perm(second, 0x64646464u, 0x4341), bias);
}

template <>
struct Fragment<Format::kQ4> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = true, kMinima = false;
  // A code c of row r stands as c 2^-24, of row r + 8 as c 2^-20; c - 8 is meant.
  static constexpr float kUnit0 = 0x1p24f, kUnit1 = 0x1p20f;
  static constexpr float kOffset0 = -0x1p-21f, kOffset1 = -0x1p-17f;
  uint4 words;
  float2 scale[2];  // rows {r, r + 8} of each 32-block
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    const uint2 s = *reinterpret_cast<const uint2*>(chunk + 512 + (lane >> 2) * 8);
    scale[0] = __half22float2(*reinterpret_cast<const __half2*>(&s.x));
    scale[1] = __half22float2(*reinterpret_cast<const __half2*>(&s.y));
  }
  template <int Step>
  __device__ void step(unsigned (&a)[4]) const {
    nibbles_step<Step>(words, a);
  }
};

template <>
struct Fragment<Format::kQ8> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = false;
  static constexpr float kUnit0 = 1, kUnit1 = 1, kOffset0 = 0, kOffset1 = 0;
  uint4 words[2];
  float2 scale[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
    const uint2 s = *reinterpret_cast<const uint2*>(chunk + 1024 + (lane >> 2) * 8);
    scale[0] = __half22float2(*reinterpret_cast<const __half2*>(&s.x));
    scale[1] = __half22float2(*reinterpret_cast<const __half2*>(&s.y));
  }
  template <int Step>
  __device__ void step(unsigned (&a)[4]) const {
    bytes_step<Step, true>(words, a);
  }
};

template <>
struct Fragment<Format::kH16> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = false;
  static constexpr float kUnit0 = 1, kUnit1 = 1, kOffset0 = 0, kOffset1 = 0;
  uint4 words[4];
  float2 scale[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
#pragma unroll
    for (int s = 0; s < 4; ++s) words[s] = *reinterpret_cast<const uint4*>(chunk + s * 512 + lane * 16);
    const float4 s = *reinterpret_cast<const float4*>(chunk + 2048 + (lane >> 2) * 16);
    scale[0] = make_float2(s.x, s.y);
    scale[1] = make_float2(s.z, s.w);
  }
  template <int Step>
  __device__ void step(unsigned (&a)[4]) const {
    a[0] = words[Step].x;
    a[1] = words[Step].y;
    a[2] = words[Step].z;
    a[3] = words[Step].w;
  }
};

// Scales and minima {r, r + 8} of both blocks, at `from` of the chunk.
__device__ __forceinline__ void load_affine(const std::uint8_t* from, int lane, float down0, float down1,
                                            float2 (&scale)[2], float2 (&minimum)[2]) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const float4 v = *reinterpret_cast<const float4*>(from + (block * 8 + (lane >> 2)) * 16);
    scale[block] = make_float2(v.x, v.y);
    minimum[block] = make_float2(v.z * down0, v.w * down1);
  }
}

template <>
struct Fragment<Format::kA4> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = true;
  static constexpr float kUnit0 = 0x1p24f, kUnit1 = 0x1p20f, kOffset0 = 0, kOffset1 = 0;
  uint4 words;
  float2 scale[2], minimum[2];  // minima in units of the sums
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    load_affine(chunk + 512, lane, 0x1p-24f, 0x1p-20f, scale, minimum);
  }
  template <int Step>
  __device__ void step(unsigned (&a)[4]) const {
    nibbles_step<Step>(words, a);
  }
};

template <>
struct Fragment<Format::kA8> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = true;
  static constexpr float kUnit0 = 1, kUnit1 = 1, kOffset0 = 0, kOffset1 = 0;
  uint4 words[2];
  float2 scale[2], minimum[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
    load_affine(chunk + 1024, lane, 1, 1, scale, minimum);
  }
  template <int Step>
  __device__ void step(unsigned (&a)[4]) const {
    bytes_step<Step, false>(words, a);
  }
};

template <>
struct Fragment<Format::kS8> {
  static constexpr int kScales = 4;
  static constexpr bool kOffset = false, kMinima = false;
  static constexpr float kUnit0 = 1, kUnit1 = 1, kOffset0 = 0, kOffset1 = 0;
  uint4 words[2];
  float2 scale[4];  // of each 16 columns
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      scale[s] = *reinterpret_cast<const float2*>(chunk + 1024 + (s * 8 + (lane >> 2)) * 8);
  }
  template <int Step>
  __device__ void step(unsigned (&a)[4]) const {
    bytes_step<Step, true>(words, a);
  }
};

// ---- the ring of copies

// Chunks that a slot of the ring takes at once; no division: slots are a few chunks of the smallest format.
__device__ __forceinline__ std::uint32_t chunks_of_slot(Format format, std::uint32_t slot_bytes) {
  const std::uint32_t chunk = chunk_bytes(format);
  return slot_bytes >= 4 * chunk ? 4 : slot_bytes >= 2 * chunk ? 2 : 1;
}

// Pieces that a warp may use before a step looks for more: seldom is better, but a product should not run
// out.
constexpr std::uint32_t kUsedBeforePlanning = 14;

// Skips products of which this warp has no share, from pass `c.pass` of product `c.op` on.
template <int Pieces>
__device__ __forceinline__ void open_product(const DecodeShared& s, const DecodeOp* ops, CursorState& c) {
  constexpr std::uint32_t kRows = 8 * Pieces;
  const std::uint32_t head = s.job.layer_count * kOpsOfLayer;
#pragma unroll 1
  for (; c.op < s.job.end_products; ++c.op, c.pass = 0) {
    const std::uint32_t rows = c.op == head ? s.job.logit_count : s.job.row_count;
    const MyPart part = my_part<Pieces>(s, ops[c.op]);
    if (part.worker >= part.workers || part.begin >= part.end || part.worker >= ops[c.op].tiles_end[2] ||
        c.pass * kRows >= rows)
      continue;
    c.tile = part.worker;
    c.piece = 0;
    return;
  }
}

// Finds the pieces of weights that the warp will multiply after those that its lanes know, so that these are
// 32 again: all lanes at once, as the loops that multiply have no time for it. Not before `least` were used.
template <int Pieces>
__device__ __noinline__ void plan_pieces(DecodeShared& s, const DecodeOp* ops, std::uint32_t least) {
  const std::uint32_t warp = thread_index() / 32;
  const std::uint32_t lane = thread_index() % 32;
  const std::uint32_t next = s.readers[warp].next;
  if (next < least) return;
  Piece mine = s.pieces[warp][(lane + next) % 32];
  CursorState c = s.cursors[warp];
  __syncwarp();
  std::uint32_t known = 32 - next;
  if (lane >= known) mine = {};
#pragma unroll 1
  while (known < 32 && c.op < s.job.end_products) {
    const DecodeOp& o = ops[c.op];
    const MyPart part = my_part<Pieces>(s, o);
    const std::uint32_t count = part.end - part.begin;
    // Matrices of one format are gone through together.
    const std::uint32_t end0 = o.tiles_end[0];
    const std::uint32_t end1 = o.tiles_end[1];
    const std::uint32_t end2 = o.tiles_end[2];
    const int which = c.tile < end0 ? 0 : c.tile < end1 ? 1 : 2;
    const Format format = static_cast<Format>(o.format[which]);
    const bool same = o.format[0] == o.format[1] && o.format[1] == o.format[2];
    const std::uint32_t limit = same || which == 2 ? end2 : which == 0 ? end0 : end1;
    const std::uint32_t unit = chunk_bytes(format);
    const std::uint32_t at_once = chunks_of_slot(format, s.job.slot_bytes);
    const std::uint32_t of_tile = (count + at_once - 1) / at_once;  // pieces; at_once is a power of two
    // Numbers this small are divided exactly so.
    const float tiles_of_piece = 1.0f / static_cast<float>(of_tile);
    const auto tiles_of = [&](std::uint32_t pieces) {
      return static_cast<std::uint32_t>((static_cast<float>(pieces) + 0.5f) * tiles_of_piece);
    };
    const std::uint32_t i = c.piece + lane - known;
    const std::uint32_t tile = c.tile + tiles_of(i) * part.workers;
    const bool found = lane >= known && tile < limit;
    if (found) {
      const std::uint32_t chunk = (i - tiles_of(i) * of_tile) * at_once;
      const std::uint8_t* data = tile < end0 ? o.data[0] : tile < end1 ? o.data[1] : o.data[2];
      const std::uint32_t first = tile < end0 ? 0 : tile < end1 ? end0 : end1;
      mine = Piece::of(data + (std::uint64_t{tile - first} * o.chunks + part.begin + chunk) * unit,
                       min(at_once, count - chunk) * unit);
    }
    const std::uint32_t all = c.piece + static_cast<std::uint32_t>(__popc(__ballot_sync(~0u, found)));
    known += all - c.piece;
    c.tile += tiles_of(all) * part.workers;
    c.piece = all - tiles_of(all) * of_tile;
    if (c.tile >= end2) {
      ++c.pass;
      open_product<Pieces>(s, ops, c);
    }
  }
  s.pieces[warp][lane] = mine;
  __syncwarp();
  if (lane == 0) {
    s.cursors[warp] = c;
    s.readers[warp].next = 0;
  }
  __syncwarp();
}

// Starts the copy of the next piece, which lane `next` knows, into a slot; nothing when there is no more.
__device__ __forceinline__ void request(const Piece& known, std::uint32_t next, std::uint8_t* slot,
                                        std::uint64_t* barrier) {
  const std::uint32_t lane = thread_index() % 32;
#if __CUDA_ARCH__ >= 900
  if (lane == next && known.word != 0) slot_copy(barrier, slot, known.from(), known.bytes());
#else
  static_cast<void>(barrier);
  const Piece piece = {__shfl_sync(~0u, known.word, static_cast<int>(next))};
#pragma unroll 1
  for (std::uint32_t i = lane * 16; i < piece.bytes(); i += 512) copy16(slot + i, piece.from() + i);
  copies_commit();
#endif
}

// The ring of a warp.
__device__ __forceinline__ std::uint8_t* ring_of(const DecodeJob& job, std::uint8_t* rings,
                                                 std::uint32_t warp) {
  return rings + warp * job.slots * job.slot_bytes;
}

// The round's first copies.
template <int Pieces>
__device__ __forceinline__ void request_first(DecodeShared& s, const DecodeOp* ops, std::uint8_t* rings) {
  const std::uint32_t warp = thread_index() / 32;
  const std::uint32_t lane = thread_index() % 32;
  if (lane == 0) {
    CursorState c = {s.job.first_op, 0, 0, 0};
    open_product<Pieces>(s, ops, c);
    s.cursors[warp] = c;
    s.readers[warp] = {0, 0, 32};
  }
  s.pieces[warp][lane] = {};
  __syncwarp();
  plan_pieces<Pieces>(s, ops, 32);
  const Piece known = s.pieces[warp][lane];
#pragma unroll 1
  for (std::uint32_t i = 0; i < s.job.slots; ++i)
    request(known, i, ring_of(s.job, rings, warp) + i * s.job.slot_bytes, s.barriers[warp] + i);
  if (lane == 0) s.readers[warp].next = s.job.slots;
  __syncwarp();
}

// What a warp reads from its ring.
struct Reader {
  std::uint32_t slot;
  unsigned parity;
  Piece known;  // by this lane
  std::uint32_t next_piece;

  __device__ __forceinline__ explicit Reader(const DecodeShared& s) {
    const ReaderState& state = s.readers[thread_index() / 32];
    slot = state.slot;
    parity = state.parity;
    next_piece = state.next;
    known = s.pieces[thread_index() / 32][thread_index() % 32];
  }
  // For the next piece of weights.
  template <int Pieces>
  __device__ __forceinline__ void ask(DecodeShared& s, const DecodeOp* ops, std::uint8_t* slot_at,
                                      std::uint64_t* barrier) {
    if (next_piece == 32) {
      leave(s);
      plan_pieces<Pieces>(s, ops, 32);
      known = s.pieces[thread_index() / 32][thread_index() % 32];
      next_piece = 0;
    }
    request(known, next_piece++, slot_at, barrier);
  }
  __device__ __forceinline__ void leave(DecodeShared& s) const {
    if (thread_index() % 32 == 0) s.readers[thread_index() / 32] = {slot, parity, next_piece};
    __syncwarp();
  }
  __device__ __forceinline__ void wait(std::uint64_t* barriers, std::uint32_t slots) const {
#if __CUDA_ARCH__ >= 900
    static_cast<void>(slots);
    slot_wait(barriers + slot, parity);
#else
    static_cast<void>(barriers);
    // As many groups are under way as there are slots; the oldest must have ended.
    switch (slots) {
      case 1:
        copies_wait<0>();
        break;
      case 2:
        copies_wait<1>();
        break;
      case 3:
        copies_wait<2>();
        break;
      case 4:
        copies_wait<3>();
        break;
      case 5:
        copies_wait<4>();
        break;
      case 6:
        copies_wait<5>();
        break;
      case 7:
        copies_wait<6>();
        break;
      default:
        copies_wait<7>();
        break;
    }
    __syncwarp();
#endif
  }
  __device__ __forceinline__ void next(std::uint32_t slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// ---- the product

// A lane's share of the operand for a chunk. Of up to four rows (`Few`) the eight columns of a product are
// the high and low halves of each; else eight rows' high halves, then their low ones.
template <bool Few>
struct Columns;
template <>
struct Columns<false> {
  uint4 steps[4];
  float2 sums[2];  // of each 32-block
  __device__ void load(const std::uint32_t* reads, std::uint32_t step_words, const float* from,
                       std::uint32_t pitch) {
#pragma unroll
    for (int i = 0; i < 4; ++i) steps[i] = *reinterpret_cast<const uint4*>(reads + i * step_words);
#pragma unroll
    for (int block = 0; block < 2; ++block)
      sums[block] = *reinterpret_cast<const float2*>(from + block * pitch);
  }
};
template <>
struct Columns<true> {
  uint2 steps[4];
  float sums[2];
  __device__ void load(const std::uint32_t* reads, std::uint32_t step_words, const float* from,
                       std::uint32_t pitch) {
#pragma unroll
    for (int i = 0; i < 4; ++i) steps[i] = *reinterpret_cast<const uint2*>(reads + i * step_words);
#pragma unroll
    for (int block = 0; block < 2; ++block) sums[block] = from[block * pitch];
  }
};

// Adds a chunk to the sums of eight rows: rows r and r + 8 (r = lane / 4) of columns 2 (lane % 4) and the
// next.
template <Format F>
__device__ __forceinline__ void add_chunk(const Fragment<F>& weights, const unsigned (&a)[4][4],
                                          const Columns<false>& x, float (&sum)[4]) {
  using W = Fragment<F>;
  // Chains of products: each scale's high halves (with the offset) and its low ones.
  float high[W::kScales][4] = {};
  float low[W::kScales][4] = {};
  if constexpr (W::kOffset) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      high[block][0] = x.sums[block].x * W::kOffset0;
      high[block][1] = x.sums[block].y * W::kOffset0;
      high[block][2] = x.sums[block].x * W::kOffset1;
      high[block][3] = x.sums[block].y * W::kOffset1;
    }
  }
#pragma unroll
  for (int i = 0; i < 4 / W::kScales; ++i) {
#pragma unroll
    for (int k = 0; k < W::kScales; ++k) {
      const int at = k * (4 / W::kScales) + i;
      mma(high[k], a[at], x.steps[at].x, x.steps[at].y);
      mma(low[k], a[at], x.steps[at].z, x.steps[at].w);
    }
  }
#pragma unroll
  for (int k = 0; k < W::kScales; ++k) {
    sum[0] = fmaf(weights.scale[k].x, high[k][0] + low[k][0], sum[0]);
    sum[1] = fmaf(weights.scale[k].x, high[k][1] + low[k][1], sum[1]);
    sum[2] = fmaf(weights.scale[k].y, high[k][2] + low[k][2], sum[2]);
    sum[3] = fmaf(weights.scale[k].y, high[k][3] + low[k][3], sum[3]);
    if constexpr (W::kMinima) {
      sum[0] = fmaf(weights.minimum[k].x, x.sums[k].x, sum[0]);
      sum[1] = fmaf(weights.minimum[k].x, x.sums[k].y, sum[1]);
      sum[2] = fmaf(weights.minimum[k].y, x.sums[k].x, sum[2]);
      sum[3] = fmaf(weights.minimum[k].y, x.sums[k].y, sum[3]);
    }
  }
}
// Of up to four: rows r and r + 8 of column lane % 4, with half of the products.
template <Format F>
__device__ __forceinline__ void add_chunk(const Fragment<F>& weights, const unsigned (&a)[4][4],
                                          const Columns<true>& x, float (&sum)[2]) {
  using W = Fragment<F>;
  float c[W::kScales][4] = {};  // high, low of row r; of r + 8
  if constexpr (W::kOffset) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      c[block][0] = x.sums[block] * W::kOffset0;
      c[block][2] = x.sums[block] * W::kOffset1;
    }
  }
#pragma unroll
  for (int i = 0; i < 4 / W::kScales; ++i) {
#pragma unroll
    for (int k = 0; k < W::kScales; ++k) {
      const int at = k * (4 / W::kScales) + i;
      mma(c[k], a[at], x.steps[at].x, x.steps[at].y);
    }
  }
#pragma unroll
  for (int k = 0; k < W::kScales; ++k) {
    sum[0] = fmaf(weights.scale[k].x, c[k][0] + c[k][1], sum[0]);
    sum[1] = fmaf(weights.scale[k].y, c[k][2] + c[k][3], sum[1]);
    if constexpr (W::kMinima) {
      sum[0] = fmaf(weights.minimum[k].x, x.sums[k], sum[0]);
      sum[1] = fmaf(weights.minimum[k].y, x.sums[k], sum[1]);
    }
  }
}

// Adds `Together` chunks, one after the other. What they need is read before the first is multiplied.
template <Format F, int Tiles, bool Few, int Together>
__device__ __forceinline__ void add_chunks(const std::uint8_t* from,
                                           const std::uint32_t* const (&reads)[Tiles],
                                           std::uint32_t step_words, std::uint32_t offset, const float* sums,
                                           int lane, float (&sum)[Tiles][Few ? 2 : 4]) {
  Fragment<F> weights[Together];
#pragma unroll
  for (int t = 0; t < Together; ++t) weights[t].load(from + t * chunk_bytes(F), lane);
  unsigned a[Together][4][4];
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
    Columns<Few> x[Together];
#pragma unroll
    for (int t = 0; t < Together; ++t)
      x[t].load(reads[n] + offset + t * 4 * step_words, step_words, sums + t * 16 * Tiles + n * 8, 8 * Tiles);
    // To the compiler a border: else it reads just before it multiplies, and waits.
    if constexpr (Together > 1) __syncwarp();
    if (n == 0) {
#pragma unroll
      for (int t = 0; t < Together; ++t) {
        weights[t].template step<0>(a[t][0]);
        weights[t].template step<1>(a[t][1]);
        weights[t].template step<2>(a[t][2]);
        weights[t].template step<3>(a[t][3]);
      }
    }
#pragma unroll
    for (int t = 0; t < Together; ++t) add_chunk<F>(weights[t], a[t], x[t], sum[n]);
  }
}

// What a warp knows of its part in a product.
template <int Tiles>
struct Share {
  const std::uint32_t* reads[Tiles];  // of the operand, at the slice's first chunk
  const float* sums;
  float2 scales[Tiles];
  std::uint32_t step_words;
  std::uint32_t count;  // chunks of the slice
  std::uint32_t rows, first_row;
  std::uint32_t group;
  std::uint32_t warp;
  int lane;
  std::uint8_t* ring;       // of the warp
  std::uint64_t* barriers;  // of its slots
  std::uint32_t slots, slot_bytes;
};

// Tiles `tile`, tile + workers, … below `end` of one matrix with `matrix_rows` rows; `first`: its first tile.
// Gives the tile after the last. `Few`: of up to four rows.
template <Format F, int Tiles, bool Few>
__device__ __forceinline__ std::uint32_t multiply_tiles(DecodeShared& s, const DecodeOp* ops, Reader& reader,
                                                        const Share<Tiles>& my, std::uint32_t tile,
                                                        std::uint32_t workers, std::uint32_t first,
                                                        std::uint32_t end, std::uint32_t matrix_rows,
                                                        float* reduce, unsigned& flip, float* out,
                                                        std::uint32_t width) {
  constexpr std::uint32_t kGroupWarps = kSlices / Tiles;
  constexpr std::uint32_t kBytes = chunk_bytes(F);
  const std::uint32_t at_once = chunks_of_slot(F, my.slot_bytes);
  const std::uint32_t rows = my.rows;
  const int lane = my.lane;
#pragma unroll 1
  for (; tile < end; tile += workers) {
    constexpr int kLaneRows = Few ? 1 : 2;  // of a tile of rows, that a lane has sums of
    float sum[Tiles][2 * kLaneRows] = {};
    std::uint32_t offset = 0;
    const float* sums = my.sums;
#pragma unroll 1
    for (std::uint32_t left = my.count; left > 0;) {
      reader.wait(my.barriers, my.slots);
      std::uint8_t* const slot = my.ring + reader.slot * my.slot_bytes;
      const std::uint8_t* stage = slot;
      std::uint32_t n = min(at_once, left);
      left -= n;
      // Two chunks at a time keep the tensor cores busy.
      constexpr int kTogether = Few ? 2 : 1;
#pragma unroll 1
      while (n > 0) {
        if (n >= kTogether) {
          add_chunks<F, Tiles, Few, kTogether>(stage, my.reads, my.step_words, offset, sums, lane, sum);
          n -= kTogether;
          stage += kTogether * kBytes;
          offset += kTogether * 4 * my.step_words;
          sums += kTogether * 16 * Tiles;
        } else {
          add_chunks<F, Tiles, Few, 1>(stage, my.reads, my.step_words, offset, sums, lane, sum);
          offset += 4 * my.step_words;
          sums += 16 * Tiles;
          break;
        }
      }
      __syncwarp();
      reader.ask<Tiles>(s, ops, slot, my.barriers + reader.slot);
      reader.next(my.slots);
    }
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
      sum[n][0] *= Fragment<F>::kUnit0 * my.scales[n].x;
      sum[n][kLaneRows] *= Fragment<F>::kUnit1 * my.scales[n].x;
      if constexpr (Few) continue;
      sum[n][1] *= Fragment<F>::kUnit0 * my.scales[n].y;
      sum[n][3] *= Fragment<F>::kUnit1 * my.scales[n].y;
    }
    const std::uint32_t tile_row = (tile - first) * kTileRows;
    if constexpr (kGroupWarps == 1) {
      const std::uint32_t w = tile_row + lane / 4;
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t row = n * 8 + 2 * (lane % 4) + i % 2;
          if (row < rows && w + i / 2 * 8 < matrix_rows)
            out[std::size_t{my.first_row + row} * width + w + i / 2 * 8] = sum[n][i];
        }
      }
    } else {
      flip ^= 1;
      float* mine = reduce + (flip * kWarps + my.warp) * 16 * rows;
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2 * kLaneRows; ++i) {
          const std::uint32_t row = n * 8 + kLaneRows * (lane % 4) + i % kLaneRows;
          if (row < rows) mine[row * 16 + lane / 4 + i / kLaneRows * 8] = sum[n][i];
        }
      }
      group_sync(1 + static_cast<int>(my.group), kGroupWarps * 32);
      const float* all = reduce + (flip * kWarps + my.group * kGroupWarps) * 16 * rows;
#pragma unroll 1
      for (std::uint32_t i = my.warp % kGroupWarps * 32 + lane; i < 16 * rows; i += kGroupWarps * 32) {
        float v = all[i] + all[16 * rows + i];
        if constexpr (kGroupWarps == 4) v = v + (all[2 * 16 * rows + i] + all[3 * 16 * rows + i]);
        const std::uint32_t w = tile_row + i % 16;
        if (w < matrix_rows) out[std::size_t{my.first_row + i / 16} * width + w] = v;
      }
    }
  }
  return tile;
}

// One pass of product `o`: the operand that the block's threads have written to shared memory times all tiles
// of this block; out [parts * Tiles][out_rows] [width], rows first_row .. of it. `reduce`: [2][warps][16 *
// rows]. A function of its own, so that its loops have the registers to themselves.
template <int Tiles, bool Few>
__device__ __noinline__ void product(DecodeShared& s, const DecodeOp* ops, std::uint8_t* rings,
                                     std::uint8_t* region, float* reduce, std::uint32_t o,
                                     std::uint32_t pass_rows, float* out, std::uint32_t out_rows,
                                     std::uint32_t first_row) {
  const DecodeOp& op = ops[o];
  const MyPart part = my_part<Tiles>(s, op);
  const Operand x = shared_operand<Tiles>(region, part, pass_rows);
  if (part.worker >= part.workers) return;  // this block has nothing to do, and asked for nothing
  constexpr std::uint32_t kGroupWarps = kSlices / Tiles;
  const std::uint32_t thread = thread_index();
  Share<Tiles> my;
  my.lane = thread % 32;
  my.warp = thread / 32;
  my.group = my.warp / kGroupWarps;
  my.rows = x.rows;
  my.first_row = first_row;
  my.step_words = x.rows * kStepWords;
  my.slots = s.job.slots;
  my.slot_bytes = s.job.slot_bytes;
  my.barriers = s.barriers[my.warp];
  const std::uint32_t begin = part.begin;
  my.count = part.end - begin;
  my.sums = x.sums + (begin - part.chunk0) * 16 * Tiles + (Few ? 1 : 2) * (my.lane % 4);
  my.ring = ring_of(s.job, rings, my.warp);
  Reader reader(s);
  __syncthreads();  // the operand is there
  const float* scales = x.scales + (part.slice - part.slice0) * x.pitch;
  const std::uint32_t* steps = x.steps + (begin - part.chunk0) * 4 * my.step_words + (my.lane % 4) * 4;
  // Columns of B without a row read the last one's; nobody reads their sums.
  if constexpr (Few) {
    my.reads[0] = steps + min(my.lane / 8u, x.rows - 1) * kStepWords + my.lane / 4 % 2 * 2;
    my.scales[0].x = scales[my.lane % 4];
  } else {
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
      my.reads[n] = steps + min(n * 8 + my.lane / 4u, x.rows - 1) * kStepWords;
      my.scales[n] = *reinterpret_cast<const float2*>(scales + n * 8 + 2 * (my.lane % 4));
    }
  }
  out += std::size_t{part.index} * out_rows * op.width;
  unsigned flip = 0;
  std::uint32_t tile = part.worker;
#pragma unroll 1
  for (int which = 0; which < 3; ++which) {
    const std::uint32_t first = which == 0 ? 0u : op.tiles_end[which - 1];
    const std::uint32_t end = op.tiles_end[which];
    const std::uint32_t matrix_rows = op.rows[which];
    switch (static_cast<Format>(op.format[which])) {
      case Format::kQ4:
        tile = multiply_tiles<Format::kQ4, Tiles, Few>(s, ops, reader, my, tile, part.workers, first, end,
                                                       matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kQ8:
        tile = multiply_tiles<Format::kQ8, Tiles, Few>(s, ops, reader, my, tile, part.workers, first, end,
                                                       matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kH16:
        tile = multiply_tiles<Format::kH16, Tiles, Few>(s, ops, reader, my, tile, part.workers, first, end,
                                                        matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kA4:
        tile = multiply_tiles<Format::kA4, Tiles, Few>(s, ops, reader, my, tile, part.workers, first, end,
                                                       matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kA8:
        tile = multiply_tiles<Format::kA8, Tiles, Few>(s, ops, reader, my, tile, part.workers, first, end,
                                                       matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kS8:
        tile = multiply_tiles<Format::kS8, Tiles, Few>(s, ops, reader, my, tile, part.workers, first, end,
                                                       matrix_rows, reduce, flip, out, op.width);
        break;
    }
    out += matrix_rows;
  }
  reader.leave(s);
}

}  // namespace gem::cuda
