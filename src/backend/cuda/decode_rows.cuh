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
  bool makes_operand = false;
  Operand operand = {};
  std::uint32_t operand_row = 0;
  float* plain = nullptr;
  std::uint32_t place = 0;  // of the row's first sum over the block; its second is in the next
  bool waits = false;       // for the grid, before others' results are read
};
// A thread's share of a row: `Vectors` float4, kThreads * 4 columns apart. The last may lie beyond the row:
// then the row's first columns are read in its place, and count as zero.
template <int Vectors>
struct RowVectors {
  float4 v[Vectors];

  static __device__ __forceinline__ std::uint32_t column(int i) {
    return (thread_index() + static_cast<std::uint32_t>(i) * kThreads) * 4;
  }
  static __device__ __forceinline__ bool inside(int i, std::uint32_t width) {
    return i + 1 < Vectors || column(i) < width;
  }
  static __device__ __forceinline__ std::uint32_t column_to_read(int i, std::uint32_t width) {
    return inside(i, width) ? column(i) : 0;
  }

  __device__ __forceinline__ void load(const float* row, std::uint32_t width) {
#pragma unroll
    for (int i = 0; i < Vectors; ++i) v[i] = load4(row + column_to_read(i, width));
  }
  // What lies beyond the row.
  __device__ __forceinline__ void cut(std::uint32_t width) {
    if (!inside(Vectors - 1, width)) clear(v[Vectors - 1]);
  }
  // The sum of all parts of a row.
  template <int Pieces>
  __device__ __forceinline__ void sum(const Parts& p, std::uint32_t row) {
    const float* at[Vectors];
#pragma unroll
    for (int i = 0; i < Vectors; ++i) at[i] = p.row(row) + column_to_read(i, p.width);
    sum_parts<Pieces>(p, at, v);
    cut(p.width);
  }
  __device__ __forceinline__ float squares() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) sum += square_sum(v[i]);
    return sum;
  }
};

// What takes long is waiting for memory: whatever is needed is asked for early, together.
template <int Pieces, int Vectors>
__device__ __forceinline__ void row_step(std::uint32_t width, float epsilon, const RowStep& step) {
  using V = RowVectors<Vectors>;
  const float per_column = 1.0f / static_cast<float>(width);
  V r;
  V weights = {};
  V next = {};
  r.load(step.in, width);
  if (step.adds) weights.load(step.weight, width);
  if (step.waits) grid_wait();
  r.cut(width);
  if (step.adds) {
    V branch;
    branch.template sum<Pieces>(step.branch, step.branch_row);
    if (step.next != nullptr) next.load(step.next, width);
    const float norm = rsqrtf(fmaf(block_sum(step.place, branch.squares()), per_column, epsilon));
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const float4 b = branch.v[i];
      const float4 w = weights.v[i];
      float4& x = r.v[i];
      x.x = (x.x + b.x * norm * w.x) * step.scale;
      x.y = (x.y + b.y * norm * w.y) * step.scale;
      x.z = (x.z + b.z * norm * w.z) * step.scale;
      x.w = (x.w + b.w * norm * w.w) * step.scale;
      if (step.out != nullptr && V::inside(i, width)) *reinterpret_cast<float4*>(step.out + V::column(i)) = x;
    }
  }
  if (step.next == nullptr) return;
  if (!step.adds) next.load(step.next, width);
  const float norm = rsqrtf(fmaf(block_sum(step.place + 1, r.squares()), per_column, epsilon));
  // To the end of the last chunk, in whole groups of eight lanes.
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const std::uint32_t col = V::column(i);
    if (i + 1 == Vectors && col - (thread_index() & 7u) * 4 >= (width + 63) / 64 * 64) break;
    const float4 x = r.v[i];
    const float4 w = next.v[i];
    const float4 y = make_float4(x.x * norm * w.x, x.y * norm * w.y, x.z * norm * w.z, x.w * norm * w.w);
    if (V::inside(i, width) && step.plain != nullptr) *reinterpret_cast<float4*>(step.plain + col) = y;
    if (step.makes_operand) store_operand(step.operand, step.operand_row, col, y);
  }
}
template <int Pieces>
__device__ __forceinline__ void row_step(std::uint32_t width, float epsilon, const RowStep& step) {
  constexpr std::uint32_t kColumns = kThreads * 4;
  static_assert(kWidestRow == 3 * kColumns);
  if (width <= kColumns) {
    row_step<Pieces, 1>(width, epsilon, step);
  } else if (width <= 2 * kColumns) {
    row_step<Pieces, 2>(width, epsilon, step);
  } else {
    row_step<Pieces, 3>(width, epsilon, step);
  }
}

// Rows of f32 as the block's columns of an operand. `index`: which rows; null: `first` on.
__device__ __forceinline__ void operand_from_rows(const float* rows, const std::uint32_t* index,
                                                  std::uint32_t first, std::uint32_t width,
                                                  const Operand& x) {
  const std::uint32_t vectors = (x.chunk1 - x.chunk0) * 16;
#pragma unroll 1
  for (std::uint32_t i = thread_index(); i < x.rows * vectors; i += kThreads) {
    const std::uint32_t row = i / vectors;
    const std::uint32_t col = x.chunk0 * 64 + i % vectors * 4;
    const std::uint32_t from = index == nullptr ? first + row : index[first + row];
    float4 v = make_float4(0, 0, 0, 0);
    if (col < width) v = load4(rows + std::size_t{from} * width + col);
    store_operand(x, row, col, v);
  }
}

// gelu(gate) * up of four neighbouring columns of a row; zero beyond the last.
template <int Pieces>
__device__ __forceinline__ float4 activated(std::uint32_t ffn, const Parts& both, std::uint32_t row,
                                            std::uint32_t col) {
  const bool inside = col < ffn;
  const float* at[2] = {both.row(row) + (inside ? col : 0), both.row(row) + ffn + (inside ? col : 0)};
  float4 sums[2];
  sum_parts<Pieces>(both, at, sums);
  const float4 g = sums[0];
  const float4 u = sums[1];
  float4 y =
      make_float4(gelu_tanh(g.x) * u.x, gelu_tanh(g.y) * u.y, gelu_tanh(g.z) * u.z, gelu_tanh(g.w) * u.w);
  if (!inside) clear(y);
  return y;
}

}  // namespace gem::cuda
