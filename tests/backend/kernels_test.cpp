// Every kernel table that this processor runs, against plain float64 loops.
#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "backend/cpu/products.h"
#include "backend/random_storage.h"
#include "base/error.h"

namespace gem::cpu {
namespace {

using testing::random_floats;
using testing::random_storage;

class KernelTable : public ::testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override {
    if (!GetParam()->supported()) GTEST_SKIP() << "this processor has no " << GetParam()->name;
  }
  const Kernels& k() const { return *GetParam(); }
};

constexpr std::uint32_t kCols[] = {32, 64, 96, 384, 768, 896, 3840};  // odd and even numbers of blocks

constexpr StorageType kIntegerTypes[] = {StorageType::kQ4_0, StorageType::kQ8_0, StorageType::kQ4_1,
                                         StorageType::kQ5_0, StorageType::kQ5_1, StorageType::kQ4_K,
                                         StorageType::kQ5_K, StorageType::kQ6_K};

class Multiplied {
 public:
  Multiplied(StorageType type, std::uint32_t rows, std::uint32_t cols, const Kernels& k, unsigned threads = 1)
      : storage_(random_storage(type, rows, cols, 1)), k_(k), pool_(threads) {
    source_ = {type, rows, cols, storage_.data()};
    matrix_ = PackedMatrix(source_);
    matrix_.allocate();
    for (std::size_t g = 0; g < matrix_.groups() && matrix_.bytes() != 0; ++g) matrix_.pack_group(g);
  }
  const Matrix& source() const { return source_; }
  std::vector<float> operator()(const std::vector<float>& x) {
    std::vector<float> out(x.size() / source_.cols * source_.rows);
    Operand operand;
    operand.assign(x.data(), x.size() / source_.cols, source_.cols);
    const Product product[] = {{&matrix_, out.data()}};
    multiply(operand, product, k_, pool_);
    return out;
  }

 private:
  std::vector<std::byte> storage_;
  Matrix source_;
  PackedMatrix matrix_;
  const Kernels& k_;
  ThreadPool pool_;
};

TEST_P(KernelTable, QuantisedProductsAreNearTheExactOnes) {
  for (const StorageType type : kIntegerTypes) {
    for (const std::uint32_t cols : kCols) {
      if (cols % storage_info(type).block_elements != 0) continue;
      constexpr std::uint32_t kRows = 37;  // the last group is filled up
      constexpr std::size_t kTokens = 11;  // tiles of 4 and a rest
      Multiplied product(type, kRows, cols, k());
      const std::vector<float> x = random_floats(kTokens * cols, 2, 3);
      const std::vector<float> found = product(x);
      std::vector<float> w(cols);
      for (std::uint32_t n = 0; n < kRows; ++n) {
        dequantize(type, product.source().row(n), w.data(), cols);
        for (std::size_t r = 0; r < kTokens; ++r) {
          double exact = 0;
          double bound = 0;  // half a step of each block's 16-bit grid, and f32 sums
          for (std::size_t b = 0; b < cols; b += 32) {
            double peak = 0;
            for (std::size_t i = b; i < b + 32; ++i)
              peak = std::max(peak, std::fabs(double{x[r * cols + i]}));
            for (std::size_t i = b; i < b + 32; ++i) {
              exact += double{w[i]} * double{x[r * cols + i]};
              bound += std::fabs(double{w[i]}) * (peak / 65534 + std::fabs(double{x[r * cols + i]}) * 2e-6);
            }
          }
          ASSERT_NEAR(found[r * kRows + n], exact, bound)
              << storage_info(type).name << " " << cols << ", row " << n << " of activations " << r;
        }
      }
    }
  }
}

// Law 1, and the same bits from decoding in registers (few rows) and from panels (many).
TEST_P(KernelTable, ARowsBitsDoNotDependOnTheNumberOfRows) {
  for (const StorageType type : kIntegerTypes) {
    const std::uint32_t cols = 768;
    Multiplied product(type, 48, cols, k());
    Multiplied threaded(type, 48, cols, k(), 3);
    constexpr std::size_t kTokens = 150;  // more than one pass
    const std::vector<float> x = random_floats(kTokens * cols, 2, 3);
    const std::vector<float> together = product(x);
    EXPECT_EQ(threaded(x), together) << storage_info(type).name;
    for (const std::size_t rows : {1u, 2u, 3u, 4u, 5u, 8u, 9u, 64u}) {
      for (const std::size_t first : {std::size_t{0}, std::size_t{5}, kTokens - rows}) {
        const auto from = x.begin() + static_cast<std::ptrdiff_t>(first * cols);
        const std::vector<float> some = product({from, from + static_cast<std::ptrdiff_t>(rows * cols)});
        EXPECT_TRUE(
            std::equal(some.begin(), some.end(), together.begin() + static_cast<std::ptrdiff_t>(first * 48)))
            << storage_info(type).name << ", " << rows << " rows from " << first;
      }
    }
  }
}

// Where the f16 factors of a block lie.
std::vector<std::size_t> factors_of(StorageType type) {
  if (type == StorageType::kQ6_K) return {208};
  if (type == StorageType::kQ4_K || type == StorageType::kQ5_K) return {0, 2};
  return {0};
}

// The largest codes and activations there are: nothing overflows, in any place of a block.
TEST_P(KernelTable, ExtremeBlocksAreExact) {
  constexpr std::size_t kWidth = 256;
  for (const StorageType type :
       {StorageType::kQ4_0, StorageType::kQ8_0, StorageType::kQ4_K, StorageType::kQ5_K, StorageType::kQ6_K}) {
    for (const int code : {0x00, 0x7f, 0x80, 0xff}) {
      for (const float sign : {1.0f, -1.0f}) {
        std::vector<std::byte> stored(*storage_bytes(type, 16 * kWidth), std::byte(code));
        for (std::size_t at = 0; at < stored.size(); at += storage_info(type).block_bytes) {
          for (const std::size_t factor : factors_of(type)) {
            stored[at + factor] = std::byte{0};
            stored[at + factor + 1] = std::byte{0x3c};  // 1 in f16
          }
        }
        PackedMatrix matrix(Matrix{type, 16, kWidth, stored.data()});
        matrix.allocate();
        matrix.pack_group(0);
        std::vector<float> w(kWidth);
        dequantize(type, stored.data(), w.data(), kWidth);
        ThreadPool pool(1);
        for (const std::size_t rows : {1u, 2u, 4u, 9u, 17u}) {
          const std::vector<float> x(rows * kWidth, sign);
          std::vector<float> out(rows * 16);
          Operand operand;
          operand.assign(x.data(), rows, kWidth);
          const Product product[] = {{&matrix, out.data()}};
          multiply(operand, product, k(), pool);
          double exact = 0;
          double size = 0;
          for (const float v : w) {
            exact += double{v} * double{sign};
            size += std::fabs(double{v});
          }
          // Minima may cancel what the codes sum up to.
          const double bound = (factors_of(type).size() == 2 ? size : std::fabs(exact)) * 1e-6;
          for (const float y : out)
            ASSERT_NEAR(y, exact, bound) << storage_info(type).name << ", " << rows << " rows";
        }
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
  for (const StorageType type : kIntegerTypes) {
    Multiplied product(type, 16, 256, k());
    for (const float poison : {NAN, INFINITY, -INFINITY}) {
      for (const std::size_t rows : {1u, 9u}) {
        std::vector<float> x = random_floats(rows * 256, 5);
        x[(rows - 1) * 256 + 70] = poison;
        const std::vector<float> out = product(x);
        for (std::size_t i = 0; i < out.size(); ++i)
          EXPECT_EQ(std::isnan(out[i]), i / 16 == rows - 1) << storage_info(type).name;
      }
    }
  }
}

TEST_P(KernelTable, TinyAndHugeActivationsKeepTheirSign) {
  for (const float scale : {1e-42f, 1e-20f, 1.0f, 1e20f, 1e36f}) {
    const std::vector<float> x(64, scale);
    std::vector<std::byte> stored(2 * 34, std::byte{1});
    stored[0] = stored[34] = std::byte{0};
    stored[1] = stored[35] = std::byte{0x3c};  // d = 1 in f16
    PackedMatrix matrix(Matrix{StorageType::kQ8_0, 1, 64, stored.data()});
    matrix.allocate();
    matrix.pack_group(0);
    ThreadPool pool(1);
    Operand operand;
    operand.assign(x.data(), 1, 64);
    float out = 0;
    const Product product[] = {{&matrix, &out}};
    multiply(operand, product, k(), pool);
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

TEST_P(KernelTable, SumsOfSquares) {
  for (const std::size_t n : {1u, 8u, 15u, 256u, 3840u}) {
    const std::vector<float> x = random_floats(n, 7);
    double squares = 0;
    for (const float v : x) squares += double{v} * double{v};
    EXPECT_NEAR(k().sum_squares(x.data(), n), squares, squares * 1e-6);
  }
}

TEST_P(KernelTable, ExponentialsOfDifferences) {
  for (const std::size_t n : {1u, 7u, 8u, 100u, 128u}) {
    std::vector<float> x = random_floats(n, 11, 20);
    x[n / 2] = 30;  // the largest but for chance
    x[n - 1] = -200;
    const float top = k().largest(x.data(), n);
    EXPECT_EQ(top, *std::max_element(x.begin(), x.end()));
    std::vector<float> e = x;
    const double sum = double{k().exponentials(e.data(), n, top)};
    double exact = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double one = std::exp(double{x[i] - top});  // the difference is rounded to f32
      exact += one;
      EXPECT_NEAR(e[i], one, one * 1e-6 + 1e-37);
    }
    EXPECT_NEAR(sum, exact, exact * 1e-6);
    e = x;
    e[n / 3] = NAN;
    EXPECT_TRUE(std::isnan(k().exponentials(e.data(), n, top)));
  }
}

TEST_P(KernelTable, SoftcapIsTheTanhFormula) {
  std::vector<float> x;
  for (double v = -200; v <= 200; v += 0.37) x.push_back(static_cast<float>(v));
  for (const float v : {0.0f, -0.0f, 1e-6f, -1e-6f, 1e30f, -1e30f, INFINITY, -INFINITY}) x.push_back(v);
  for (const float cap : {30.0f, 5.0f}) {
    std::vector<float> out = x;
    k().softcap(out.data(), out.size(), cap);
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(out[i], double{cap} * std::tanh(double{x[i]} / double{cap}), double{cap} * 2.5e-7) << x[i];
  }
  float nan[3] = {1, NAN, 2};
  k().softcap(nan, 3, 30);
  EXPECT_TRUE(std::isnan(nan[1]));
  EXPECT_FALSE(std::isnan(nan[0]) || std::isnan(nan[2]));
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
  for (const float g : {-INFINITY, -3e19f, -300.0f, 300.0f, INFINITY}) {  // far ends: 0 or the gate itself
    const float one = 1;
    float far = 0;
    k().geglu(&g, &one, &far, 1);
    EXPECT_TRUE(g < 0 ? far == 0 || (std::isinf(g) && std::isnan(far)) : far == g) << g << " " << far;
  }
  const float nan = NAN;
  const float one = 1;
  float far = 0;
  k().geglu(&nan, &one, &far, 1);
  EXPECT_TRUE(std::isnan(far));
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
