// Where a value lies within a packed chunk (packed.h), and reading it.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/packed.h"

namespace gem::cuda {

// The four values of a lane in step s (16 columns) are a0..a3; each is a pair of neighbouring columns.
//   a0: (row, c..c+1)  a1: (row + 8, c..c+1)  a2: (row, c + 8..c + 9)  a3: (row + 8, c + 8..c + 9)
// with row = lane / 4 and c = 16 s + 2 (lane % 4).
struct Place {
  std::uint32_t lane, step, reg, half;
};
__host__ __device__ inline Place place_of(std::uint32_t row, std::uint32_t col) {
  const std::uint32_t in_step = col % 16;
  return {(row % 8) * 4 + (in_step % 8) / 2, col / 16, row / 8 + 2 * (in_step / 8), in_step % 2};
}

// Byte and bit of a code within a chunk. Q4: word `step` of the lane; registers take the nibbles 0..3 of each
// half of 16 bits, so that one mask expands a pair of columns.
__host__ __device__ inline std::uint32_t q4_word(const Place& p) {
  return p.lane * 16 + p.step * 4;
}
__host__ __device__ inline std::uint32_t q4_shift(const Place& p) {
  return p.half * 16 + p.reg * 4;
}
// Q8: the lane's 32 bytes are step-major; a register's pair of codes are bytes {0, 2} or {1, 3} of a word, so
// that a word serves two registers.
__host__ __device__ inline std::uint32_t q8_byte(const Place& p) {
  // Two 16-byte halves (steps 0, 1 and 2, 3), 512 bytes apart: lanes read 16 bytes each without conflicts.
  return (p.step / 2) * 512 + p.lane * 16 + (p.step % 2) * 8 + (p.reg / 2) * 4 + p.half * 2 + (p.reg % 2);
}
__host__ __device__ inline std::uint32_t h16_byte(const Place& p) {
  return p.step * 512 + p.lane * 16 + p.reg * 4 + p.half * 2;
}
// Of the scale of a row's 32-block within the chunk, in units of one scale.
__host__ __device__ inline std::uint32_t scale_index(std::uint32_t row, std::uint32_t block) {
  return (row % 8) * 4 + block * 2 + row / 8;
}
// Of the f32 scale of a row's 32-block in A4 and A8; its minimum lies two further.
__host__ __device__ inline std::uint32_t affine_index(std::uint32_t row, std::uint32_t block) {
  return (block * 8 + row % 8) * 4 + row / 8;
}
// Of the f32 scale of a row's 16 columns in S8.
__host__ __device__ inline std::uint32_t step_scale_index(std::uint32_t row, std::uint32_t step) {
  return (step * 8 + row % 8) * 2 + row / 8;
}

__device__ __forceinline__ float unpack(Format format, const std::uint8_t* chunk, std::uint32_t row,
                                        std::uint32_t col) {
  const Place p = place_of(row, col);
  const std::uint32_t s = scale_index(row, col / 32);
  if (format == Format::kQ4) {
    const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(chunk + q4_word(p));
    const float scale = __half2float(reinterpret_cast<const __half*>(chunk + 512)[s]);
    return scale * static_cast<float>(static_cast<int>((word >> q4_shift(p)) & 15u) - 8);
  }
  if (format == Format::kQ8) {
    const float scale = __half2float(reinterpret_cast<const __half*>(chunk + 1024)[s]);
    return scale * static_cast<float>(static_cast<std::int8_t>(chunk[q8_byte(p)]));
  }
  if (format == Format::kH16) {
    const float scale = reinterpret_cast<const float*>(chunk + 2048)[s];
    return scale * __half2float(*reinterpret_cast<const __half*>(chunk + h16_byte(p)));
  }
  if (format == Format::kS8) {
    const float scale = reinterpret_cast<const float*>(chunk + 1024)[step_scale_index(row, col / 16)];
    return scale * static_cast<float>(static_cast<std::int8_t>(chunk[q8_byte(p)]));
  }
  // Rounded twice, as on the host.
  const std::uint32_t at = affine_index(row, col / 32);
  const float* scales = reinterpret_cast<const float*>(chunk + (format == Format::kA4 ? 512 : 1024));
  const std::uint32_t code =
      format == Format::kA4 ? *reinterpret_cast<const std::uint32_t*>(chunk + q4_word(p)) >> q4_shift(p) & 15u
                            : chunk[q8_byte(p)];
  return __fadd_rn(__fmul_rn(scales[at], static_cast<float>(code)), scales[at + 2]);
}

}  // namespace gem::cuda
