// The stages between the products that go through whole rows: residual and norm, the feed-forward's
// activation.
#pragma once

#include "backend/cuda/decode_operand.cuh"

namespace gem::cuda {

// One row of the residual stream, by the whole block: r = in, or (in + rms(branch) * weight) * scale where
// there is a branch; kept in `out` if that is given. Then, where there is a next norm, y = rms(r) * next, as
// the operand's row or in `plain`.
struct RowStep {
  const float* in = nullptr;
  float* out = nullptr;
  bool adds = false;
  Parts branch = {};
  std::uint32_t branch_row = 0;
  const float* weight = nullptr;
  float scale = 1;
  const float* next = nullptr;
  float up = 1;
  bool makes_operand = false;
  Operand operand = {};
  std::uint32_t operand_row = 0;
  float* plain = nullptr;
  std::uint32_t place = 0;      // of the row's first sum over the block; its second is in the next
  unsigned* barrier = nullptr;  // of the grid, to be waited for before others' results are read
  unsigned target = 0;
};
// Adds the parts of `Vectors` float4, `Stride` columns apart, in order.
template <int Pieces, int Vectors, std::uint32_t Stride>
__device__ __forceinline__ void add_parts(const Parts& p, std::uint32_t row, std::uint32_t col,
                                          std::uint32_t width, float4* sums) {
  constexpr int kBatch = 4;  // what fits the registers
  const std::size_t stride = std::size_t{p.rows} * p.width;
  const float* at = p.data + std::size_t{row} * p.width + col;
  const int count = static_cast<int>(p.parts) * Pieces;
#pragma unroll 1
  for (int first = 0; first < count; first += kBatch) {
    float4 v[Vectors][kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k, at += stride) {
#pragma unroll
      for (int i = 0; i < Vectors; ++i)
        load_if(first + k < count && col + i * Stride < width, at + i * Stride, v[i][k]);
    }
#pragma unroll
    for (int k = 0; k < kBatch; k += Pieces) {
      if (first + k >= count) break;
#pragma unroll
      for (int i = 0; i < Vectors; ++i) sums[i] = add(sums[i], sum_pieces<Pieces>(v[i] + k));
    }
  }
}

// What takes long is waiting for memory: whatever is needed is asked for early, together.
template <int Pieces>
__device__ __forceinline__ void row_step(DecodeShared& s, std::uint32_t width, float epsilon,
                                         const RowStep& step) {
  const std::uint32_t thread = thread_index();
  const std::uint32_t first = thread * 4;
  constexpr std::uint32_t kStride = kThreads * 4;
  float4 r[kRowVectors], v[kRowVectors], weights[kRowVectors], next[kRowVectors];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) {
    const std::uint32_t col = first + i * kStride;
    load_if(col < width, step.in + col, r[i]);
    if (step.adds && col < width) prefetch(step.weight + col);
    if (step.next != nullptr && col < width) prefetch(step.next + col);
    clear(v[i]);
  }
  if (step.barrier != nullptr) grid_wait(step.barrier, step.target);
  if (step.adds) {
    add_parts<Pieces, kRowVectors, kStride>(step.branch, step.branch_row, first, width, v);
#pragma unroll
    for (int i = 0; i < kRowVectors; ++i) squares += square_sum(v[i]);
  }
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) {
    const std::uint32_t col = first + i * kStride;
    load_if(step.adds && col < width, step.weight + col, weights[i]);
    load_if(step.next != nullptr && col < width, step.next + col, next[i]);
  }
  if (step.adds) {
    const float norm = rsqrtf(block_sum(s, step.place, squares) / static_cast<float>(width) + epsilon);
#pragma unroll
    for (int i = 0; i < kRowVectors; ++i) {
      const std::uint32_t col = first + i * kStride;
      if (col >= width) continue;
      const float4 w = weights[i];
      r[i].x = (r[i].x + v[i].x * norm * w.x) * step.scale;
      r[i].y = (r[i].y + v[i].y * norm * w.y) * step.scale;
      r[i].z = (r[i].z + v[i].z * norm * w.z) * step.scale;
      r[i].w = (r[i].w + v[i].w * norm * w.w) * step.scale;
      if (step.out != nullptr) *reinterpret_cast<float4*>(step.out + col) = r[i];
    }
  }
  if (step.next == nullptr) return;
  squares = 0;
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) squares += square_sum(r[i]);
  const float norm = rsqrtf(block_sum(s, step.place + 1, squares) / static_cast<float>(width) + epsilon);
  // To the end of the last chunk, in whole groups of eight lanes.
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) {
    const std::uint32_t col = first + i * kStride;
    if (col - (thread & 7u) * 4 >= (width + 63) / 64 * 64) break;
    const float4 w = next[i];
    const float4 y =
        make_float4(r[i].x * norm * w.x, r[i].y * norm * w.y, r[i].z * norm * w.z, r[i].w * norm * w.w);
    if (col < width && step.plain != nullptr) *reinterpret_cast<float4*>(step.plain + col) = y;
    if (step.makes_operand) store_operand(step.operand, step.operand_row, col, y, step.up);
  }
}

// One scale for all slices and rows.
__device__ __forceinline__ void fill_scales(const Operand& x, std::uint32_t slices, float up) {
#pragma unroll 1
  for (std::uint32_t i = thread_index(); i < slices * x.pitch; i += kThreads) x.scales[i] = 1.0f / up;
}

// Rows of f32 as the block's columns of an operand. `index`: which rows; null: `first` on.
__device__ __forceinline__ void operand_from_rows(const float* rows, const std::uint32_t* index,
                                                  std::uint32_t first, std::uint32_t width, const Operand& x,
                                                  float up) {
  const std::uint32_t vectors = (x.chunk1 - x.chunk0) * 16;
#pragma unroll 1
  for (std::uint32_t i = thread_index(); i < x.rows * vectors; i += kThreads) {
    const std::uint32_t row = i / vectors;
    const std::uint32_t col = x.chunk0 * 64 + i % vectors * 4;
    const std::uint32_t from = index == nullptr ? first + row : index[first + row];
    float4 v = make_float4(0, 0, 0, 0);
    if (col < width) v = load4(rows + std::size_t{from} * width + col);
    store_operand(x, row, col, v, up);
  }
}

constexpr int kTeamWarps = 4;  // work on one slice of one row
constexpr int kTeams = kWarps / kTeamWarps;
constexpr int kTeamVectors = 2;  // float4 a thread: slices of up to 1,024 columns

// gelu(gate) * up of one slice of one row as the operand, scaled by its own largest value. By a team of four
// warps.
template <int Pieces>
__device__ __forceinline__ void activate_slice(float (*largest)[kTeamWarps], const DecodeOp& op,
                                               std::uint32_t ffn, const Parts& both, std::uint32_t row,
                                               std::uint32_t slice, const Operand& x,
                                               std::uint32_t operand_row) {
  const std::uint32_t in_block = thread_index();
  const std::uint32_t thread = in_block % (kTeamWarps * 32);
  const int team = static_cast<int>(in_block) / (kTeamWarps * 32);
  const std::uint32_t begin = slice_begin(op, slice) * 64;
  const std::uint32_t end = slice_begin(op, slice + 1) * 64;
  float4 y[kTeamVectors];
  float most = 0;
  constexpr int kBatch = Pieces == 4 ? 4 : 2;
  PartSum<Pieces, float4, kBatch> gate[kTeamVectors], up_sum[kTeamVectors];
#pragma unroll
  for (int i = 0; i < kTeamVectors; ++i) {
    const std::uint32_t col = begin + (thread + i * kTeamWarps * 32) * 4;
    gate[i].issue(both, row, col, col < end && col < ffn);
    up_sum[i].issue(both, row, ffn + col, col < end && col < ffn);
  }
#pragma unroll
  for (int i = 0; i < kTeamVectors; ++i) {
    const std::uint32_t col = begin + (thread + i * kTeamWarps * 32) * 4;
    y[i] = make_float4(0, 0, 0, 0);
    if (col >= end || col >= ffn) continue;
    const float4 g = gate[i].total(both, row, col);
    const float4 u = up_sum[i].total(both, row, ffn + col);
    y[i] =
        make_float4(gelu_tanh(g.x) * u.x, gelu_tanh(g.y) * u.y, gelu_tanh(g.z) * u.z, gelu_tanh(g.w) * u.w);
    most = fmaxf(most, fmaxf(fmaxf(fabsf(y[i].x), fabsf(y[i].y)), fmaxf(fabsf(y[i].z), fabsf(y[i].w))));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  if (thread % 32 == 0) largest[team][thread / 32] = most;
  group_sync(1 + team, kTeamWarps * 32);
  most = fmaxf(fmaxf(largest[team][0], largest[team][1]), fmaxf(largest[team][2], largest[team][3]));
  group_sync(1 + team, kTeamWarps * 32);
  // 2^k with most * 2^k in [2^13, 2^14): from the exponent bits alone, so exact.
  const int exponent = static_cast<int>((__float_as_uint(most) >> 23) & 255u);
  const int k = exponent == 0 ? 0 : min(max(127 + 13 - exponent, -126), 126);
  const float up = __uint_as_float(static_cast<unsigned>(127 + k) << 23);
  if (thread == 0)
    x.scales[(slice - x.slice0) * x.pitch + operand_row] =
        __uint_as_float(static_cast<unsigned>(127 - k) << 23);
#pragma unroll
  for (int i = 0; i < kTeamVectors; ++i) {
    const std::uint32_t col = begin + (thread + i * kTeamWarps * 32) * 4;
    if (col - (thread & 7u) * 4 >= end) break;
    store_operand(x, operand_row, col, y[i], up);
  }
}

}  // namespace gem::cuda
