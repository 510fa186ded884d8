// MLX's affine storage: w = s * q + b, with an unsigned code q for every weight and a scale s and a bias b
// for every `group` consecutive columns of a row. Codes, scales and biases lie apart, each row after row:
//   codes   a row is one bit stream, code j at bits [j * bits, (j + 1) * bits), least significant bit first
//   scales  [rows, cols / group] in `scale_type`, and the biases likewise
// None of them is aligned in a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/storage.h"

namespace gem {

struct Affine {
  std::uint32_t bits = 0;                       // 2, 3, 4, 5, 6 or 8
  std::uint32_t group = 0;                      // 32, 64 or 128
  StorageType scale_type = StorageType::kBF16;  // or F16, F32
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;

  static bool knows_bits(std::uint64_t bits) { return (bits >= 2 && bits <= 6) || bits == 8; }
  static bool knows_group(std::uint64_t group) { return group == 32 || group == 64 || group == 128; }

  std::size_t row_code_bytes(std::size_t cols) const { return cols / 8 * bits; }
  std::size_t scale_bytes() const { return scale_type == StorageType::kF32 ? 4 : 2; }
  std::size_t row_scale_bytes(std::size_t cols) const { return cols / group * scale_bytes(); }
  // Group `index` counted over all rows.
  float scale(std::size_t index) const { return at(scales, index); }
  float bias(std::size_t index) const { return at(biases, index); }
  std::string name() const;  // "MLX 4-bit g64"

 private:
  float at(const std::byte* values, std::size_t index) const;
};

// `count` codes (a multiple of 8) from column `first` (one too) of the row whose codes begin at `row`.
void unpack_codes(std::uint32_t bits, const std::byte* row, std::size_t first, std::size_t count,
                  std::uint8_t* out);
void pack_codes(std::uint32_t bits, const std::uint8_t* codes, std::size_t count, std::byte* out);

// Row `row` of a matrix of `cols` columns to f32: s * q + b in f32 (the product is exact where s has 16
// bits). `codes` are those of the row.
void dequantize_affine(const Affine& affine, const std::byte* codes, std::size_t row, std::size_t cols,
                       float* out);

// Rounds whole groups by MLX's rule, all in f32: the step is (max - min) / (2^bits - 1), negative where the
// positive edge is the larger or equal one; it is then stretched so that zero has a code, and the edge of
// larger magnitude is the bias. Ties go to even, the maximum is the true one and codes are clamped on both
// sides, as MLX does on the CPU (its GPU kernels round ties away from zero). `out.scales` and `out.biases`
// are not read; `scales` and `biases` take one value a group in `out.scale_type`, `codes` the bit stream.
// A group with a value that is not finite gets a scale of NaN.
void quantize_affine(const Affine& out, const float* x, std::size_t n, std::byte* codes, std::byte* scales,
                     std::byte* biases);

}  // namespace gem
