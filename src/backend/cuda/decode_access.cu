#include "backend/cuda/decode_access.h"

#include <algorithm>

#include "backend/cuda/decode_operand.cuh"
#include "backend/cuda/launch.cuh"

namespace gem::cuda {
namespace {

__device__ Operand operand_of(const DecodeJob& job, const OperandShape& s, std::uint32_t pass) {
  const std::size_t places = std::size_t{s.chunks} * 2 * s.pass_rows * pass;
  Operand o;
  o.blocks = job.operand + places * kRowWords;
  o.origins = reinterpret_cast<Origin*>(job.origins) + places;
  o.rows = min(s.pass_rows, s.rows - pass * s.pass_rows);
  o.block_rows = block_rows(s.pass_rows, o.rows);
  o.chunk0 = 0;
  o.chunk1 = s.chunks;
  return o;
}

__global__ void write_kernel(const __grid_constant__ DecodeJob job, OperandShape s, const float* values) {
  const std::uint32_t row = blockIdx.y;
  const Operand o = operand_of(job, s, row / s.pass_rows);
  const std::uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (col - (threadIdx.x & 7u) * 4 >= s.chunks * kChunkCols) return;
  float v[4] = {};
  for (int i = 0; i < 4; ++i) {
    if (col + i < s.cols) v[i] = values[std::size_t{row} * s.cols + col + i];
  }
  store_operand(o, row % s.pass_rows, col, make_float4(v[0], v[1], v[2], v[3]));
}

__global__ void read_kernel(const __grid_constant__ DecodeJob job, OperandShape s, float* values) {
  const std::uint32_t row = blockIdx.y;
  const Operand o = operand_of(job, s, row / s.pass_rows);
  const std::uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= s.cols) return;
  const std::uint32_t place = col / kBlockCols * o.block_rows + row % s.pass_rows;
  const std::uint32_t* word = o.blocks + std::size_t{place} * kRowWords + word_of(col % kBlockCols);
  const auto byte = [&](std::uint32_t bytes) {
    return static_cast<float>(static_cast<std::int8_t>(bytes >> col % 4 * 8));
  };
  values[std::size_t{row} * s.cols + col] =
      (256 * byte(word[0]) + byte(word[2])) * (o.origins[place].zero * kPerZero);
}

}  // namespace

void read_operand(const DecodeJob& job, const OperandShape& s, float* values, cudaStream_t stream) {
  launch(read_kernel, {dim3((s.cols + 255) / 256, s.rows), 256, 0, stream}, job, s, values);
  check_launch("reading an operand");
}

void write_operand(const DecodeJob& job, const OperandShape& s, const float* values, cudaStream_t stream) {
  launch(write_kernel, {dim3((s.chunks * kChunkCols + 1023) / 1024, s.rows), 256, 0, stream}, job, s, values);
  check_launch("writing an operand");
}

}  // namespace gem::cuda
