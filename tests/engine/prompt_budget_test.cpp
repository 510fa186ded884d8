#include "engine/prompt_budget.h"

#include <gtest/gtest.h>

#include <random>

namespace gem {
namespace {

using Rows = std::vector<std::uint32_t>;

TEST(PromptBudget, AWholeChunkWhileNobodyDecodes) {
  PromptBudget budget(256);
  EXPECT_EQ(budget.rows(false), 256u);
  budget.observe(4, 0, 0.1);
  budget.observe(4, 100, 10);
  EXPECT_EQ(budget.rows(false), 256u);
}

TEST(PromptBudget, FewRowsUntilCostsAreKnown) {
  PromptBudget budget(256);
  EXPECT_EQ(budget.rows(true), 8u);
  budget.observe(1, 0, 0.1);
  EXPECT_EQ(budget.rows(true), 8u);
  EXPECT_EQ(PromptBudget(16).rows(true), 8u);
  EXPECT_EQ(PromptBudget(3).rows(true), 3u);
  EXPECT_EQ(PromptBudget(2048).rows(true), 64u);
}

// A machine that takes `decode` for a round of decoding and `row` more for each row of a prompt.
double slowdown(double decode, double row, std::uint32_t chunk) {
  PromptBudget budget(chunk);
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  double worst = 0;
  for (int round = 0; round < 300; ++round) {
    const bool prompt = round % 3 != 0;
    const std::uint32_t rows = prompt ? budget.rows(true) : 0;
    const double seconds = decode + rows * row;
    if (round > 100) worst = std::max(worst, seconds / decode);
    budget.observe(2, rows, seconds * noise(random));
  }
  return worst;
}

TEST(PromptBudget, ARoundTakesAtMostTwiceAsLongBesidePrompts) {
  EXPECT_LT(slowdown(0.005, 0.00005, 2048), 2.3);  // a graphics processor: about 100 rows
  EXPECT_GT(slowdown(0.005, 0.00005, 2048), 1.5);
  EXPECT_LT(slowdown(0.1, 0.005, 256), 2.3);
  EXPECT_GT(slowdown(0.1, 0.005, 256), 1.5);
  // Rows so dear that the least a prompt gets takes longer: a 32nd of a chunk.
  EXPECT_NEAR(slowdown(0.1, 0.1, 256), 9, 0.01);
}

TEST(PromptBudget, RowsThatCostNothingAreLimitedByTheChunk) {
  PromptBudget budget(256);
  for (int i = 0; i < 20; ++i) {
    budget.observe(1, 0, 1.0);
    budget.observe(1, 256, 0.9);
  }
  EXPECT_EQ(budget.rows(true), 256u);
}

TEST(ShareRows, EvenlyAndWithoutARest) {
  EXPECT_EQ(share_rows(Rows{}, 10), Rows{});
  EXPECT_EQ(share_rows(Rows{5}, 10), Rows{5});
  EXPECT_EQ(share_rows(Rows{50}, 10), Rows{10});
  EXPECT_EQ(share_rows(Rows{1000, 3, 1000}, 103), (Rows{50, 3, 50}));
  EXPECT_EQ(share_rows(Rows{1000, 1000, 1000}, 2), (Rows{1, 1, 0}));
  EXPECT_EQ(share_rows(Rows{2, 2, 2}, 100), (Rows{2, 2, 2}));
  std::mt19937 engine(2);
  const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
  for (int i = 0; i < 500; ++i) {
    Rows left(1 + random() % 9);
    for (std::uint32_t& n : left) n = 1 + random() % 60;
    const std::uint32_t rows = 1 + random() % 200;
    const Rows shares = share_rows(left, rows);
    std::uint64_t sum = 0;
    std::uint64_t all = 0;
    for (std::size_t k = 0; k < left.size(); ++k) {
      EXPECT_LE(shares[k], left[k]);
      // Whoever gets less than it has left gets as much as any other, but for the rest of a division.
      for (std::size_t o = 0; o < left.size(); ++o)
        EXPECT_TRUE(shares[k] == left[k] || shares[k] + 1 >= shares[o]);
      sum += shares[k];
      all += left[k];
    }
    EXPECT_EQ(sum, std::min<std::uint64_t>(rows, all));
  }
}

}  // namespace
}  // namespace gem
