#include "backend/cuda/decode_access.h"

#include <algorithm>

#include "backend/cuda/decode_operand.cuh"
#include "backend/cuda/launch.cuh"

namespace gem::cuda {
namespace {

__device__ Operand operand_of(const DecodeJob& job, const OperandShape& s, std::uint32_t pass) {
  Operand o;
  o.blocks = job.operand + std::size_t{s.chunks} * 2 * block_words(s.pass_rows) * pass;
  o.sums = job.operand_sums + std::size_t{s.chunks} * 2 * s.pass_rows * pass;
  o.scales = job.operand_scales + std::size_t{s.parts} * kSlices * s.pass_rows * pass;
  o.rows = min(s.pass_rows, s.rows - pass * s.pass_rows);
  o.block_rows = block_rows(s.pass_rows, o.rows);
  o.pitch = s.pass_rows;
  o.chunk0 = 0;
  o.chunk1 = s.chunks;
  o.slice0 = 0;
  return o;
}

__global__ void write_kernel(const __grid_constant__ DecodeJob job, OperandShape s, const float* values,
                             float up) {
  const std::uint32_t row = blockIdx.y;
  const Operand o = operand_of(job, s, row / s.pass_rows);
  const std::uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (col == 0) {
    for (std::uint32_t i = 0; i < s.parts * kSlices; ++i)
      o.scales[i * o.pitch + row % s.pass_rows] = 1.0f / up;
  }
  if (col - (threadIdx.x & 7u) * 4 >= s.chunks * kChunkCols) return;
  float v[4] = {};
  for (int i = 0; i < 4; ++i) {
    if (col + i < s.cols) v[i] = values[std::size_t{row} * s.cols + col + i];
  }
  store_operand(o, row % s.pass_rows, col, make_float4(v[0], v[1], v[2], v[3]), up);
}

__global__ void read_kernel(const __grid_constant__ DecodeJob job, OperandShape s, float* values) {
  const std::uint32_t row = blockIdx.y;
  const Operand o = operand_of(job, s, row / s.pass_rows);
  const std::uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= s.cols) return;
  const std::uint32_t* word = o.blocks + std::size_t{col / kBlockCols} * block_words(o.block_rows) +
                              row % s.pass_rows * row_words(o.block_rows) + word_of(col % kBlockCols);
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(word));
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(word + low_words(o.block_rows)));
  const float value = col % 2 == 0 ? high.x + low.x : high.y + low.y;
  // The slice is the last one that begins at or before the column's chunk.
  std::uint32_t slice = 0;
  const std::uint32_t slices = s.parts * kSlices;
  while (slice + 1 < slices && (slice + 1) * s.chunks / slices <= col / kChunkCols) ++slice;
  values[std::size_t{row} * s.cols + col] = value * o.scales[slice * o.pitch + row % s.pass_rows];
}

}  // namespace

void read_operand(const DecodeJob& job, const OperandShape& s, float* values, cudaStream_t stream) {
  launch(read_kernel, {dim3((s.cols + 255) / 256, s.rows), 256, 0, stream}, job, s, values);
  check_launch("reading an operand");
}

void write_operand(const DecodeJob& job, const OperandShape& s, const float* values, float up,
                   cudaStream_t stream) {
  launch(write_kernel, {dim3((s.chunks * kChunkCols + 1023) / 1024, s.rows), 256, 0, stream}, job, s, values,
         up);
  check_launch("writing an operand");
}

}  // namespace gem::cuda
