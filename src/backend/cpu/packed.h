// Matrices as the cpu kernels read them.
//
// Integer types are packed in groups of 16 rows (the last group filled up with zero rows), block after block,
// in as many bytes as the checkpoint has (Q4_K and Q5_K in 3 % more):
//   Q4_0   f16 scales [blocks][16], filled up to 64 bytes; then a block's codes: 4 vectors of 16 rows * 32
//          bits. Vector v of a row holds columns 8v .. 8v+7 of the block: nibble i of its lower 16 bits is
//          column 8v + 2i, nibble i of its upper 16 bits column 8v + 2i + 1. One shift and one mask give
//          pairs of columns in 16-bit lanes.
//   Q8_0   f16 scales likewise; then a block's codes: 16 vectors of 16 rows * 2 bytes, columns 2v and 2v + 1.
//   Q4_K, Q5_K, Q6_K  nibbles in the same order beside their upper bits and scales
//   (backend/cpu/super_blocks.h).
//   MLX's affine types, Q4_1, Q5_0, Q5_1: see backend/cpu/affine.h.
// F32, F16 and BF16 matrices stay where they are, row by row.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/affine.h"
#include "backend/cpu/kernels.h"
#include "backend/geometry.h"
#include "base/buffer.h"

namespace gem::cpu {

// The most that direct_rows gives.
inline constexpr std::size_t kMostDirectRows = 16;

enum class PackedForm : std::uint8_t { kNibbles, kBytes, kSuper, kAffine, kFloats };
PackedForm packed_form(StorageType type);

class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Only fixes the sizes; pack_group fills them in. A matrix of floats is used from `source`.
  explicit PackedMatrix(const Matrix& source);

  PackedForm form() const { return form_; }
  const Matrix& source() const { return source_; }
  std::size_t rows() const { return source_.rows; }
  std::size_t cols() const { return source_.cols; }
  std::size_t blocks() const { return source_.cols / kBlock; }
  std::size_t groups() const { return (rows() + kGroupRows - 1) / kGroupRows; }
  std::size_t bytes() const { return form_ == PackedForm::kFloats ? 0 : groups() * group_bytes_; }

  void allocate();
  void pack_group(std::size_t group);
  const std::byte* group(std::size_t group) const { return data_.as<std::byte>() + group * group_bytes_; }

  // Up to this many rows a group is multiplied without a panel, decoded anew for every tile of rows, in
  // registers; beyond, unpacking it once into the cache costs less than it saves. 0: always through panels.
  std::size_t direct_rows(const Kernels& kernels) const;
  // That product: as Kernels::group_q4_0.
  void multiply_group(std::size_t group, const Activations& x, std::size_t rows, float* out,
                      const Kernels& kernels) const;

  // Blocks first .. first + panel.blocks - 1 of a group. Sets the panel's scales_per_block and has_minima.
  void unpack(std::size_t group, std::size_t first, Panel& panel, const Kernels& kernels) const;

 private:
  Matrix source_;
  PackedForm form_ = PackedForm::kFloats;
  AffineLayout affine_;
  std::size_t group_bytes_ = 0;
  Buffer data_;
};

// A super-block of one row into its lanes of a group's super-block.
void pack_super_block(StorageType type, const std::byte* stored, std::size_t row, std::byte* out);

}  // namespace gem::cpu
