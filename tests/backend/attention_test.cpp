// Attention of the cpu backend against float64, in every kernel table that this processor runs.
#include "backend/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/numbers.h"

namespace gem::cpu {
namespace {

struct Case {
  std::uint32_t heads, kv_heads, dim;
  std::uint32_t window;  // 0: a full layer
  std::uint32_t positions;
};

Geometry geometry_of(const Case& c) {
  Geometry g;
  g.heads = c.heads;
  g.window = c.window == 0 ? 1 : c.window;
  g.layers = {{c.window == 0 ? LayerKind::kFull : LayerKind::kSliding, c.dim, c.kv_heads, false}};
  return g;
}

// A number as a cache of that storage type keeps it.
float stored(StorageType type, float x) {
  if (type == StorageType::kF16) return f16_to_f32(f32_to_f16(x));
  if (type == StorageType::kBF16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}

class CpuAttention : public ::testing::TestWithParam<std::tuple<const Kernels*, KvType>> {
 protected:
  void SetUp() override {
    if (!kernels().supported()) GTEST_SKIP() << "this processor has no " << kernels().name;
  }
  static const Kernels& kernels() { return *std::get<0>(GetParam()); }
  static KvType kv_type() { return std::get<1>(GetParam()); }

  // Fills a cache with `c.positions` random keys and values, and as many queries.
  // What is left in keys_ and values_ are the numbers as they are stored.
  void fill(const Case& c, std::uint32_t span) {
    case_ = c;
    geometry_ = geometry_of(c);
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 1);
    const std::size_t width = c.kv_heads * c.dim;
    keys_.resize(c.positions * width);
    values_.resize(c.positions * width);
    queries_.resize(std::size_t{c.positions} * c.heads * c.dim);
    for (float& x : keys_) x = normal(random);
    for (float& x : values_) x = normal(random);
    // Scores of a few units in all: some weights matter, most are small.
    for (float& x : queries_) x = 2 * normal(random) / std::sqrt(static_cast<float>(c.dim));
    make_cache(span, kv_type());
    const StorageType storage = cache_->storage(0);
    for (float& x : keys_) x = stored(storage, x);
    for (float& x : values_) x = stored(storage, x);
  }

  void make_cache(std::uint32_t span, KvType type) {
    cache_ = std::make_unique<CpuCache>(KvPlan::make(geometry_, case_.positions, span, type), geometry_);
    const std::size_t width = case_.kv_heads * case_.dim;
    const std::uint32_t slots = cache_->plan().layers[0].slots;
    for (std::uint32_t p = 0; p < case_.positions; ++p)
      cache_->store(0, p % slots, keys_.data() + p * width, values_.data() + p * width);
  }

  std::uint32_t first_of(std::uint32_t p) const {
    return case_.window != 0 && p + 1 > case_.window ? p + 1 - case_.window : 0;
  }

  // Rows [from, to), [to - from, heads * dim].
  std::vector<float> run(std::uint32_t from, std::uint32_t to, unsigned threads) {
    const std::size_t width = std::size_t{case_.heads} * case_.dim;
    std::vector<float> out((to - from) * width);
    std::vector<AttentionRow> rows;
    for (std::uint32_t p = from; p < to; ++p)
      rows.push_back(
          {cache_.get(), first_of(p), p, queries_.data() + p * width, out.data() + (p - from) * width});
    ThreadPool pool(threads);
    Attention attention;
    attention.run({0, case_.heads, case_.kv_heads, case_.dim}, rows, kernels(), pool);
    return out;
  }

  std::vector<double> exact(std::uint32_t p) const {
    const std::size_t d = case_.dim;
    std::vector<double> out(case_.heads * d);
    for (std::size_t h = 0; h < case_.heads; ++h) {
      const std::size_t kv = h / (case_.heads / case_.kv_heads);
      const float* q = queries_.data() + (std::size_t{p} * case_.heads + h) * d;
      std::vector<double> weights;
      double peak = -INFINITY;
      for (std::uint32_t j = first_of(p); j <= p; ++j) {
        double score = 0;
        for (std::size_t i = 0; i < d; ++i)
          score += double{q[i]} * double{keys_[(std::size_t{j} * case_.kv_heads + kv) * d + i]};
        weights.push_back(score);
        peak = std::max(peak, score);
      }
      double sum = 0;
      for (double& w : weights) sum += w = std::exp(w - peak);
      for (std::uint32_t j = first_of(p); j <= p; ++j) {
        for (std::size_t i = 0; i < d; ++i)
          out[h * d + i] += weights[j - first_of(p)] / sum *
                            double{values_[(std::size_t{j} * case_.kv_heads + kv) * d + i]};
      }
    }
    return out;
  }

  Case case_{};
  Geometry geometry_;
  std::unique_ptr<CpuCache> cache_;
  std::vector<float> keys_, values_, queries_;
};

constexpr std::uint32_t kSpan = 24;

// Heads in groups of 1, 2, 3, 6, 7 and 8; widths with and without a rest; one split and several; rings that
// wrap.
constexpr Case kCases[] = {{2, 1, 256, 0, 140}, {8, 1, 64, 0, 2500}, {4, 4, 32, 100, 700},
                           {6, 2, 20, 0, 300},  {6, 1, 12, 33, 200}, {4, 2, 64, 1100, 2700},
                           {7, 1, 40, 130, 500}};

TEST_P(CpuAttention, IsNearFloat64AndTheSameHoweverItIsShared) {
  for (const Case& c : kCases) {
    fill(c, kSpan);
    for (const std::uint32_t end : {1u, 2u, 129u, c.positions}) {
      // A ring holds the keys of the last span only.
      if (end > c.positions || (c.window != 0 && end < c.positions)) continue;
      const std::uint32_t begin = end - std::min(end, kSpan);
      const std::size_t width = std::size_t{c.heads} * c.dim;
      const std::vector<float> together = run(begin, end, 1);
      EXPECT_EQ(run(begin, end, 3), together) << c.heads << " heads of " << c.dim;
      for (std::uint32_t p = begin; p < end; ++p) {
        const auto row = together.begin() + static_cast<std::ptrdiff_t>((p - begin) * width);
        const std::vector<double> expected = exact(p);
        for (std::size_t i = 0; i < width; ++i)
          ASSERT_NEAR(row[static_cast<std::ptrdiff_t>(i)], expected[i], 1e-5);
        for (const unsigned threads : {1u, 2u, 5u}) {
          const std::vector<float> alone = run(p, p + 1, threads);
          ASSERT_TRUE(std::equal(alone.begin(), alone.end(), row))
              << "row " << p << ", " << threads << " threads";
        }
      }
    }
  }
}

// What 16 bits keep widens exactly: the bits are those of a cache in f32 that holds the same numbers.
TEST_P(CpuAttention, BitsAreThoseOfTheSameNumbersInF32) {
  for (const Case& c : kCases) {
    fill(c, kSpan);
    const std::vector<float> found = run(c.positions - 8, c.positions, 2);
    make_cache(kSpan, KvType::kF32);
    EXPECT_EQ(run(c.positions - 8, c.positions, 2), found) << c.heads << " heads of " << c.dim;
  }
}

// A ring of another size wraps elsewhere; the bits stay.
TEST_P(CpuAttention, WhereARingWrapsDoesNotMatter) {
  const Case c{4, 2, 64, 300, 1500};
  fill(c, kSpan);
  const std::vector<float> expected = run(c.positions - 8, c.positions, 1);
  for (const std::uint32_t span : {8u, 61u, 1000u}) {
    fill(c, span);
    EXPECT_EQ(run(c.positions - 8, c.positions, 2), expected) << span;
  }
}

TEST_P(CpuAttention, OneLargeScoreTakesAllAndNoneOverflows) {
  const Case c{2, 1, 32, 0, 1300};
  fill(c, kSpan);
  std::vector<float> key(keys_.begin(), keys_.begin() + 32);
  const float* q = queries_.data() + std::size_t{1299} * 64;
  for (std::size_t i = 0; i < 32; ++i) key[i] = q[i] * 1e4f;
  cache_->store(0, 3, key.data(), values_.data() + 3 * 32);
  const std::vector<float> out = run(1299, 1300, 2);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], values_[3 * 32 + i]);
  EXPECT_TRUE(std::isfinite(out[32]));
}

TEST_P(CpuAttention, ANaNInAKeyIsNotHidden) {
  const Case c{2, 1, 32, 0, 200};
  for (const std::uint32_t at : {0u, 7u, 128u, 199u}) {
    fill(c, kSpan);
    std::vector<float> key(32, 0.0f);
    key[5] = NAN;
    cache_->store(0, at, key.data(), values_.data());
    for (const float x : run(199, 200, 1)) EXPECT_TRUE(std::isnan(x)) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuAttention,
                         ::testing::Combine(::testing::ValuesIn(all_kernels().begin(), all_kernels().end()),
                                            ::testing::Values(KvType::kF32, KvType::kBF16, KvType::kF16)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)->name) + "_" +
                                  std::string(kv_type_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace gem::cpu
