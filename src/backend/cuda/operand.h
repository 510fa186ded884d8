// Activations as the right-hand side of the few-row products: two f16 halves of every value, scaled by a
// power of two for each 32-block, so that a product's error is that of f32 (22 bits of mantissa).
//
// For each row: [cols / 16] steps of 64 bytes: the high halves, then the low ones, each as four lanes' {b0,
// b1} of mma.m16n8k16 (columns 2j, 2j+1 and 2j+8, 2j+9 for lane j); and one f32 a 32-block. value = (high +
// low) * scale.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/device.h"

namespace gem::cuda {

struct OperandView {
  std::uint32_t* halves = nullptr;  // [rows][cols / 16][16 words]
  float* scales = nullptr;          // [rows][cols / 32]
  std::uint32_t cols = 0;           // a multiple of 64; beyond the matrix: zero
};

struct Operand {
  DeviceArray<std::uint32_t> halves;
  DeviceArray<float> scales;
  std::uint32_t cols = 0;

  static std::uint32_t padded(std::uint32_t cols) { return (cols + 63) / 64 * 64; }
  void reserve(std::uint32_t rows, std::uint32_t columns) {
    halves.reserve(std::size_t{rows} * padded(columns));
    scales.reserve(std::size_t{rows} * padded(columns) / 32);
  }
  OperandView view(std::uint32_t columns) { return {halves.data(), scales.data(), padded(columns)}; }
};

#ifdef __CUDACC__
// Four neighbouring values, columns col .. col + 3 (col % 4 == 0), of which the eight threads of an aligned
// group of eight lanes hold a 32-block. All lanes of the group must call it together.
__device__ inline void store_operand(const OperandView& to, std::uint32_t row, std::uint32_t col, float4 v) {
  float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  const unsigned group = 0xffu << (threadIdx.x & 24u);
  for (int step = 4; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(group, largest, step));
  // 2^k with largest * 2^k in [2^13, 2^14): from the exponent bits alone, so exact.
  const int exponent = static_cast<int>((__float_as_uint(largest) >> 23) & 255u);
  const int k = exponent == 0 ? 0 : min(max(127 + 13 - exponent, -126), 126);
  const float up = __uint_as_float(static_cast<unsigned>(127 + k) << 23);
  const float down = __uint_as_float(static_cast<unsigned>(127 - k) << 23);
  const float x[4] = {v.x * up, v.y * up, v.z * up, v.w * up};
  unsigned high[2];
  unsigned low[2];
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const __half2 h = __floats2half2_rn(x[2 * pair], x[2 * pair + 1]);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(x[2 * pair] - back.x, x[2 * pair + 1] - back.y);
    high[pair] = *reinterpret_cast<const unsigned*>(&h);
    low[pair] = *reinterpret_cast<const unsigned*>(&l);
  }
  const std::uint32_t in_step = col % 16;        // 0, 4, 8 or 12
  const std::uint32_t b = in_step / 8;           // b0 or b1
  const std::uint32_t lane = (in_step % 8) / 2;  // 0 or 2
  unsigned* step = to.halves + (std::size_t{row} * to.cols / 16 + col / 16) * 16;
  step[lane * 2 + b] = high[0];
  step[lane * 2 + 2 + b] = high[1];
  step[8 + lane * 2 + b] = low[0];
  step[8 + lane * 2 + 2 + b] = low[1];
  if ((threadIdx.x & 7u) == 0) to.scales[std::size_t{row} * to.cols / 32 + col / 32] = down;
}
#endif

}  // namespace gem::cuda
