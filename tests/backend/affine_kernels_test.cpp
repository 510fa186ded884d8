// Products with MLX's affine weights, every width and group, on every kernel table that this processor runs.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "backend/cpu/products.h"

namespace gem::cpu {
namespace {

// A matrix of random codes, stored at odd addresses as a checkpoint may have it.
class StoredAffine {
 public:
  StoredAffine(std::uint32_t bits, std::uint32_t group, StorageType scale_type, std::uint32_t rows,
               std::uint32_t cols)
      : rows_(rows), cols_(cols) {
    affine_ = {bits, group, scale_type, nullptr, nullptr};
    std::mt19937 random(bits * 1000 + group);
    codes_.resize(rows * affine_.row_code_bytes(cols) + 1);
    for (std::byte& b : codes_) b = static_cast<std::byte>(random());
    const std::size_t groups = rows * cols / group;
    std::normal_distribution<float> normal(0, 0.05f);
    std::vector<float> scales(groups);
    std::vector<float> biases(groups);
    for (std::size_t i = 0; i < groups; ++i) {
      scales[i] = normal(random);
      biases[i] = normal(random) - scales[i] * static_cast<float>(1u << (bits - 1));
    }
    scales_.resize(groups * affine_.scale_bytes() + 1);
    biases_.resize(scales_.size());
    gem::quantize(scale_type, scales.data(), scales_.data() + 1, groups);
    gem::quantize(scale_type, biases.data(), biases_.data() + 1, groups);
    affine_.scales = scales_.data() + 1;
    affine_.biases = biases_.data() + 1;
  }
  Matrix matrix() const { return {StorageType::kAffine, rows_, cols_, codes_.data() + 1, affine_}; }

 private:
  std::uint32_t rows_, cols_;
  Affine affine_;
  std::vector<std::byte> codes_, scales_, biases_;
};

std::vector<float> random_floats(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

class AffineProducts : public ::testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override {
    if (!GetParam()->supported()) GTEST_SKIP() << "this processor has no " << GetParam()->name;
  }
  std::vector<float> product(const PackedMatrix& matrix, const std::vector<float>& x) {
    std::vector<float> out(x.size() / matrix.cols() * matrix.rows());
    Operand operand;
    operand.assign(x.data(), x.size() / matrix.cols(), matrix.cols());
    const Product products[] = {{&matrix, out.data()}};
    multiply(operand, products, *GetParam(), pool_);
    return out;
  }
  static PackedMatrix pack(const Matrix& source) {
    PackedMatrix packed(source);
    packed.allocate();
    for (std::size_t g = 0; g < packed.groups(); ++g) packed.pack_group(g);
    return packed;
  }
  ThreadPool pool_{1};
};

struct Kind {
  std::uint32_t bits, group;
  StorageType scale_type;
};
std::vector<Kind> kinds() {
  std::vector<Kind> out;
  for (const std::uint32_t bits : {2u, 3u, 4u, 5u, 6u, 8u}) {
    for (const std::uint32_t group : {32u, 64u, 128u}) out.push_back({bits, group, StorageType::kBF16});
    out.push_back({bits, 64, StorageType::kF16});
    out.push_back({bits, 64, StorageType::kF32});
  }
  return out;
}

TEST_P(AffineProducts, AreNearTheExactOnes) {
  constexpr std::uint32_t kRows = 37;  // the last group is filled up
  constexpr std::size_t kTokens = 19;  // few rows and panels
  for (const Kind& kind : kinds()) {
    for (const std::uint32_t cols : {128u, 640u, 896u}) {
      const StoredAffine stored(kind.bits, kind.group, kind.scale_type, kRows, cols);
      const PackedMatrix matrix = pack(stored.matrix());
      const std::vector<float> x = random_floats(kTokens * cols, 2);
      const std::vector<float> many = product(matrix, x);
      const std::vector<float> one = product(matrix, {x.begin(), x.begin() + cols});
      std::vector<float> w(cols);
      for (std::uint32_t n = 0; n < kRows; ++n) {
        stored.matrix().expand_row(n, w.data());
        for (std::size_t r = 0; r < kTokens; ++r) {
          double exact = 0;
          double bound =
              0;  // half a step of each block's 16-bit grid, and f32 sums of codes and biases apart
          for (std::size_t b = 0; b < cols; b += 32) {
            double peak = 0;
            for (std::size_t i = b; i < b + 32; ++i)
              peak = std::max(peak, std::fabs(double{x[r * cols + i]}));
            for (std::size_t i = b; i < b + 32; ++i) {
              exact += double{w[i]} * double{x[r * cols + i]};
              bound += std::fabs(double{w[i]}) * peak / 65534 + 0.1 * (1u << kind.bits) * peak * 1e-7;
            }
          }
          ASSERT_NEAR(many[r * kRows + n], exact, bound)
              << kind.bits << " bits, groups of " << kind.group << ", " << cols << " columns";
        }
        ASSERT_EQ(one[n], many[n]) << kind.bits;
      }
    }
  }
}

// Law 1: registers for few rows, panels for many.
TEST_P(AffineProducts, ARowsBitsDoNotDependOnTheNumberOfRows) {
  constexpr std::uint32_t kCols = 768;
  constexpr std::size_t kTokens = 40;
  for (const Kind& kind : kinds()) {
    const StoredAffine stored(kind.bits, kind.group, kind.scale_type, 48, kCols);
    const PackedMatrix matrix = pack(stored.matrix());
    const std::vector<float> x = random_floats(kTokens * kCols, 3);
    const std::vector<float> together = product(matrix, x);
    for (const std::size_t rows : {1u, 2u, 3u, 4u, 5u, 8u, 9u, 17u}) {
      const std::size_t first = kTokens - rows;
      const std::vector<float> some =
          product(matrix, {x.begin() + static_cast<std::ptrdiff_t>(first * kCols), x.end()});
      EXPECT_TRUE(
          std::equal(some.begin(), some.end(), together.begin() + static_cast<std::ptrdiff_t>(first * 48)))
          << kind.bits << " bits, groups of " << kind.group << ", " << rows << " rows";
    }
  }
}

// The largest codes against the largest activations, in every column: nothing overflows.
TEST_P(AffineProducts, ExtremeCodesAreExact) {
  for (const std::uint32_t bits : {2u, 3u, 4u, 5u, 6u, 8u}) {
    const std::vector<std::byte> codes(16 * 64 * bits / 8, std::byte{0xff});
    const std::vector<std::uint16_t> scales(16, 0x3f80);  // 1 in bf16
    const std::vector<std::uint16_t> biases(16, 0xbf80);  // -1
    const auto* s = reinterpret_cast<const std::byte*>(scales.data());
    const auto* b = reinterpret_cast<const std::byte*>(biases.data());
    const PackedMatrix matrix =
        pack(Matrix{StorageType::kAffine, 16, 64, codes.data(), {bits, 64, StorageType::kBF16, s, b}});
    for (const float sign : {1.0f, -1.0f}) {
      for (const std::size_t rows : {1u, 2u, 20u}) {
        const double exact = 64.0 * double{sign} * ((1u << bits) - 2);
        for (const float y : product(matrix, std::vector<float>(rows * 64, sign)))
          ASSERT_NEAR(y, exact, std::fabs(exact) * 1e-6) << bits;
      }
    }
  }
}

TEST_P(AffineProducts, AValueThatIsNotFiniteIsNotHidden) {
  const StoredAffine stored(4, 64, StorageType::kBF16, 16, 128);
  const PackedMatrix matrix = pack(stored.matrix());
  std::vector<float> x = random_floats(128, 5);
  x[70] = INFINITY;
  for (const float y : product(matrix, x)) EXPECT_TRUE(std::isnan(y));
}

// As many bytes as the checkpoint has.
TEST_P(AffineProducts, PackingCostsNoMemory) {
  const StoredAffine stored(4, 64, StorageType::kBF16, 32, 256);
  EXPECT_EQ(PackedMatrix(stored.matrix()).bytes(), 32u * (256 / 2 + 256 / 64 * 4));
}

INSTANTIATE_TEST_SUITE_P(Isa, AffineProducts, ::testing::ValuesIn(all_kernels().begin(), all_kernels().end()),
                         [](const auto& test) { return std::string(test.param->name); });

}  // namespace
}  // namespace gem::cpu
