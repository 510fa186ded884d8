// Products of the decode kernel: every warp streams its slices of the tiles of all products of the round
// through its ring of copies (decode_ring.cuh) and multiplies them on the tensor cores.
#pragma once

#include "backend/cuda/decode_fragment.cuh"
#include "backend/cuda/decode_ring.cuh"

namespace gem::cuda {

// Of up to four rows (`Few`) the eight columns of a product are the high and low bytes of each; else they are
// eight rows' high bytes, then their low ones.

// Places for rows of an operand's block.
template <int Groups, bool Few>
constexpr std::uint32_t kBlockRows = block_rows(8 * Groups, Few ? kFewRows : 8 * Groups);
// From a chunk of the operand to the next: words of its blocks, origins.
template <int Groups, bool Few>
constexpr std::uint32_t kChunkWords = 2 * kBlockRows<Groups, Few>* kRowWords;
template <int Groups, bool Few>
constexpr std::uint32_t kChunkOrigins = 2 * kBlockRows<Groups, Few>;

// A product of a row of a block: `high` and `low` are sums of codes times high and low bytes, begun with the
// bits of `zero`.
__device__ __forceinline__ float joined(int high, int low, float zero) {
  return fmaf(256.0f, __int_as_float(high) - zero, __int_as_float(low) - zero);
}

// A lane's share of a block of the operand for eight rows: bytes of its row as b0 and b1, and the origins of
// its two columns of the result.
struct Columns {
  uint4 words;
  Origin origins[2];

  __device__ __forceinline__ void load(const std::uint32_t* from, const Origin* at) {
    words = *reinterpret_cast<const uint4*>(from);
    const uint4 both = *reinterpret_cast<const uint4*>(at);
    origins[0] = {static_cast<int>(both.x), __uint_as_float(both.y)};
    origins[1] = {static_cast<int>(both.z), __uint_as_float(both.w)};
  }
};

// Adds block `k` of a chunk of each of `Tiles` tiles to eight rows' sums. sum[tile]: rows r and r + 8
// (r = lane / 4) of the weights, columns 2 (lane % 4) and the next. All tiles' tensor products come before
// what waits for them.
template <Format F, int Tiles, int Groups>
__device__ __forceinline__ void add_block(const Fragment<F> (&weights)[Tiles], int k, const Columns& x, int n,
                                          float (&sum)[Tiles][Groups][4]) {
  using W = Fragment<F>;
  const float zero[2] = {x.origins[0].zero, x.origins[1].zero};
  if constexpr (F == Format::kH16) {
    const uint2 bytes[2] = {make_uint2(x.words.x, x.words.y), make_uint2(x.words.z, x.words.w)};
    float plane[2][Tiles][4] = {};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const uint2 b = halves_of(step == 0 ? bytes[p].x : bytes[p].y);
#pragma unroll
        for (int t = 0; t < Tiles; ++t) {
          unsigned a[4];
          weights[t].step(2 * k + step, a);
          mma(plane[p][t], a, b.x, b.y);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      const float2 scale = weights[t].scale(k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float both = fmaf(256.0f, plane[0][t][i], plane[1][t][i]) * (zero[i % 2] * kPerZero);
        sum[t][n][i] = fmaf(i < 2 ? scale.x : scale.y, both, sum[t][n][i]);
      }
    }
  } else if constexpr (has_nibbles(F)) {
    unsigned a[Tiles][4];
    int high[Tiles][4];
    constexpr int kNothing[4] = {};
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      weights[t].block(k, a[t]);
      mma_bytes<true>(high[t], kNothing, a[t], x.words.x, x.words.y);
    }
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) high[t][i] = high[t][i] * 256 + x.origins[i % 2].start;
      mma_bytes<true>(high[t], high[t], a[t], x.words.z, x.words.w);
    }
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      const float2 scale = weights[t].scale(k);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[t][n][i] =
            fmaf(i < 2 ? scale.x : scale.y, __int_as_float(high[t][i]) - zero[i % 2], sum[t][n][i]);
    }
  } else {
    const int begin[4] = {__float_as_int(zero[0]), __float_as_int(zero[1]), __float_as_int(zero[0]),
                          __float_as_int(zero[1])};
    constexpr int kSteps = W::kScales / 2;  // that share a scale
    int plane[2][Tiles][kSteps][4];
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      unsigned a[4];
      weights[t].block(k, a);
      if constexpr (kSteps == 1) {
        mma_bytes<W::kSigned>(plane[0][t][0], begin, a, x.words.x, x.words.y);
        mma_bytes<W::kSigned>(plane[1][t][0], begin, a, x.words.z, x.words.w);
      } else {
        mma_bytes(plane[0][t][0], begin, a[0], a[1], x.words.x);
        mma_bytes(plane[0][t][1], begin, a[2], a[3], x.words.y);
        mma_bytes(plane[1][t][0], begin, a[0], a[1], x.words.z);
        mma_bytes(plane[1][t][1], begin, a[2], a[3], x.words.w);
      }
    }
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const float2 scale = weights[t].scale(k * kSteps + step);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sum[t][n][i] = fmaf(i < 2 ? scale.x : scale.y,
                              joined(plane[0][t][step][i], plane[1][t][step][i], zero[i % 2]), sum[t][n][i]);
      }
    }
  }
  if constexpr (W::kMinima) {
    const float offset[2] = {x.origins[0].offset(), x.origins[1].offset()};
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      const float2 minimum = weights[t].minimum[k];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[t][n][i] = fmaf(i < 2 ? minimum.x : minimum.y, offset[i % 2], sum[t][n][i]);
    }
  }
}

// Adds a chunk of each of `Tiles` tiles to the sums of `Groups` groups of eight rows; tile t's begins at
// from + t * tile_bytes. What is read of the operand serves all tiles, and is read a stage before it is
// multiplied.
template <Format F, int Groups, int Tiles>
__device__ __forceinline__ void add_chunk(const std::uint8_t* from, std::uint32_t tile_bytes,
                                          const std::uint32_t* reads, const Origin* origins, int lane,
                                          float (&sum)[Tiles][Groups][4]) {
  Fragment<F> weights[Tiles];
#pragma unroll
  for (int t = 0; t < Tiles; ++t) weights[t].load(from + t * tile_bytes, lane);
  Columns x[2];
  const auto load = [&](int stage) {
    const int row = stage / Groups * 8 * Groups + stage % Groups * 8;
    x[stage % 2].load(reads + row * kRowWords, origins + row);
  };
  load(0);
#pragma unroll
  for (int stage = 0; stage < 2 * Groups; ++stage) {
    if (stage + 1 < 2 * Groups) load(stage + 1);
    add_block<F>(weights, stage / Groups, x[stage % 2], stage % Groups, sum);
  }
}

// Adds `Chunks` chunks of a tile, one after the other, to the sums of up to four rows: rows r and r + 8 of
// column lane % 4. With half of the products of eight rows. What they need is read before the first is
// multiplied; columns of B without a row read those of a row that there is, in 8 bytes a lane, which are read
// once then.
template <Format F, int Chunks>
__device__ __forceinline__ void add_few(const std::uint8_t* from, const std::uint32_t* reads,
                                        const Origin* origins, int lane, float (&sum)[2]) {
  using W = Fragment<F>;
  W weights[Chunks];
  uint2 x[Chunks][2];
  Origin at[Chunks][2];
#pragma unroll
  for (int i = 0; i < Chunks; ++i) weights[i].load(from + i * chunk_bytes(F), lane);
#pragma unroll
  for (int i = 0; i < 2 * Chunks; ++i) {
    x[i / 2][i % 2] = read8(reads + i * kFewRows * kRowWords);
    const int2 both = *reinterpret_cast<const int2*>(origins + i * kFewRows);
    at[i / 2][i % 2] = {both.x, __int_as_float(both.y)};
  }
  // To the compiler a border: else it reads just before it multiplies, and waits.
  if constexpr (Chunks > 1) __syncwarp();
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    const W& w = weights[chunk];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint2 b = x[chunk][k];
      const Origin origin = at[chunk][k];
      unsigned a[4];
      if constexpr (F == Format::kH16) {
        float c[4] = {};  // high, low of row r; of r + 8
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const uint2 halves = halves_of(step == 0 ? b.x : b.y);
          w.step(2 * k + step, a);
          mma(c, a, halves.x, halves.y);
        }
        const float unit = origin.zero * kPerZero;
        const float2 scale = w.scale(k);
        sum[0] = fmaf(scale.x, fmaf(256.0f, c[0], c[1]) * unit, sum[0]);
        sum[1] = fmaf(scale.y, fmaf(256.0f, c[2], c[3]) * unit, sum[1]);
      } else if constexpr (has_nibbles(F)) {
        int c[4];
        constexpr int kNothing[4] = {};
        w.block(k, a);
        mma_bytes<true>(c, kNothing, a, b.x, b.y);
        const float2 scale = w.scale(k);
        sum[0] = fmaf(scale.x, __int_as_float(c[0] * 256 + c[1] + origin.start) - origin.zero, sum[0]);
        sum[1] = fmaf(scale.y, __int_as_float(c[2] * 256 + c[3] + origin.start) - origin.zero, sum[1]);
      } else {
        const int zero = __float_as_int(origin.zero);
        const int begin[4] = {zero, zero, zero, zero};
        int c[4];
        w.block(k, a);
        constexpr int kSteps = W::kScales / 2;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          if constexpr (kSteps == 1) {
            mma_bytes<W::kSigned>(c, begin, a, b.x, b.y);
          } else {
            mma_bytes(c, begin, a[2 * step], a[2 * step + 1], step == 0 ? b.x : b.y);
          }
          const float2 scale = w.scale(k * kSteps + step);
          sum[0] = fmaf(scale.x, joined(c[0], c[1], origin.zero), sum[0]);
          sum[1] = fmaf(scale.y, joined(c[2], c[3], origin.zero), sum[1]);
        }
      }
      if constexpr (W::kMinima) {
        const float offset = origin.offset();
        sum[0] = fmaf(w.minimum[k].x, offset, sum[0]);
        sum[1] = fmaf(w.minimum[k].y, offset, sum[1]);
      }
    }
  }
}

// What a warp knows of its part in a product.
template <int Groups>
struct Share {
  const std::uint32_t* reads;  // of the operand, at the slice's first chunk
  const Origin* origins;
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
  bool whole_tiles;  // the matrices lie side by side without gaps: tile t begins with result 16 t
};

// The sums of a tile to where the product's results lie: by every warp, or added up by the warps of
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
__device__ __forceinline__ void multiply_tiles(const DecodeOp& op, Reader& reader, const Share<Groups>& my,
                                               std::uint32_t tile, std::uint32_t workers, unsigned& flip) {
  constexpr std::uint32_t kBytes = chunk_bytes(F);
  const std::uint32_t at_once = chunks_of_slot(F, my.slot_bytes) / Tiles;
  float sum[Tiles][Groups][Few ? 2 : 4] = {};
  const std::uint32_t* reads = my.reads;
  const Origin* origins = my.origins;
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
      reads += chunks * kChunkWords<Groups, Few>;
      origins += chunks * kChunkOrigins<Groups, Few>;
    };
#pragma unroll 1
    while (n > 0) {
      if constexpr (!Few) {
        add_chunk<F, Groups, Tiles>(stage, tile_bytes, reads, origins, my.lane, sum);
        pass(1);
      } else if (n == 4) {
        // Two at a time keep the tensor cores busy.
        add_few<F, 2>(stage, reads, origins, my.lane, sum[0][0]);
        add_few<F, 2>(stage + 2 * kBytes, reads + 2 * kChunkWords<Groups, Few>,
                      origins + 2 * kChunkOrigins<Groups, Few>, my.lane, sum[0][0]);
        pass(4);
      } else if (n > 1) {
        add_few<F, 2>(stage, reads, origins, my.lane, sum[0][0]);
        pass(2);
      } else {
        add_few<F, 1>(stage, reads, origins, my.lane, sum[0][0]);
        break;
      }
    }
    __syncwarp();
    reader.template ask<Groups>(slot, my.barriers + reader.slot);
    reader.next(my.slots);
  }
#pragma unroll
  for (int t = 0; t < Tiles; ++t, tile += workers) {
    std::uint32_t column = tile * kTileRows;
    std::uint32_t valid = my.width - column;
    if (!my.whole_tiles) {
      const int which = matrix_of(op, tile);
      const std::uint32_t row = (tile - (which == 0 ? 0 : op.tiles_end[which - 1])) * kTileRows;
      column = row + (which == 0 ? 0 : which == 1 ? op.rows[0] : op.rows[0] + op.rows[1]);
      valid = op.rows[which] - row;
    }
    write_tile<Groups, Few>(my, sum[t], column, valid, flip);
  }
}

// The run of tiles of one format that begins with `tile`. Gives the warp's next one after it.
template <Format F, int Groups, bool Few>
__device__ __forceinline__ std::uint32_t multiply_run(const DecodeOp& op, Reader& reader,
                                                      const Share<Groups>& my, std::uint32_t tile,
                                                      std::uint32_t workers, unsigned& flip) {
  const std::uint32_t end = run_end(op, tile);
#pragma unroll 1
  while (tile < end) {
    if constexpr (kPaired<Groups>) {
      if (pairs_tiles<Groups>(op, log_chunks_of_slot(chunk_bytes(F), my.slot_bytes)) &&
          tile + workers < end) {
        multiply_tiles<F, Groups, Few, 2>(op, reader, my, tile, workers, flip);
        tile += 2 * workers;
        continue;
      }
    }
    multiply_tiles<F, Groups, Few, 1>(op, reader, my, tile, workers, flip);
    tile += workers;
  }
  return tile;
}

// One pass of product `o`: the operand that the block's threads have written to shared memory times all tiles
// of this block; out [parts * Groups][out_rows] [width], rows first_row .. of it. `reduce`: [2][warps][16 *
// rows]. `Groups`: of eight rows; `Few`: of up to four. A function of its own, so that its loops have the
// registers to themselves.
template <int Groups, bool Few>
__device__ __noinline__ void product(std::uint32_t o, std::uint32_t pass_rows, float* out,
                                     std::uint32_t out_rows, std::uint32_t first_row) {
  DecodeShared& s = block_state();
  const DecodeOp& op = product_of(o);
  const MyPart part = my_part<Groups>(op);
  const Operand x = shared_operand<Groups>(part, pass_rows);
  __syncthreads();                          // the operand is there
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
  my.reduce = reinterpret_cast<float*>(dynamic_shared() + s.reduce);
  my.out = out + std::size_t{part.index} * out_rows * op.width;
  my.width = op.width;
  my.whole_tiles = (op.rows[0] | op.rows[1]) % kTileRows == 0;
  const std::uint32_t begin = part.begin;
  my.count = part.end - begin;
  // Nobody reads the sums of columns of B without a row.
  const std::uint32_t last = x.rows - 1;
  const std::uint32_t chunk = begin - part.chunk0;
  my.reads = x.blocks + chunk * kChunkWords<Groups, Few> + my.lane % 4 * 4;
  my.origins = x.origins + chunk * kChunkOrigins<Groups, Few>;
  if constexpr (Few) {
    my.reads += min(my.lane / 8u, last) * kRowWords + my.lane / 4 % 2 * 2;
    my.origins += min(my.lane % 4u, last);
  } else {
    my.reads += my.lane / 4 * kRowWords;
    my.origins += my.lane % 4 * 2;
  }
  my.ring = ring_of(my.warp);
  Reader reader;
  unsigned flip = 0;
  std::uint32_t tile = part.worker;
#pragma unroll 1
  while (tile < op.tiles_end[2]) {
    switch (static_cast<Format>(op.format[matrix_of(op, tile)])) {
      case Format::kQ4:
        tile = multiply_run<Format::kQ4, Groups, Few>(op, reader, my, tile, part.workers, flip);
        break;
      case Format::kQ8:
        tile = multiply_run<Format::kQ8, Groups, Few>(op, reader, my, tile, part.workers, flip);
        break;
      case Format::kH16:
        tile = multiply_run<Format::kH16, Groups, Few>(op, reader, my, tile, part.workers, flip);
        break;
      case Format::kA4:
        tile = multiply_run<Format::kA4, Groups, Few>(op, reader, my, tile, part.workers, flip);
        break;
      case Format::kA8:
        tile = multiply_run<Format::kA8, Groups, Few>(op, reader, my, tile, part.workers, flip);
        break;
      case Format::kS8:
        tile = multiply_run<Format::kS8, Groups, Few>(op, reader, my, tile, part.workers, flip);
        break;
    }
  }
  reader.leave();
}

}  // namespace gem::cuda
