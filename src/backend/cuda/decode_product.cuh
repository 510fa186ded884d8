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

// The pieces of weights that a warp asks for, in the order in which it will multiply them. Between products
// the little that has to be remembered lies in shared memory.
template <int Pieces>
struct Cursor {
  static constexpr std::uint32_t kRows = 8 * Pieces;
  static constexpr std::uint32_t kFirstTile = ~0u;  // CursorState: the first of the product

  const DecodeOp* ops;
  std::uint32_t op, end;  // index of the product, one past the last
  std::uint32_t head;     // the product whose rows are those of logits
  std::uint32_t row_passes, head_passes;
  std::uint32_t pass;
  std::uint32_t tile, workers, tiles;
  std::uint32_t limit;          // one past the last tile of the matrix at hand
  std::uint32_t begin, count;   // chunks of the slice
  std::uint32_t left;           // of these, still to be asked for
  std::uint32_t unit, at_once;  // bytes of a chunk, chunks of a slot
  std::uint32_t stride;         // bytes from a tile of this warp's to the next
  const std::uint8_t* slice;    // of the tile at hand
  const std::uint8_t* from;     // the next chunk
  std::uint32_t slot, slots, slot_bytes;
  std::uint8_t* ring;
  std::uint64_t* barriers;
  std::uint32_t lane;

  __device__ __forceinline__ Cursor(DecodeShared& s, const DecodeOp* all, std::uint8_t* rings) {
    const DecodeJob& job = s.job;
    const std::uint32_t thread = thread_index();
    const std::uint32_t warp = thread / 32;
    const CursorState state = s.cursors[warp];
    ops = all;
    op = state.op;
    pass = state.pass;
    slot = state.slot;
    end = job.end_products;
    head = job.layer_count * kOpsOfLayer;
    row_passes = (job.row_count + kRows - 1) / kRows;
    head_passes = (job.logit_count + kRows - 1) / kRows;
    slots = job.slots;
    slot_bytes = job.slot_bytes;
    ring = rings + warp * slots * slot_bytes;
    barriers = s.barriers[warp];
    lane = thread % 32;
    open();
    if (state.tile == kFirstTile || op >= end) return;
    tile = state.tile;
    seek();
    left = state.left;
    from = slice + (count - left) * unit;
  }
  __device__ __forceinline__ void leave(DecodeShared& s) const {
    __syncwarp();
    s.cursors[thread_index() / 32] = {op, pass, tile, left, slot};
    __syncwarp();
  }

  // To the product at `op`, or the next one of which this warp has a share.
  __device__ __forceinline__ void open() {
#pragma unroll 1
    while (op < end) {
      const DecodeOp& o = ops[op];
      const MyPart part = my_part<Pieces>(o);
      begin = slice_begin(o, part.slice);
      count = slice_begin(o, part.slice + 1) - begin;
      workers = part.workers;
      tiles = part.worker < part.workers && count > 0 ? o.tiles_end[2] : 0;
      tile = part.worker;
      if (tile < tiles && pass < (op == head ? head_passes : row_passes)) return seek();
      ++op;
      pass = 0;
    }
  }
  // To this warp's slice of `tile`.
  __device__ __forceinline__ void seek() {
    const DecodeOp& o = ops[op];
    const int which = tile < o.tiles_end[0] ? 0 : tile < o.tiles_end[1] ? 1 : 2;
    const std::uint32_t first = which == 0 ? 0u : o.tiles_end[which - 1];
    const Format format = static_cast<Format>(o.format[which]);
    limit = o.tiles_end[which];
    unit = chunk_bytes(format);
    at_once = chunks_of_slot(format, slot_bytes);
    stride = workers * o.chunks * unit;
    slice = o.data[which] + (std::uint64_t{tile - first} * o.chunks + begin) * unit;
    from = slice;
    left = count;
  }

  // Starts the next copy into the next slot; nothing when there is no more.
  __device__ __forceinline__ void request() {
    if (op < end) {
      const std::uint32_t n = min(at_once, left);
      copy(from, n * unit);
      from += n * unit;
      left -= n;
      if (left == 0) next_tile();
    }
#if __CUDA_ARCH__ < 900
    copies_commit();
#endif
    if (++slot == slots) slot = 0;
  }
  __device__ __forceinline__ void next_tile() {
    tile += workers;
    if (tile < limit) {
      slice += stride;
      from = slice;
      left = count;
    } else if (tile < tiles) {
      seek();
    } else {
      if (++pass >= (op == head ? head_passes : row_passes)) {
        ++op;
        pass = 0;
      }
      open();
    }
  }

  __device__ __forceinline__ void copy(const std::uint8_t* source, std::uint32_t bytes) {
    std::uint8_t* to = ring + slot * slot_bytes;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) slot_copy(barriers + slot, to, source, bytes);
#else
#pragma unroll 1
    for (std::uint32_t i = lane * 16; i < bytes; i += 512) copy16(to + i, source + i);
#endif
  }
};

// What a warp reads from its ring.
struct Reader {
  std::uint32_t slot;
  unsigned parity;

  __device__ __forceinline__ explicit Reader(const DecodeShared& s) {
    const ReaderState& state = s.readers[thread_index() / 32];
    slot = state.slot;
    parity = state.parity;
  }
  __device__ __forceinline__ void leave(DecodeShared& s) const {
    s.readers[thread_index() / 32] = {slot, parity};
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

// Adds a chunk to the sums: sum[n] are rows r and r + 8 (r = lane / 4) of columns n * 8 + 2 (lane % 4) and
// the next.
template <Format F, int Tiles>
__device__ __forceinline__ void add_chunk(const std::uint8_t* from,
                                          const std::uint32_t* const (&reads)[Tiles],
                                          std::uint32_t step_words, std::uint32_t offset, const float* sums,
                                          int lane, float (&sum)[Tiles][4]) {
  Fragment<F> weights;
  weights.load(from, lane);
  unsigned a[4][4];
  weights.template step<0>(a[0]);
  weights.template step<1>(a[1]);
  weights.template step<2>(a[2]);
  weights.template step<3>(a[3]);
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
    const std::uint32_t* step = reads[n] + offset;
    uint4 b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = *reinterpret_cast<const uint4*>(step + i * step_words);
    // Chains of products: each scale's high halves (with the offset) and its low ones.
    constexpr int kScales = Fragment<F>::kScales;
    float high[kScales][4] = {};
    float low[kScales][4] = {};
    float2 x[2];  // the sums of the activations
    if constexpr (Fragment<F>::kOffset || Fragment<F>::kMinima) {
#pragma unroll
      for (int block = 0; block < 2; ++block)
        x[block] = *reinterpret_cast<const float2*>(sums + block * (8 * Tiles) + n * 8);
    }
    if constexpr (Fragment<F>::kOffset) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        high[block][0] = x[block].x * Fragment<F>::kOffset0;
        high[block][1] = x[block].y * Fragment<F>::kOffset0;
        high[block][2] = x[block].x * Fragment<F>::kOffset1;
        high[block][3] = x[block].y * Fragment<F>::kOffset1;
      }
    }
#pragma unroll
    for (int i = 0; i < 4 / kScales; ++i) {
#pragma unroll
      for (int k = 0; k < kScales; ++k) {
        const int at = k * (4 / kScales) + i;
        mma(high[k], a[at], b[at].x, b[at].y);
        mma(low[k], a[at], b[at].z, b[at].w);
      }
    }
#pragma unroll
    for (int k = 0; k < kScales; ++k) {
      sum[n][0] = fmaf(weights.scale[k].x, high[k][0] + low[k][0], sum[n][0]);
      sum[n][1] = fmaf(weights.scale[k].x, high[k][1] + low[k][1], sum[n][1]);
      sum[n][2] = fmaf(weights.scale[k].y, high[k][2] + low[k][2], sum[n][2]);
      sum[n][3] = fmaf(weights.scale[k].y, high[k][3] + low[k][3], sum[n][3]);
      if constexpr (Fragment<F>::kMinima) {
        sum[n][0] = fmaf(weights.minimum[k].x, x[k].x, sum[n][0]);
        sum[n][1] = fmaf(weights.minimum[k].x, x[k].y, sum[n][1]);
        sum[n][2] = fmaf(weights.minimum[k].y, x[k].x, sum[n][2]);
        sum[n][3] = fmaf(weights.minimum[k].y, x[k].y, sum[n][3]);
      }
    }
  }
}

// The same for up to four rows, with half of the products: the eight columns of B are the high and low halves
// of each. sum[0] and sum[1] are rows r and r + 8 of row lane % 4. `reads` and `sums` are those of the
// lane's half and row.
template <Format F>
__device__ __forceinline__ void add_chunk_of_few(const std::uint8_t* from, const std::uint32_t* reads,
                                                 std::uint32_t step_words, const float* sums, int lane,
                                                 float (&sum)[2]) {
  Fragment<F> weights;
  weights.load(from, lane);
  unsigned a[4][4];
  weights.template step<0>(a[0]);
  weights.template step<1>(a[1]);
  weights.template step<2>(a[2]);
  weights.template step<3>(a[3]);
  uint2 b[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) b[i] = *reinterpret_cast<const uint2*>(reads + i * step_words);
  constexpr int kScales = Fragment<F>::kScales;
  float c[kScales][4] = {};
  float x[2];
  if constexpr (Fragment<F>::kOffset || Fragment<F>::kMinima) {
    x[0] = sums[0];
    x[1] = sums[8];
  }
  if constexpr (Fragment<F>::kOffset) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      c[block][0] = x[block] * Fragment<F>::kOffset0;
      c[block][2] = x[block] * Fragment<F>::kOffset1;
    }
  }
#pragma unroll
  for (int i = 0; i < 4 / kScales; ++i) {
#pragma unroll
    for (int k = 0; k < kScales; ++k) {
      const int at = k * (4 / kScales) + i;
      mma(c[k], a[at], b[at].x, b[at].y);
    }
  }
#pragma unroll
  for (int k = 0; k < kScales; ++k) {
    sum[0] = fmaf(weights.scale[k].x, c[k][0] + c[k][1], sum[0]);
    sum[1] = fmaf(weights.scale[k].y, c[k][2] + c[k][3], sum[1]);
    if constexpr (Fragment<F>::kMinima) {
      sum[0] = fmaf(weights.minimum[k].x, x[k], sum[0]);
      sum[1] = fmaf(weights.minimum[k].y, x[k], sum[1]);
    }
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
};

// Tiles `tile`, tile + workers, … below `end` of one matrix with `matrix_rows` rows; `first`: its first tile.
// Gives the tile after the last. `Few`: of up to four rows.
template <Format F, int Tiles, bool Few>
__device__ __forceinline__ std::uint32_t multiply_tiles(Cursor<Tiles>& cursor, Reader& reader,
                                                        const Share<Tiles>& my, std::uint32_t tile,
                                                        std::uint32_t workers, std::uint32_t first,
                                                        std::uint32_t end, std::uint32_t matrix_rows,
                                                        float* reduce, unsigned& flip, float* out,
                                                        std::uint32_t width) {
  constexpr std::uint32_t kGroupWarps = kSlices / Tiles;
  constexpr std::uint32_t kBytes = chunk_bytes(F);
  const std::uint32_t at_once = chunks_of_slot(F, cursor.slot_bytes);
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
      reader.wait(cursor.barriers, cursor.slots);
      const std::uint8_t* stage = cursor.ring + reader.slot * cursor.slot_bytes;
      const std::uint32_t n = min(at_once, left);
      left -= n;
#pragma unroll 2
      for (std::uint32_t c = 0; c < n; ++c) {
        if constexpr (Few) {
          add_chunk_of_few<F>(stage, my.reads[0] + offset, my.step_words, sums, lane, sum[0]);
        } else {
          add_chunk<F, Tiles>(stage, my.reads, my.step_words, offset, sums, lane, sum);
        }
        stage += kBytes;
        offset += 4 * my.step_words;
        sums += 16 * Tiles;
      }
      __syncwarp();
      cursor.request();
      reader.next(cursor.slots);
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

// One pass of product `o`: the operand in shared memory times all tiles of this block; out [parts *
// Tiles][out_rows] [width], rows first_row .. of it. `reduce`: [2][warps][16 * rows]. A function of its own,
// so that its loops have the registers to themselves.
template <int Tiles, bool Few>
__device__ __noinline__ void product(DecodeShared& s, const DecodeOp* ops, std::uint8_t* rings,
                                     std::uint8_t* region, float* reduce, std::uint32_t o,
                                     std::uint32_t pass_rows, float* out, std::uint32_t out_rows,
                                     std::uint32_t first_row) {
  const DecodeOp& op = ops[o];
  const MyPart part = my_part<Tiles>(op);
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
  const std::uint32_t begin = slice_begin(op, part.slice);
  my.count = slice_begin(op, part.slice + 1) - begin;
  my.sums = x.sums + (begin - part.chunk0) * 16 * Tiles + (Few ? 1 : 2) * (my.lane % 4);
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
  Cursor<Tiles> cursor(s, ops, rings);
  Reader reader(s);
  unsigned flip = 0;
  std::uint32_t tile = part.worker;
#pragma unroll 1
  for (int which = 0; which < 3; ++which) {
    const std::uint32_t first = which == 0 ? 0u : op.tiles_end[which - 1];
    const std::uint32_t end = op.tiles_end[which];
    const std::uint32_t matrix_rows = op.rows[which];
    switch (static_cast<Format>(op.format[which])) {
      case Format::kQ4:
        tile = multiply_tiles<Format::kQ4, Tiles, Few>(cursor, reader, my, tile, part.workers, first, end,
                                                  matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kQ8:
        tile = multiply_tiles<Format::kQ8, Tiles, Few>(cursor, reader, my, tile, part.workers, first, end,
                                                  matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kH16:
        tile = multiply_tiles<Format::kH16, Tiles, Few>(cursor, reader, my, tile, part.workers, first, end,
                                                   matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kA4:
        tile = multiply_tiles<Format::kA4, Tiles, Few>(cursor, reader, my, tile, part.workers, first, end,
                                                  matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kA8:
        tile = multiply_tiles<Format::kA8, Tiles, Few>(cursor, reader, my, tile, part.workers, first, end,
                                                  matrix_rows, reduce, flip, out, op.width);
        break;
      case Format::kS8:
        tile = multiply_tiles<Format::kS8, Tiles, Few>(cursor, reader, my, tile, part.workers, first, end,
                                                  matrix_rows, reduce, flip, out, op.width);
        break;
    }
    out += matrix_rows;
  }
  cursor.leave(s);
  reader.leave(s);
}

}  // namespace gem::cuda
