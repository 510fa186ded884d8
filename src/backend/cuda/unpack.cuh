// Where a value lies within a packed chunk (packed.h), and reading it.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/packed.h"

namespace gem::cuda {

// In step s (16 columns) lane l holds columns 16 s + 4 (l % 4) and the next three of rows l / 4 and l / 4
// + 8.
struct Place {
  std::uint32_t lane, step, place;  // place: among the four columns
  bool second;                      // of the two rows
};
__host__ __device__ inline Place place_of(std::uint32_t row, std::uint32_t col) {
  return {(row % 8) * 4 + (col % 16) / 4, col / 16, col % 4, row / 8 != 0};
}

// Byte and bit of a code within a chunk. Q4: word `step` of the lane; a column's byte has the first row's
// code in the low nibble.
__host__ __device__ inline std::uint32_t q4_word(const Place& p) {
  return p.lane * 16 + p.step * 4;
}
__host__ __device__ inline std::uint32_t q4_shift(const Place& p) {
  return p.place * 8 + (p.second ? 4u : 0u);
}
// Q8: a word for the first row's four columns, then one for the second's. Two 16-byte halves (steps 0, 1 and
// 2, 3), 512 bytes apart: lanes read 16 bytes each without conflicts.
__host__ __device__ inline std::uint32_t q8_byte(const Place& p) {
  return (p.step / 2) * 512 + p.lane * 16 + (p.step % 2) * 8 + (p.second ? 4u : 0u) + p.place;
}
// As a0 .. a3 of mma.m16n8k16: the first two columns of both rows, then the other two.
__host__ __device__ inline std::uint32_t h16_byte(const Place& p) {
  return p.step * 512 + p.lane * 16 + p.place / 2 * 8 + (p.second ? 4u : 0u) + p.place % 2 * 2;
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
