// Matrix products of the cpu backend: rows of activations, prepared once in the form that the matrices need,
// against any number of matrices in one parallel loop.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/packed.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

namespace gem::cpu {

// Below this many multiply-adds (about 20 microseconds of one core) waking other threads costs more than it
// saves.
inline constexpr std::size_t kWorthSharing = 256 * 1024;

// Activation rows [rows, cols] in f32, and as 16-bit blocks where a matrix asks for them.
class Operand {
 public:
  // Points at `x` (kept by the caller) and forgets the integer form.
  void assign(const float* x, std::size_t rows, std::size_t cols);
  // Makes the integer form, once.
  void quantize(const Kernels& kernels, ThreadPool& pool);

  const float* floats() const { return x_; }
  Activations integers() const {
    return {q_.data(), scale_.data(),  sums_.data(),
            cols_,     cols_ / kBlock, split_ ? planes_.as<std::int8_t>() : nullptr};
  }
  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }

  // Bytes of the integer form of `rows` rows.
  static std::uint64_t bytes(std::uint64_t rows, std::uint64_t cols, const Kernels& kernels) {
    return rows * (cols * sizeof(std::int16_t) + cols / kBlock * (sizeof(float) + 2 * sizeof(std::int32_t))) +
           (splits(kernels, rows) ? plane_bytes(rows, cols) : 0);
  }

 private:
  // Few rows are never multiplied by tiles.
  static bool splits(const Kernels& kernels, std::uint64_t rows) {
    return kernels.split != nullptr && rows >= 2 * kPlaneRows;
  }

  static std::uint64_t plane_bytes(std::uint64_t rows, std::uint64_t cols) {
    return 2 * ((rows + kPlaneRows - 1) / kPlaneRows) * kPlaneRows * cols;
  }

  const float* x_ = nullptr;
  std::size_t rows_ = 0;
  std::size_t cols_ = 0;
  bool quantized_ = false;
  std::vector<std::int16_t> q_;
  std::vector<float> scale_;
  std::vector<std::int32_t> sums_;
  bool split_ = false;
  Buffer planes_;  // aligned: a row of a tile lies in one cache line
};

struct Product {
  const PackedMatrix* matrix;
  float* out;  // [rows, matrix->rows()]
};

// out[r, n] = matrix row n . x_r for every product.
void multiply(Operand& x, std::span<const Product> products, const Kernels& kernels, ThreadPool& pool);

}  // namespace gem::cpu
