// Matrices as the device keeps them.
//
// A tile is 16 rows; a chunk is 64 columns of a tile. The bytes of a chunk lie together, a tile's chunks one
// after the other, so that a warp streams a tile with bulk copies. Within a chunk the codes lie as the lanes
// of a warp need them as the A operand of mma.m16n8k32 (of halves: m16n8k16), lane l those of rows l/4 and
// l/4 + 8 (unpack.cuh has the order). Rows and columns beyond the matrix are zero.
//
//   Q4:  32 lanes x 16 bytes of codes 0..15 (value code - 8), then per row pair (l/4) the four f16 scales
//        {row, row + 8} x {columns 0..31, 32..63}: 576 bytes
//   Q8:  32 lanes x 32 bytes of codes -128..127, then the scales likewise: 1,088 bytes
//   H16: 32 lanes x 64 bytes of f16, then four f32 scales a row pair: 2,176 bytes. F16 as it is; BF16 and F32
//        as f16 times a power of two a 32-block.
//   A4:  codes 0..15 as those of Q4, then for each 32-block and row pair four f32, scales {row, row + 8} and
//        minima: 768 bytes. Q4_1, Q4_K, MLX with up to 4 bits: value scale * code + minimum
//   A8:  bytes as those of Q8, unsigned, then as A4: 1,280 bytes. Q5_1, Q5_K, MLX with 5 to 8 bits
//   S8:  bytes as those of Q8, then for each 16 columns and row pair two f32 scales: 1,280 bytes. Q5_0, Q6_K
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/geometry.h"

namespace gem::cuda {

enum class Format : std::uint8_t { kQ4, kQ8, kH16, kA4, kA8, kS8 };

constexpr std::uint32_t kTileRows = 16;
constexpr std::uint32_t kChunkCols = 64;

// (A table would lie in the device's memory.)
constexpr std::uint32_t chunk_bytes(Format format) {
  return format == Format::kQ4    ? 576
         : format == Format::kQ8  ? 1088
         : format == Format::kH16 ? 2176
         : format == Format::kA4  ? 768
                                  : 1280;
}
constexpr bool has_minima(Format format) {
  return format == Format::kA4 || format == Format::kA8;
}
// Whose codes lie as those of Q4; else bytes or halves.
constexpr bool has_nibbles(Format format) {
  return format == Format::kQ4 || format == Format::kA4;
}

struct PackedMatrix {
  Format format = Format::kQ4;
  std::uint32_t rows = 0, cols = 0;
  std::uint32_t tiles = 0;   // rows / 16, rounded up
  std::uint32_t chunks = 0;  // cols / 64, rounded up
  DeviceArray<std::uint8_t> data;

  bool empty() const { return rows == 0; }
};

// Matrices are kept as they are, or, of a million numbers and more with more bits, rounded to Q4_0: for an
// assistant, whose every guess is checked.
enum class Precision : std::uint8_t { kKept, kFourBits };

Format format_of(const Matrix& matrix, Precision precision);
std::uint64_t packed_bytes(const Matrix& matrix, Precision precision);

// Uploads a matrix through two pinned buffers and packs it on the device.
class Packer {
 public:
  explicit Packer(cudaStream_t stream, Precision precision = Precision::kKept);
  ~Packer();
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;
  PackedMatrix pack(const Matrix& matrix);

 private:
  // Rows first_row .. of `tiles` tiles, which lie at `raw`.
  void pack_piece(const PackedMatrix& packed, const std::uint8_t* raw, std::uint64_t row_bytes,
                  std::uint32_t first_row, std::uint32_t tiles);

  static constexpr std::size_t kPiece = std::size_t{64} << 20;
  cudaStream_t stream_;
  Precision precision_;
  PinnedArray<std::uint8_t> host_[2];
  DeviceArray<std::uint8_t> raw_[2];
  cudaEvent_t free_[2] = {};
  int next_ = 0;
};

struct RowInfo;

// The rows of a packed matrix that the round's tokens name, in f32, times `multiplier`: out, `pitch` floats a
// row. A negative token leaves its row.
void gather_rows(const PackedMatrix& matrix, const RowInfo* rows, std::uint32_t count, float multiplier,
                 float* out, std::uint32_t pitch, cudaStream_t stream);
// y = W x of a few rows in f32: x [count, cols], y [count, rows]. A row's sums do not depend on the others.
// For matrices that are small beside the model's: an assistant's projections.
void multiply_rows(const PackedMatrix& matrix, const float* x, std::uint32_t count, float* y,
                   cudaStream_t stream);
// The whole matrix in bf16, row-major [rows, cols].
void expand_bf16(const PackedMatrix& matrix, std::uint16_t* out, cudaStream_t stream);

}  // namespace gem::cuda
