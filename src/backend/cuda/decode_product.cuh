// Products of the decode kernel: every warp streams its slices of the tiles of all products of the round
// through its ring of copies (decode_ring.cuh) and multiplies them on the tensor cores.
#pragma once

#include "backend/cuda/decode_fragment.cuh"
#include "backend/cuda/decode_ring.cuh"

namespace gem::cuda {

// Of up to four rows (`Few`) the eight columns of a product are the high and low halves of each; else they
// are eight rows' high halves, then their low ones.

// Places for rows of an operand's block.
template <int Groups, bool Few>
constexpr std::uint32_t kBlockRows = block_rows(8 * Groups, Few ? kFewRows : 8 * Groups);
// From a chunk of the operand to the next: words of its blocks, floats of its sums.
template <int Groups, bool Few>
constexpr std::uint32_t kChunkWords = 2 * block_words(kBlockRows<Groups, Few>);
template <int Groups>
constexpr std::uint32_t kChunkSums = 2 * 8 * Groups;

// A lane's share of the operand for eight rows and the columns that share a scale, a block or half of one.
template <typename Words>
struct Columns {
  Words high, low;
  float2 sums;
};
template <>
struct Columns<uint2> {
  uint2 high, low;
};
__device__ __forceinline__ unsigned word_at(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}
__device__ __forceinline__ unsigned word_at(const uint2& words, int i) {
  return i == 0 ? words.x : words.y;
}

// Adds a chunk of each of `Tiles` tiles to the sums of `Groups` groups of eight rows; tile t's begins at
// from + t * tile_bytes. sum[tile][group]: rows r and r + 8 (r = lane / 4) of columns 2 (lane % 4) and the
// next. What is read of the operand serves all tiles, and is read a stage before it is multiplied.
template <Format F, int Groups, int Tiles>
__device__ __forceinline__ void add_chunk(const std::uint8_t* from, std::uint32_t tile_bytes,
                                          const std::uint32_t* reads, const float* sums, int lane,
                                          float (&sum)[Tiles][Groups][4]) {
  using W = Fragment<F>;
  constexpr int kSteps = 4 / W::kScales;
  using Words = std::conditional_t<kSteps == 2, uint4, uint2>;
  constexpr std::uint32_t kRows = kBlockRows<Groups, false>;
  W weights[Tiles];
#pragma unroll
  for (int t = 0; t < Tiles; ++t) weights[t].load(from + t * tile_bytes, lane);
  Columns<Words> x[2];
  const auto load = [&](int stage) {
    const int block = stage / Groups * kSteps / 2;
    const int n = stage % Groups;
    Columns<Words>& c = x[stage % 2];
    const std::uint32_t* words =
        reads + block * block_words(kRows) + n * 8 * row_words(kRows) + stage / Groups * kSteps % 2 * 2;
    c.high = *reinterpret_cast<const Words*>(words);
    c.low = *reinterpret_cast<const Words*>(words + low_words(kRows));
    if constexpr (W::kOffset || W::kMinima)
      c.sums = *reinterpret_cast<const float2*>(sums + block * 8 * Groups + n * 8);
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
      const Columns<Words>& c = x[stage % 2];
      // The high halves with the offset times the sum of the activations, and the low ones.
      float start[4] = {};
      if constexpr (W::kOffset) {
        start[0] = c.sums.x;
        start[1] = c.sums.y;
        start[2] = 16 * c.sums.x;
        start[3] = 16 * c.sums.y;
      }
      constexpr float kZero[4] = {};
      float high[Tiles][4];
      float low[Tiles][4];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int t = 0; t < Tiles; ++t) {
          if (i == 0) {
            mma(high[t], start, a[t][i], word_at(c.high, 0), word_at(c.high, 1));
            mma(low[t], kZero, a[t][i], word_at(c.low, 0), word_at(c.low, 1));
          } else {
            mma(high[t], a[t][i], word_at(c.high, 2), word_at(c.high, 3));
            mma(low[t], a[t][i], word_at(c.low, 2), word_at(c.low, 3));
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
// multiplied; columns of B without a row read those of a row that there is, in 8 bytes a lane, which are read
// once then.
template <Format F, int Chunks>
__device__ __forceinline__ void add_few(const std::uint8_t* from, const std::uint32_t* reads,
                                        const float* sums, int lane, float (&sum)[2]) {
  using W = Fragment<F>;
  constexpr std::uint32_t kBlock = block_words(kFewRows);
  W weights[Chunks];
  uint2 x[Chunks][4];
  float2 s[Chunks][2];
#pragma unroll
  for (int i = 0; i < Chunks; ++i) weights[i].load(from + i * chunk_bytes(F), lane);
#pragma unroll
  for (int i = 0; i < 2 * Chunks; ++i) {
    x[i / 2][i % 2 * 2] = read8(reads + i * kBlock);
    x[i / 2][i % 2 * 2 + 1] = read8(reads + i * kBlock + 2);
    if constexpr (W::kOffset || W::kMinima) s[i / 2][i % 2] = *reinterpret_cast<const float2*>(sums + i * 8);
  }
  // To the compiler a border: else it reads just before it multiplies, and waits.
  if constexpr (Chunks > 1) __syncwarp();
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    const W& w = weights[chunk];
    float c[W::kScales][4] = {};  // high, low of row r; of r + 8
    if constexpr (W::kOffset) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        c[block][0] = s[chunk][block].x;
        c[block][2] = s[chunk][block].y;
      }
    }
#pragma unroll
    for (int i = 0; i < 4 / W::kScales; ++i) {
#pragma unroll
      for (int k = 0; k < W::kScales; ++k) {
        const int at = k * (4 / W::kScales) + i;
        unsigned a[4];
        w.step(at, a);
        mma(c[k], a, x[chunk][at].x, x[chunk][at].y);
      }
    }
#pragma unroll
    for (int k = 0; k < W::kScales; ++k) {
      const float2 scale = w.scale(k);
      sum[0] = fmaf(scale.x, c[k][0] + c[k][1], sum[0]);
      sum[1] = fmaf(scale.y, c[k][2] + c[k][3], sum[1]);
      if constexpr (W::kMinima) {
        sum[0] = fmaf(w.minimum[k].x, s[chunk][k].x, sum[0]);
        sum[1] = fmaf(w.minimum[k].y, s[chunk][k].x, sum[1]);
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
  bool whole_tiles;  // the matrices lie side by side without gaps: tile t begins with result 16 t
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
__device__ __forceinline__ void multiply_tiles(const DecodeOp& op, Reader& reader, const Share<Groups>& my,
                                               std::uint32_t tile, std::uint32_t workers, unsigned& flip) {
  constexpr std::uint32_t kBytes = chunk_bytes(F);
  const std::uint32_t at_once = chunks_of_slot(F, my.slot_bytes) / Tiles;
  float sum[Tiles][Groups][Few ? 2 : 4] = {};
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
      reads += chunks * kChunkWords<Groups, Few>;
      sums += chunks * kChunkSums<Groups>;
    };
#pragma unroll 1
    while (n > 0) {
      if constexpr (!Few) {
        add_chunk<F, Groups, Tiles>(stage, tile_bytes, reads, sums, my.lane, sum);
        pass(1);
      } else if (n == 4) {
        // Two at a time keep the tensor cores busy.
        add_few<F, 2>(stage, reads, sums, my.lane, sum[0][0]);
        add_few<F, 2>(stage + 2 * kBytes, reads + 2 * kChunkWords<Groups, Few>, sums + 2 * kChunkSums<Groups>,
                      my.lane, sum[0][0]);
        pass(4);
      } else if (n > 1) {
        add_few<F, 2>(stage, reads, sums, my.lane, sum[0][0]);
        pass(2);
      } else {
        add_few<F, 1>(stage, reads, sums, my.lane, sum[0][0]);
        break;
      }
    }
    __syncwarp();
    reader.template ask<Groups>(slot, my.barriers + reader.slot);
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
  my.sums = x.sums + (begin - part.chunk0) * kChunkSums<Groups> +
            (Few ? min(my.lane % 4u, last) : my.lane % 4u) * 2;
  my.ring = ring_of(my.warp);
  Reader reader;
  const float* scales = x.scales + (part.slice - part.slice0) * x.pitch;
  my.reads = x.blocks + (begin - part.chunk0) * kChunkWords<Groups, Few> + my.lane % 4 * 4;
  if constexpr (Few) {
    my.reads += min(my.lane / 8u, last) * row_words(kFewRows) + my.lane / 4 % 2 * low_words(kFewRows);
    my.scales[0].x = scales[my.lane % 4];
  } else {
    my.reads += my.lane / 4 * row_words(8 * Groups);
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
