// Every kernel table that this processor runs, against plain float64 loops.
#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"

namespace gem::cpu {
namespace {

std::vector<float> random_floats(std::size_t n, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

class KernelTable : public ::testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override {
    if (!GetParam()->supported()) GTEST_SKIP() << "this processor has no " << GetParam()->name;
  }
  const Kernels& k() const { return *GetParam(); }
};

constexpr std::size_t kCols[] = {32, 64, 96, 384, 896, 3840};  // odd and even numbers of blocks

TEST_P(KernelTable, QuantisedProductsAreNearTheExactOnes) {
  for (const StorageType type : {StorageType::kQ4_0, StorageType::kQ8_0}) {
    for (const std::size_t cols : kCols) {
      const std::vector<float> weights = random_floats(cols, 1, 0.05f);
      std::vector<std::byte> stored(*storage_bytes(type, cols));
      quantize(type, weights.data(), stored.data(), cols);
      std::vector<float> exact_weights(cols);
      dequantize(type, stored.data(), exact_weights.data(), cols);
      constexpr unsigned kRows = kRowTile;
      const std::vector<float> x = random_floats(kRows * cols, 2, 3);
      const std::size_t pairs = activation_pairs(cols);
      std::vector<ActivationPair> q(kRows * pairs);
      const PairOrder order = type == StorageType::kQ4_0 ? PairOrder::kNibbles : PairOrder::kBytes;
      for (unsigned r = 0; r < kRows; ++r)
        k().quantize(x.data() + r * cols, cols, order, q.data() + r * pairs);
      const auto dot = type == StorageType::kQ4_0 ? k().dot_q4_0 : k().dot_q8_0;
      float together[kRows];
      dot(stored.data(), q.data(), pairs, cols, kRows, together);
      for (unsigned r = 0; r < kRows; ++r) {
        double exact = 0;
        double bound = 0;  // half a step of each block's 16-bit grid, and f32 sums
        for (std::size_t b = 0; b < cols; b += 32) {
          double peak = 0;
          for (std::size_t i = b; i < b + 32; ++i) peak = std::max(peak, std::fabs(double{x[r * cols + i]}));
          for (std::size_t i = b; i < b + 32; ++i) {
            exact += double{exact_weights[i]} * double{x[r * cols + i]};
            bound += std::fabs(double{exact_weights[i]}) *
                     (peak / 65534 + std::fabs(double{x[r * cols + i]}) * 1e-6);
          }
        }
        EXPECT_NEAR(together[r], exact, bound) << storage_info(type).name << " " << cols;
        // Law 1: one row alone has the same bits.
        float alone = 0;
        dot(stored.data(), q.data() + r * pairs, pairs, cols, 1, &alone);
        EXPECT_EQ(alone, together[r]);
      }
      for (unsigned rows = 2; rows < kRows; ++rows) {
        float some[kRows];
        dot(stored.data(), q.data(), pairs, cols, rows, some);
        for (unsigned r = 0; r < rows; ++r) EXPECT_EQ(some[r], together[r]);
      }
    }
  }
}

TEST_P(KernelTable, FloatProductsAreNearTheExactOnes) {
  for (const std::size_t cols : {1u, 7u, 16u, 33u, 256u, 3840u}) {
    const std::vector<float> w = random_floats(cols, 3);
    const std::vector<float> x = random_floats(kRowTile * cols, 4);
    float together[kRowTile];
    k().dot_f32(w.data(), x.data(), cols, cols, kRowTile, together);
    for (unsigned r = 0; r < kRowTile; ++r) {
      double exact = 0;
      double size = 0;
      for (std::size_t i = 0; i < cols; ++i) {
        exact += double{w[i]} * double{x[r * cols + i]};
        size += std::fabs(double{w[i]} * double{x[r * cols + i]});
      }
      EXPECT_NEAR(together[r], exact, size * 2e-6);
      float alone = 0;
      k().dot_f32(w.data(), x.data() + r * cols, cols, cols, 1, &alone);
      EXPECT_EQ(alone, together[r]);
    }
  }
}

TEST_P(KernelTable, AValueThatIsNotFiniteIsNotHidden) {
  for (const float poison : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x = random_floats(96, 5);
    x[70] = poison;
    std::vector<std::byte> stored(*storage_bytes(StorageType::kQ4_0, 96), std::byte{0x35});
    std::vector<ActivationPair> q(activation_pairs(96));
    k().quantize(x.data(), 96, PairOrder::kNibbles, q.data());
    float out = 0;
    k().dot_q4_0(stored.data(), q.data(), q.size(), 96, 1, &out);
    EXPECT_TRUE(std::isnan(out));
  }
}

TEST_P(KernelTable, TinyAndHugeActivationsKeepTheirSign) {
  for (const float scale : {1e-42f, 1e-20f, 1.0f, 1e20f, 1e36f}) {
    std::vector<float> x(64, scale);
    std::vector<std::byte> stored(2 * 34, std::byte{1});
    stored[0] = stored[34] = std::byte{0};
    stored[1] = stored[35] = std::byte{0x3c};  // d = 1 in f16
    std::vector<ActivationPair> q(1);
    k().quantize(x.data(), 64, PairOrder::kBytes, q.data());
    float out = 0;
    k().dot_q8_0(stored.data(), q.data(), 1, 64, 1, &out);
    EXPECT_NEAR(out, 64 * double{scale}, scale < 1e-30f ? 1e-30 : 64 * double{scale} * 1e-4);
  }
}

TEST_P(KernelTable, ExpansionEqualsDequantisationInBits) {
  std::mt19937 random(6);
  for (int t = 0; t < kStorageTypes; ++t) {
    const auto type = static_cast<StorageType>(t);
    std::vector<std::byte> stored(*storage_bytes(type, 512));
    for (std::byte& b : stored) b = static_cast<std::byte>(random() & 0x3f);  // finite scales
    std::vector<float> expected(512);
    std::vector<float> found(512);
    dequantize(type, stored.data(), expected.data(), 512);
    k().expand(type, stored.data(), found.data(), 512);
    EXPECT_EQ(found, expected) << storage_info(type).name;
  }
}

TEST_P(KernelTable, SumsAndScaledAdds) {
  for (const std::size_t n : {1u, 8u, 15u, 256u, 3840u}) {
    const std::vector<float> x = random_floats(n, 7);
    std::vector<float> out = random_floats(n, 8);
    const std::vector<float> before = out;
    double squares = 0;
    for (const float v : x) squares += double{v} * double{v};
    EXPECT_NEAR(k().sum_squares(x.data(), n), squares, squares * 1e-6);
    k().add_scaled(0.7f, x.data(), out.data(), n);
    for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(out[i], double{before[i]} + 0.7f * double{x[i]}, 1e-6);
  }
}

TEST_P(KernelTable, GegluIsTheTanhFormula) {
  std::vector<float> gate;
  for (double g = -12; g <= 12; g += 0.01) gate.push_back(static_cast<float>(g));
  const std::vector<float> up = random_floats(gate.size(), 9);
  std::vector<float> out(gate.size());
  k().geglu(gate.data(), up.data(), out.data(), gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = double{gate[i]};
    const double expected =
        0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * double{up[i]};
    EXPECT_NEAR(out[i], expected, 2e-6 * std::fabs(g * double{up[i]}) + 1e-7);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, KernelTable, ::testing::ValuesIn(all_kernels().begin(), all_kernels().end()),
                         [](const auto& test) { return std::string(test.param->name); });

TEST(Kernels, TheEnvironmentChooses) {
  ::setenv("GEM_CPU_ISA", "portable", 1);
  EXPECT_STREQ(choose_kernels().name, "portable");
  ::setenv("GEM_CPU_ISA", "mmx", 1);
  EXPECT_THROW(choose_kernels(), Error);
  ::unsetenv("GEM_CPU_ISA");
  EXPECT_TRUE(choose_kernels().supported());
}

}  // namespace
}  // namespace gem::cpu
