// Random weights in any storage type, and matrices of them.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/geometry.h"
#include "base/affine.h"
#include "base/numbers.h"
#include "base/storage.h"

namespace gem::testing {

inline std::vector<float> random_floats(std::size_t n, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// Random stored weights of any type, with finite scales of a sensible size.
inline std::vector<std::byte> random_storage(StorageType type, std::size_t rows, std::size_t cols,
                                             unsigned seed) {
  const std::size_t elements = rows * cols;
  std::vector<std::byte> out(*storage_bytes(type, elements));
  if (can_quantize(type)) {
    const std::vector<float> weights = random_floats(elements, seed, 0.05f);
    quantize(type, weights.data(), out.data(), elements);
    return out;
  }
  std::mt19937 random(seed);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  // The f16 scales: between 0.001 and 0.002, whatever their place.
  const StorageInfo& info = storage_info(type);
  for (std::size_t at = 0; at < out.size(); at += info.block_bytes) {
    const auto put = [&](std::size_t offset) {
      out[at + offset] = static_cast<std::byte>(random());
      out[at + offset + 1] = std::byte{0x14};
    };
    put(type == StorageType::kQ6_K ? 208 : 0);
    if (type != StorageType::kQ6_K && type != StorageType::kQ5_0) put(2);
  }
  return out;
}

// What a matrix is stored as: a block type, or MLX codes of so many bits in groups of so many columns.
struct MatrixKind {
  StorageType type = StorageType::kF32;
  std::uint32_t bits = 0, group = 0;
  std::string name() const {
    return type == StorageType::kAffine ? "MLX" + std::to_string(bits) + "g" + std::to_string(group)
                                        : std::string(storage_info(type).name);
  }
};

// A matrix that owns its storage.
class RandomMatrix {
 public:
  RandomMatrix(const MatrixKind& kind, std::uint32_t rows, std::uint32_t cols, unsigned seed) {
    matrix.type = kind.type;
    matrix.rows = rows;
    matrix.cols = cols;
    if (kind.type != StorageType::kAffine) {
      storage_ = random_storage(kind.type, rows, cols, seed);
      matrix.data = storage_.data();
      return;
    }
    matrix.affine.bits = kind.bits;
    matrix.affine.group = kind.group;
    std::mt19937 random(seed);
    storage_.resize(rows * matrix.affine.row_code_bytes(cols));
    for (std::byte& b : storage_) b = static_cast<std::byte>(random());
    const std::size_t groups = std::size_t{rows} * cols / kind.group;
    scales_.resize(2 * groups);
    for (std::size_t i = 0; i < groups; ++i) {
      const float scale = 0.1f / static_cast<float>(1u << kind.bits) * (1 + static_cast<float>(i % 7) / 8);
      scales_[i] = f32_to_bf16(i % 5 == 0 ? -scale : scale);
      scales_[groups + i] = f32_to_bf16((i % 5 == 0 ? 0.05f : -0.05f) * (1 + static_cast<float>(i % 3) / 4));
    }
    matrix.data = storage_.data();
    matrix.affine.scales = reinterpret_cast<const std::byte*>(scales_.data());
    matrix.affine.biases = reinterpret_cast<const std::byte*>(scales_.data() + groups);
  }
  RandomMatrix(const RandomMatrix&) = delete;
  RandomMatrix& operator=(const RandomMatrix&) = delete;

  Matrix matrix;

 private:
  std::vector<std::byte> storage_;
  std::vector<std::uint16_t> scales_;
};

}  // namespace gem::testing
