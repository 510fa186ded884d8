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

// A chunk of 64 columns of 16 rows as the A operand. step() gives the four registers of 16 columns: rows r
// and r + 8 (r = lane / 4) alternating; scale() those two rows' scales. Codes become f16 without arithmetic
// where their bits are those of a subnormal: code * 2^-24. What that leaves out (kUnit, and the offset times
// the sum of the activations) is made good on the f32 sums.
template <Format F>
struct Fragment;

// The lane's nibbles of a chunk as registers.
__device__ __forceinline__ void nibbles_step(const uint4& words, int step, unsigned (&a)[4]) {
  const unsigned w = step == 0 ? words.x : step == 1 ? words.y : step == 2 ? words.z : words.w;
  const unsigned v = w >> 8;
  a[0] = w & 0x000f000fu;
  a[1] = w & 0x00f000f0u;
  a[2] = v & 0x000f000fu;
  a[3] = v & 0x00f000f0u;
}
// Its bytes: in the mantissa of 1024 a byte is 1024 + byte; a signed one is taken plus 128.
template <bool Signed>
__device__ __forceinline__ void bytes_step(const uint4 (&words)[2], int step, unsigned (&a)[4]) {
  const uint4& q = words[step / 2];
  constexpr unsigned kFlip = Signed ? 0x80808080u : 0u;
  const unsigned first = (step % 2 == 0 ? q.x : q.z) ^ kFlip;
  const unsigned second = (step % 2 == 0 ? q.y : q.w) ^ kFlip;
  const unsigned bias = half_pair(Signed ? 1152.0f : 1024.0f);
  a[0] = subtract(__byte_perm(first, 0x64646464u, 0x4240), bias);
  a[1] = subtract(__byte_perm(first, 0x64646464u, 0x4341), bias);
  a[2] = subtract(__byte_perm(second, 0x64646464u, 0x4240), bias);
  a[3] = subtract(__byte_perm(second, 0x64646464u, 0x4341), bias);
}

// Two f16 scales of block k.
__device__ __forceinline__ float2 both_scales(uint2 scales, int k) {
  return __half22float2(*reinterpret_cast<const __half2*>(k == 0 ? &scales.x : &scales.y));
}

template <>
struct Fragment<Format::kQ4> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = true, kMinima = false;
  // A code c of row r stands as c 2^-24, of row r + 8 as c 2^-20; c - 8 is meant.
  static constexpr float kUnit0 = 0x1p24f, kUnit1 = 0x1p20f;
  static constexpr float kOffset0 = -0x1p-21f, kOffset1 = -0x1p-17f;
  uint4 words;
  uint2 scales;  // f16, rows {r, r + 8} of each 32-block
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    scales = *reinterpret_cast<const uint2*>(chunk + 512 + (lane >> 2) * 8);
  }
  __device__ float2 scale(int k) const { return both_scales(scales, k); }
  __device__ void step(int i, unsigned (&a)[4]) const { nibbles_step(words, i, a); }
};

template <>
struct Fragment<Format::kQ8> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = false;
  static constexpr float kUnit0 = 1, kUnit1 = 1, kOffset0 = 0, kOffset1 = 0;
  uint4 words[2];
  uint2 scales;
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
    scales = *reinterpret_cast<const uint2*>(chunk + 1024 + (lane >> 2) * 8);
  }
  __device__ float2 scale(int k) const { return both_scales(scales, k); }
  __device__ void step(int i, unsigned (&a)[4]) const { bytes_step<true>(words, i, a); }
};

template <>
struct Fragment<Format::kH16> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = false;
  static constexpr float kUnit0 = 1, kUnit1 = 1, kOffset0 = 0, kOffset1 = 0;
  uint4 words[4];
  float2 scales[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
#pragma unroll
    for (int s = 0; s < 4; ++s) words[s] = *reinterpret_cast<const uint4*>(chunk + s * 512 + lane * 16);
    const float4 s = *reinterpret_cast<const float4*>(chunk + 2048 + (lane >> 2) * 16);
    scales[0] = make_float2(s.x, s.y);
    scales[1] = make_float2(s.z, s.w);
  }
  __device__ float2 scale(int k) const {
    return scales[k];
  }
  __device__ void step(int i, unsigned (&a)[4]) const {
    a[0] = words[i].x;
    a[1] = words[i].y;
    a[2] = words[i].z;
    a[3] = words[i].w;
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
  float2 scales[2], minimum[2];  // minima in units of the sums
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    load_affine(chunk + 512, lane, 0x1p-24f, 0x1p-20f, scales, minimum);
  }
  __device__ float2 scale(int k) const { return scales[k]; }
  __device__ void step(int i, unsigned (&a)[4]) const { nibbles_step(words, i, a); }
};

template <>
struct Fragment<Format::kA8> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = true;
  static constexpr float kUnit0 = 1, kUnit1 = 1, kOffset0 = 0, kOffset1 = 0;
  uint4 words[2];
  float2 scales[2], minimum[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
    load_affine(chunk + 1024, lane, 1, 1, scales, minimum);
  }
  __device__ float2 scale(int k) const { return scales[k]; }
  __device__ void step(int i, unsigned (&a)[4]) const { bytes_step<false>(words, i, a); }
};

template <>
struct Fragment<Format::kS8> {
  static constexpr int kScales = 4;
  static constexpr bool kOffset = false, kMinima = false;
  static constexpr float kUnit0 = 1, kUnit1 = 1, kOffset0 = 0, kOffset1 = 0;
  uint4 words[2];
  float2 scales[4];  // of each 16 columns
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      scales[s] = *reinterpret_cast<const float2*>(chunk + 1024 + (s * 8 + (lane >> 2)) * 8);
  }
  __device__ float2 scale(int k) const {
    return scales[k];
  }
  __device__ void step(int i, unsigned (&a)[4]) const {
    bytes_step<true>(words, i, a);
  }
};

// ---- the ring of copies

// Chunks that a slot of the ring takes at once: a power of two, for divisions; slots are a few chunks of the
// smallest format.
__device__ __forceinline__ std::uint32_t log_chunks_of_slot(std::uint32_t chunk_bytes,
                                                            std::uint32_t slot_bytes) {
  return slot_bytes >= 4 * chunk_bytes ? 2 : slot_bytes >= 2 * chunk_bytes ? 1 : 0;
}
__device__ __forceinline__ std::uint32_t chunks_of_slot(Format format, std::uint32_t slot_bytes) {
  return 1u << log_chunks_of_slot(chunk_bytes(format), slot_bytes);
}

// Whether a warp multiplies two of its tiles at once, so that what it reads of the operand serves both: where
// it reads much of it. Their pieces of weights are smaller for it, which costs where little is multiplied.
template <int Groups>
constexpr bool kPaired = Groups == 4;
template <int Groups>
__device__ __forceinline__ bool pairs_tiles(const DecodeOp& op, std::uint32_t log_chunks_of_slot) {
  return kPaired<Groups> && op.near && log_chunks_of_slot > 0;
}

// Pieces that a warp may use before a step looks for more: seldom is better, but a product should not run
// out.
constexpr std::uint32_t kUsedBeforePlanning = 14;

// Where the run of tiles of one format that has `tile` in it ends. Matrices of one format are gone through
// together.
__device__ __forceinline__ std::uint32_t run_end(const DecodeOp& op, std::uint32_t tile) {
  const bool same = op.format[0] == op.format[1] && op.format[1] == op.format[2];
  if (same || tile >= op.tiles_end[1]) return op.tiles_end[2];
  return tile < op.tiles_end[0] ? op.tiles_end[0] : op.tiles_end[1];
}
__device__ __forceinline__ int matrix_of(const DecodeOp& op, std::uint32_t tile) {
  return tile < op.tiles_end[0] ? 0 : tile < op.tiles_end[1] ? 1 : 2;
}
// A chunk of a tile. `unit`: a chunk's 16 bytes.
__device__ __forceinline__ const std::uint8_t* chunk_at(const DecodeOp& op, std::uint32_t tile,
                                                        std::uint32_t chunk, std::uint32_t unit) {
  const std::uint8_t* data = op.data[0];
  if (tile >= op.tiles_end[0]) {
    const bool last = tile >= op.tiles_end[1];
    data = last ? op.data[2] : op.data[1];
    tile -= last ? op.tiles_end[1] : op.tiles_end[0];
  }
  return data + std::uint64_t{tile * op.chunks + chunk} * (unit * 16);
}
// Divides by a number whose inverse is known to a few units in the last place: exact for numbers as small as
// these.
__device__ __forceinline__ std::uint32_t whole_times(std::uint32_t n, float inverse) {
  return static_cast<std::uint32_t>((static_cast<float>(n) + 0.5f) * inverse);
}

// A warp's tiles in a run of tiles of one format, as planning wants them: one after the other, or two at a
// time and perhaps a last one.
struct Run {
  std::uint32_t tile = 0, tiles = 0;  // the first one and how many, each `workers` after the one before
  std::uint32_t workers = 0;
  std::uint32_t begin = 0, count = 0;  // chunks
  std::uint32_t unit = 0;              // a chunk's 16 bytes
  std::uint32_t log_at_once = 0;       // of the chunks of a piece of one tile
  std::uint32_t pairs = 0;

  __device__ __forceinline__ std::uint32_t log_of_pair() const {
    return log_at_once > 0 ? log_at_once - 1 : 0;
  }
  // Pieces.
  __device__ __forceinline__ std::uint32_t of_tile() const {
    return (count + (1u << log_at_once) - 1) >> log_at_once;
  }
  __device__ __forceinline__ std::uint32_t of_pair() const {
    return (count + (1u << log_of_pair()) - 1) >> log_of_pair();
  }
  __device__ __forceinline__ std::uint32_t pieces() const {
    return pairs * of_pair() + (tiles - 2 * pairs) * of_tile();
  }
};
template <int Pieces>
__device__ __forceinline__ Run run_of(const DecodeShared& s, const DecodeOp& o, std::uint32_t run) {
  constexpr std::uint32_t kGroupWarps = kSlices / Pieces;
  const std::uint32_t warp = thread_index() / 32;
  const CutHere& here = s.cuts[o.cut];
  const std::uint32_t worker = here.worker0 + warp / kGroupWarps;
  Run r;
  r.workers = here.workers;
  r.begin = here.begin[warp % kGroupWarps];
  r.count = here.begin[warp % kGroupWarps + 1] - r.begin;
  r.unit = o.unit[run];
  r.log_at_once = log_chunks_of_slot(r.unit * 16, s.job.slot_bytes);
  const bool same = o.format[0] == o.format[1] && o.format[1] == o.format[2];
  const std::uint32_t first = run == 0 ? 0 : o.tiles_end[run - 1];
  const std::uint32_t end = !same ? o.tiles_end[run] : run == 0 ? o.tiles_end[2] : 0;
  const auto steps = [&](std::uint32_t tiles) { return whole_times(tiles + r.workers - 1, here.per_worker); };
  r.tile = worker;
  if (worker < first) r.tile += steps(first - worker) * r.workers;
  if (worker >= r.workers || r.count == 0 || r.tile >= end) return r;
  r.tiles = steps(end - r.tile);
  r.pairs = pairs_tiles<Pieces>(o, r.log_at_once) ? r.tiles / 2 : 0;
  return r;
}

// Finds the pieces of weights that the warp will multiply after those that it knows, so that these are 32
// again, as the loops that multiply have no time for it. Not before `least` were used. The other blocks wait
// for it, so it takes few instructions: every lane looks at one of the next 32 runs, then finds in whose run
// the piece lies that it will know.
template <int Pieces>
__device__ __noinline__ void plan_pieces(DecodeShared& s, const DecodeOp* ops, std::uint32_t least) {
  constexpr std::uint32_t kRows = 8 * Pieces;
  const std::uint32_t warp = thread_index() / 32;
  const std::uint32_t lane = thread_index() % 32;
  const std::uint32_t next = s.readers[warp].next;
  if (next < least) return;
  Piece mine = s.pieces[warp][(lane + next) % 32];
  std::int32_t second = kPaired<Pieces> ? s.seconds[warp][(lane + next) % 32] : 0;
  CursorState c = s.cursors[warp];
  __syncwarp();
  std::uint32_t known = 32 - next;
  if (lane >= known) mine = Piece{};
  const std::uint32_t head = s.job.layer_count * kOpsOfLayer;
  const std::uint32_t passes = (s.job.row_count + kRows - 1) / kRows;
  const std::uint32_t head_passes = (s.job.logit_count + kRows - 1) / kRows;
  const std::uint32_t end = s.job.end_products;
  // The place of the run that is `ahead` runs after the cursor's; three for each pass of a product.
  const auto place = [&](std::uint32_t ahead) {
    CursorState at = {c.op, 0, 0, 0};
    std::uint32_t run = ahead + c.pass * 3 + c.run;
    const std::uint32_t of_op = passes * 3;
    if (at.op < head) {
      const std::uint32_t whole =
          min(whole_times(run, __fdividef(1.0f, static_cast<float>(of_op))), head - at.op);
      at.op += whole;
      run -= whole * of_op;
    }
    at.pass = whole_times(run, 1.0f / 3);
    at.run = run - at.pass * 3;
    if (at.op == head && at.pass >= head_passes) at.op = head + 1;
    return at;
  };
#pragma unroll 1
  while (known < 32 && c.op < end) {
    const CursorState at = place(lane);
    Run run;
    if (at.op < end) run = run_of<Pieces>(s, ops[at.op], at.run);
    // Pieces in the runs up to this lane's.
    const std::uint32_t own = run.pieces() - (lane == 0 ? c.piece : 0);
    std::uint32_t until = own;
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
      const std::uint32_t before = __shfl_up_sync(~0u, until, step);
      if (lane >= step) until += before;
    }
    const std::uint32_t used = min(__shfl_sync(~0u, until, 31), 32 - known);
    const bool found = lane >= known && lane - known < used;
    const std::uint32_t wanted = found ? lane - known : 0;
    int owner = 0;  // the lane in whose run it lies
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      if (__shfl_sync(~0u, until, owner + step - 1) <= wanted) owner += step;
    }
    const auto of_owner = [&](std::uint32_t value) { return __shfl_sync(~0u, value, owner); };
    const std::uint32_t start = of_owner(until - own);
    const std::uint32_t op = of_owner(at.op);
    const std::uint32_t chunks = of_owner(run.begin << 16 | run.count);
    const std::uint32_t sizes = of_owner(run.workers << 16 | run.unit << 8 | run.log_at_once);
    Run theirs;
    theirs.tile = of_owner(run.tile);
    if constexpr (kPaired<Pieces>) theirs.pairs = of_owner(run.pairs);
    theirs.workers = sizes >> 16;
    theirs.unit = sizes >> 8 & 0xff;
    theirs.log_at_once = sizes & 0xff;
    theirs.begin = chunks >> 16;
    theirs.count = chunks & 0xffff;
    if (found) {
      const DecodeOp& o = ops[op];
      std::uint32_t i = wanted - start + (owner == 0 ? c.piece : 0);
      const std::uint32_t in_pairs = theirs.pairs * theirs.of_pair();
      const bool two = kPaired<Pieces> && i < in_pairs;
      if (!two) i -= in_pairs;
      const std::uint32_t of_piece = two ? theirs.of_pair() : theirs.of_tile();
      const std::uint32_t log_of_piece = two ? theirs.log_of_pair() : theirs.log_at_once;
      const std::uint32_t n = whole_times(i, __fdividef(1.0f, static_cast<float>(of_piece)));
      const std::uint32_t tile = theirs.tile + (two ? 2 * n : 2 * theirs.pairs + n) * theirs.workers;
      const std::uint32_t chunk = (i - n * of_piece) << log_of_piece;
      const std::uint32_t bytes = min(1u << log_of_piece, theirs.count - chunk) * theirs.unit * 16;
      const std::uint8_t* from = chunk_at(o, tile, theirs.begin + chunk, theirs.unit);
      mine = Piece::of(from, bytes);
      second = two ? static_cast<std::int32_t>(
                         (chunk_at(o, tile + theirs.workers, theirs.begin + chunk, theirs.unit) - from) / 16)
                   : 0;
    }
    known += used;
    // The first piece that is not known lies in the run after those that are used up.
    const unsigned used_up = __ballot_sync(~0u, until <= used);
    if (used_up == ~0u) {
      c = place(32);
      continue;
    }
    const int last = __popc(used_up);
    const std::uint32_t into = used - __shfl_sync(~0u, until - own, last);
    c = {__shfl_sync(~0u, at.op, last), __shfl_sync(~0u, at.pass, last), __shfl_sync(~0u, at.run, last),
         into + (last == 0 ? c.piece : 0)};
  }
  s.pieces[warp][lane] = mine;
  if constexpr (kPaired<Pieces>) s.seconds[warp][lane] = second;
  __syncwarp();
  if (lane == 0) {
    s.cursors[warp] = c;
    s.readers[warp].next = 0;
  }
  __syncwarp();
}

// Starts the copies of piece `next` into a slot; nothing when there is none. The second tile's chunks come
// after the first one's.
template <int Pieces>
__device__ __forceinline__ void request(const DecodeShared& s, std::uint32_t next, std::uint8_t* slot,
                                        std::uint64_t* barrier) {
  const std::uint32_t warp = thread_index() / 32;
  const Piece piece = s.pieces[warp][next];
  const std::int32_t second = kPaired<Pieces> ? s.seconds[warp][next] : 0;
  const std::uint8_t* from = piece.from();
  const std::uint32_t bytes = piece.bytes();
#if __CUDA_ARCH__ >= 900
  if (!one_lane() || piece.word == 0) return;
  slot_expect(barrier, second != 0 ? 2 * bytes : bytes);
  slot_copy(barrier, slot, from, bytes);
  if (second != 0) slot_copy(barrier, slot + bytes, from + std::int64_t{second} * 16, bytes);
#else
  static_cast<void>(barrier);
#pragma unroll 1
  for (std::uint32_t i = thread_index() % 32 * 16; i < bytes; i += 512) {
    copy16(slot + i, from + i);
    if (second != 0) copy16(slot + bytes + i, from + std::int64_t{second} * 16 + i);
  }
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
    s.cursors[warp] = {s.job.first_op, 0, 0, 0};
    s.readers[warp] = {0, 0, 32};
  }
  s.pieces[warp][lane] = {};
  __syncwarp();
  plan_pieces<Pieces>(s, ops, 32);
#pragma unroll 1
  for (std::uint32_t i = 0; i < s.job.slots; ++i) {
    request<Pieces>(s, i, ring_of(s.job, rings, warp) + i * s.job.slot_bytes, s.barriers[warp] + i);
  }
  if (lane == 0) s.readers[warp].next = s.job.slots;
  __syncwarp();
}

// What a warp reads from its ring.
struct Reader {
  std::uint32_t slot;
  unsigned parity;
  std::uint32_t next_piece;

  __device__ __forceinline__ explicit Reader(const DecodeShared& s) {
    const ReaderState& state = s.readers[thread_index() / 32];
    slot = state.slot;
    parity = state.parity;
    next_piece = state.next;
  }
  // For the next piece of weights.
  template <int Pieces>
  __device__ __forceinline__ void ask(DecodeShared& s, const DecodeOp* ops, std::uint8_t* slot_at,
                                      std::uint64_t* barrier) {
    if (next_piece == 32) {
      leave(s);
      plan_pieces<Pieces>(s, ops, 32);
      next_piece = 0;
    }
    request<Pieces>(s, next_piece++, slot_at, barrier);
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

// Of up to four rows (`Few`) the eight columns of a product are the high and low halves of each; else they
// are eight rows' high halves, then their low ones.

// Words of the operand from a step to the next.
template <int Groups, bool Few>
constexpr std::uint32_t kStep = step_rows(8 * Groups, Few ? kFewRows : 8 * Groups) * kStepWords;

// A lane's share of the operand for the `Steps` steps that share a scale.
template <int Steps>
struct Columns {
  uint4 steps[Steps];
  float2 sums;
  __device__ __forceinline__ void load(const std::uint32_t* reads, std::uint32_t step_words,
                                       const float* from) {
#pragma unroll
    for (int i = 0; i < Steps; ++i) steps[i] = *reinterpret_cast<const uint4*>(reads + i * step_words);
    sums = *reinterpret_cast<const float2*>(from);
  }
};
struct FewColumns {  // for a chunk
  uint2 steps[4];
  float sums[2];
  __device__ __forceinline__ void load(const std::uint32_t* reads, std::uint32_t step_words,
                                       const float* from, std::uint32_t pitch) {
#pragma unroll
    for (int i = 0; i < 4; ++i) steps[i] = *reinterpret_cast<const uint2*>(reads + i * step_words);
#pragma unroll
    for (int block = 0; block < 2; ++block) sums[block] = from[block * pitch];
  }
};

// Adds a chunk of each of `Tiles` tiles to the sums of `Groups` groups of eight rows; tile t's begins at
// from + t * tile_bytes. sum[tile][group]: rows r and r + 8 (r = lane / 4) of columns 2 (lane % 4) and the
// next. What is read of the operand serves all tiles, and is read a stage before it is multiplied.
template <Format F, int Groups, int Tiles>
__device__ __forceinline__ void add_chunk(const std::uint8_t* from, std::uint32_t tile_bytes,
                                          const std::uint32_t* reads, const float* sums, int lane,
                                          float (&sum)[Tiles][Groups][4]) {
  using W = Fragment<F>;
  constexpr int kSteps = 4 / W::kScales;
  constexpr std::uint32_t kWords = kStep<Groups, false>;
  W weights[Tiles];
#pragma unroll
  for (int t = 0; t < Tiles; ++t) weights[t].load(from + t * tile_bytes, lane);
  Columns<kSteps> x[2];
  const auto load = [&](int stage) {
    const int k = stage / Groups;
    const int n = stage % Groups;
    x[stage % 2].load(reads + k * kSteps * kWords + n * 8 * kStepWords, kWords,
                      sums + k * kSteps / 2 * 8 * Groups + n * 8);
  };
  load(0);
#pragma unroll
  for (int k = 0; k < W::kScales; ++k) {
    unsigned a[Tiles][kSteps][4];
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) weights[t].step(k * kSteps + i, a[t][i]);
    }
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
      const int stage = k * Groups + n;
      if (stage + 1 < W::kScales * Groups) load(stage + 1);
      const Columns<kSteps>& c = x[stage % 2];
      // The high halves with the offset times the sum of the activations, and the low ones.
      float start[4] = {};
      if constexpr (W::kOffset) {
        start[0] = c.sums.x * W::kOffset0;
        start[1] = c.sums.y * W::kOffset0;
        start[2] = c.sums.x * W::kOffset1;
        start[3] = c.sums.y * W::kOffset1;
      }
      constexpr float kZero[4] = {};
      float high[Tiles][4];
      float low[Tiles][4];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int t = 0; t < Tiles; ++t) {
          if (i == 0) {
            mma(high[t], start, a[t][i], c.steps[i].x, c.steps[i].y);
            mma(low[t], kZero, a[t][i], c.steps[i].z, c.steps[i].w);
          } else {
            mma(high[t], a[t][i], c.steps[i].x, c.steps[i].y);
            mma(low[t], a[t][i], c.steps[i].z, c.steps[i].w);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
        float(&v)[4] = sum[t][n];
        const float2 scale = weights[t].scale(k);
        v[0] = fmaf(scale.x, high[t][0] + low[t][0], v[0]);
        v[1] = fmaf(scale.x, high[t][1] + low[t][1], v[1]);
        v[2] = fmaf(scale.y, high[t][2] + low[t][2], v[2]);
        v[3] = fmaf(scale.y, high[t][3] + low[t][3], v[3]);
        if constexpr (W::kMinima) {
          const float2 minimum = weights[t].minimum[k];
          v[0] = fmaf(minimum.x, c.sums.x, v[0]);
          v[1] = fmaf(minimum.x, c.sums.y, v[1]);
          v[2] = fmaf(minimum.y, c.sums.x, v[2]);
          v[3] = fmaf(minimum.y, c.sums.y, v[3]);
        }
      }
    }
  }
}

// Adds `Chunks` chunks of a tile, one after the other, to the sums of up to four rows: rows r and r + 8 of
// column lane % 4. With half of the products of eight rows. What they need is read before the first is
// multiplied.
template <Format F, int Chunks>
__device__ __forceinline__ void add_few(const std::uint8_t* from, const std::uint32_t* reads,
                                        const float* sums, int lane, float (&sum)[2]) {
  using W = Fragment<F>;
  constexpr std::uint32_t kWords = kStep<1, true>;
  W weights[Chunks];
  FewColumns x[Chunks];
#pragma unroll
  for (int i = 0; i < Chunks; ++i) weights[i].load(from + i * chunk_bytes(F), lane);
#pragma unroll
  for (int i = 0; i < Chunks; ++i) x[i].load(reads + i * 4 * kWords, kWords, sums + i * 16, 8);
  // To the compiler a border: else it reads just before it multiplies, and waits.
  if constexpr (Chunks > 1) __syncwarp();
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    float c[W::kScales][4] = {};  // high, low of row r; of r + 8
    if constexpr (W::kOffset) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        c[block][0] = x[chunk].sums[block] * W::kOffset0;
        c[block][2] = x[chunk].sums[block] * W::kOffset1;
      }
    }
#pragma unroll
    for (int i = 0; i < 4 / W::kScales; ++i) {
#pragma unroll
      for (int k = 0; k < W::kScales; ++k) {
        const int at = k * (4 / W::kScales) + i;
        unsigned a[4];
        weights[chunk].step(at, a);
        mma(c[k], a, x[chunk].steps[at].x, x[chunk].steps[at].y);
      }
    }
#pragma unroll
    for (int k = 0; k < W::kScales; ++k) {
      const float2 scale = weights[chunk].scale(k);
      sum[0] = fmaf(scale.x, c[k][0] + c[k][1], sum[0]);
      sum[1] = fmaf(scale.y, c[k][2] + c[k][3], sum[1]);
      if constexpr (W::kMinima) {
        sum[0] = fmaf(weights[chunk].minimum[k].x, x[chunk].sums[k], sum[0]);
        sum[1] = fmaf(weights[chunk].minimum[k].y, x[chunk].sums[k], sum[1]);
      }
    }
  }
}

// What a warp knows of its part in a product.
template <int Groups>
struct Share {
  const std::uint32_t* reads;  // of the operand, at the slice's first chunk
  const float* sums;
  float2 scales[Groups];
  std::uint32_t count;  // chunks of the slice
  std::uint32_t rows, first_row;
  std::uint32_t group;
  std::uint32_t warp;
  int lane;
  std::uint8_t* ring;       // of the warp
  std::uint64_t* barriers;  // of its slots
  std::uint32_t slots, slot_bytes;
  float* reduce;
  float* out;  // [rows][width]
  std::uint32_t width;
};

// The sums of a tile, scaled, to where the product's results lie: by every warp, or added up by the warps of
// a group. `column`: of the tile's first row among the results; `valid`: how many of its rows there are.
template <int Groups, bool Few>
__device__ __forceinline__ void write_tile(const Share<Groups>& my, const float (&sum)[Groups][Few ? 2 : 4],
                                           std::uint32_t column, std::uint32_t valid, unsigned& flip) {
  constexpr std::uint32_t kGroupWarps = kSlices / Groups;
  constexpr int kLaneRows = Few ? 1 : 2;
  const std::uint32_t rows = my.rows;
  const int lane = my.lane;
  std::uint32_t width = my.width;
  renew(width);
  float* out = my.out + column;
  if constexpr (kGroupWarps == 1) {
    const std::uint32_t w = lane / 4;
    std::uint32_t row = 2 * (lane % 4);
    out += std::size_t{my.first_row + row} * width + w;
#pragma unroll
    for (int n = 0; n < Groups; ++n, row += 8, out += std::size_t{8} * width) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (row + i % 2 < rows && w + i / 2 * 8 < valid)
          out[i % 2 * std::size_t{width} + i / 2 * 8] = sum[n][i];
      }
    }
  } else {
    flip ^= 1;
    float* mine = my.reduce + (flip * kWarps + my.warp) * 16 * rows;
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
#pragma unroll
      for (int i = 0; i < 2 * kLaneRows; ++i) {
        const std::uint32_t row = n * 8 + kLaneRows * (lane % 4) + i % kLaneRows;
        if (row < rows) mine[row * 16 + lane / 4 + i / kLaneRows * 8] = sum[n][i];
      }
    }
    group_sync(1 + static_cast<int>(my.group), kGroupWarps * 32);
    const float* all = my.reduce + (flip * kWarps + my.group * kGroupWarps) * 16 * rows;
#pragma unroll 1
    for (std::uint32_t i = my.warp % kGroupWarps * 32 + lane; i < 16 * rows; i += kGroupWarps * 32) {
      float v = all[i] + all[16 * rows + i];
      if constexpr (kGroupWarps == 4) v = v + (all[2 * 16 * rows + i] + all[3 * 16 * rows + i]);
      if (i % 16 < valid) out[std::size_t{my.first_row + i / 16} * width + i % 16] = v;
    }
  }
}

// Multiplies tile `tile`, or that and the worker's next one, whose pieces come together.
template <Format F, int Groups, bool Few, int Tiles>
__device__ __forceinline__ void multiply_tiles(DecodeShared& s, const DecodeOp* ops, const DecodeOp& op,
                                               Reader& reader, const Share<Groups>& my, std::uint32_t tile,
                                               std::uint32_t workers, unsigned& flip) {
  constexpr std::uint32_t kBytes = chunk_bytes(F);
  const std::uint32_t at_once = chunks_of_slot(F, my.slot_bytes) / Tiles;
  float sum[Tiles][Groups][Few ? 2 : 4] = {};
  constexpr std::uint32_t kChunkWords = 4 * kStep<Groups, Few>;
  const std::uint32_t* reads = my.reads;
  const float* sums = my.sums;
#pragma unroll 1
  for (std::uint32_t left = my.count; left > 0;) {
    reader.wait(my.barriers, my.slots);
    std::uint8_t* const slot = my.ring + reader.slot * my.slot_bytes;
    const std::uint8_t* stage = slot;
    std::uint32_t n = min(at_once, left);
    left -= n;
    const std::uint32_t tile_bytes = n * kBytes;
    const auto pass = [&](std::uint32_t chunks) {
      n -= chunks;
      stage += chunks * kBytes;
      reads += chunks * kChunkWords;
      sums += chunks * 16 * Groups;
    };
#pragma unroll 1
    while (n > 0) {
      if constexpr (!Few) {
        add_chunk<F, Groups, Tiles>(stage, tile_bytes, reads, sums, my.lane, sum);
        pass(1);
      } else if (n > 1) {
        add_few<F, 2>(stage, reads, sums, my.lane, sum[0][0]);  // keeps the tensor cores busy
        pass(2);
      } else {
        add_few<F, 1>(stage, reads, sums, my.lane, sum[0][0]);
        break;
      }
    }
    __syncwarp();
    reader.template ask<Groups>(s, ops, slot, my.barriers + reader.slot);
    reader.next(my.slots);
  }
  constexpr int kLaneRows = Few ? 1 : 2;
#pragma unroll
  for (int t = 0; t < Tiles; ++t, tile += workers) {
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
      float(&v)[2 * kLaneRows] = sum[t][n];
      float2 scale = my.scales[n];
      renew(scale.x);
      v[0] *= Fragment<F>::kUnit0 * scale.x;
      v[kLaneRows] *= Fragment<F>::kUnit1 * scale.x;
      if constexpr (Few) continue;
      renew(scale.y);
      v[1] *= Fragment<F>::kUnit0 * scale.y;
      v[3] *= Fragment<F>::kUnit1 * scale.y;
    }
    const int which = matrix_of(op, tile);
    const std::uint32_t row = (tile - (which == 0 ? 0 : op.tiles_end[which - 1])) * kTileRows;
    const std::uint32_t before = which == 0 ? 0 : which == 1 ? op.rows[0] : op.rows[0] + op.rows[1];
    write_tile<Groups, Few>(my, sum[t], before + row, op.rows[which] - row, flip);
  }
}

// The run of tiles of one format that begins with `tile`. Gives the warp's next one after it.
template <Format F, int Groups, bool Few>
__device__ __forceinline__ std::uint32_t multiply_run(DecodeShared& s, const DecodeOp* ops,
                                                      const DecodeOp& op, Reader& reader,
                                                      const Share<Groups>& my, std::uint32_t tile,
                                                      std::uint32_t workers, unsigned& flip) {
  const std::uint32_t end = run_end(op, tile);
#pragma unroll 1
  while (tile < end) {
    if constexpr (kPaired<Groups>) {
      if (pairs_tiles<Groups>(op, log_chunks_of_slot(chunk_bytes(F), my.slot_bytes)) &&
          tile + workers < end) {
        multiply_tiles<F, Groups, Few, 2>(s, ops, op, reader, my, tile, workers, flip);
        tile += 2 * workers;
        continue;
      }
    }
    multiply_tiles<F, Groups, Few, 1>(s, ops, op, reader, my, tile, workers, flip);
    tile += workers;
  }
  return tile;
}

// One pass of product `o`: the operand that the block's threads have written to shared memory times all tiles
// of this block; out [parts * Groups][out_rows] [width], rows first_row .. of it. `reduce`: [2][warps][16 *
// rows]. `Groups`: of eight rows; `Few`: of up to four. A function of its own, so that its loops have the
// registers to themselves.
template <int Groups, bool Few>
__device__ __noinline__ void product(DecodeShared& s, const DecodeOp* ops, std::uint8_t* rings,
                                     std::uint8_t* region, float* reduce, std::uint32_t o,
                                     std::uint32_t pass_rows, float* out, std::uint32_t out_rows,
                                     std::uint32_t first_row) {
  const DecodeOp& op = ops[o];
  const MyPart part = my_part<Groups>(s, op);
  const Operand x = shared_operand<Groups>(region, part, pass_rows);
  if (part.worker >= part.workers) return;  // this block has nothing to do, and asked for nothing
  constexpr std::uint32_t kGroupWarps = kSlices / Groups;
  const std::uint32_t thread = thread_index();
  Share<Groups> my;
  my.lane = thread % 32;
  my.warp = thread / 32;
  my.group = my.warp / kGroupWarps;
  my.rows = x.rows;
  my.first_row = first_row;
  my.slots = s.job.slots;
  my.slot_bytes = s.job.slot_bytes;
  my.barriers = s.barriers[my.warp];
  my.reduce = reduce;
  my.out = out + std::size_t{part.index} * out_rows * op.width;
  my.width = op.width;
  const std::uint32_t begin = part.begin;
  my.count = part.end - begin;
  my.sums = x.sums + (begin - part.chunk0) * 16 * Groups + (Few ? 1 : 2) * (my.lane % 4);
  my.ring = ring_of(s.job, rings, my.warp);
  Reader reader(s);
  __syncthreads();  // the operand is there
  const float* scales = x.scales + (part.slice - part.slice0) * x.pitch;
  // Columns of B without a row read what lies there; nobody reads their sums.
  my.reads = x.steps + (begin - part.chunk0) * 4 * kStep<Groups, Few> + (my.lane % 4) * 4;
  if constexpr (Few) {
    my.reads += my.lane / 8 * kStepWords + my.lane / 4 % 2 * 2;
    my.scales[0].x = scales[my.lane % 4];
  } else {
    my.reads += my.lane / 4 * kStepWords;
#pragma unroll
    for (int n = 0; n < Groups; ++n)
      my.scales[n] = *reinterpret_cast<const float2*>(scales + n * 8 + 2 * (my.lane % 4));
  }
  unsigned flip = 0;
  std::uint32_t tile = part.worker;
#pragma unroll 1
  while (tile < op.tiles_end[2]) {
    switch (static_cast<Format>(op.format[matrix_of(op, tile)])) {
      case Format::kQ4:
        tile = multiply_run<Format::kQ4, Groups, Few>(s, ops, op, reader, my, tile, part.workers, flip);
        break;
      case Format::kQ8:
        tile = multiply_run<Format::kQ8, Groups, Few>(s, ops, op, reader, my, tile, part.workers, flip);
        break;
      case Format::kH16:
        tile = multiply_run<Format::kH16, Groups, Few>(s, ops, op, reader, my, tile, part.workers, flip);
        break;
      case Format::kA4:
        tile = multiply_run<Format::kA4, Groups, Few>(s, ops, op, reader, my, tile, part.workers, flip);
        break;
      case Format::kA8:
        tile = multiply_run<Format::kA8, Groups, Few>(s, ops, op, reader, my, tile, part.workers, flip);
        break;
      case Format::kS8:
        tile = multiply_run<Format::kS8, Groups, Few>(s, ops, op, reader, my, tile, part.workers, flip);
        break;
    }
  }
  reader.leave(s);
}

}  // namespace gem::cuda
