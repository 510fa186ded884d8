// The best tokens of rows of logits as the device finds them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "backend/cuda/best.h"
#include "backend/cuda/cuda.h"

namespace gem::cuda {
namespace {

std::vector<BestRow> best_of(const std::vector<float>& logits, std::uint32_t rows) {
  const auto vocab = static_cast<std::uint32_t>(logits.size() / rows);
  DeviceArray<float> device, maxima(std::size_t{rows} * kMostGroups);
  DeviceArray<BestRow> best(rows);
  device.upload(logits, nullptr);
  find_best(device.data(), rows, vocab, maxima.data(), best.data(), nullptr);
  return best.download(rows, nullptr);
}

void expect_sorted_best(const float* logits, std::uint32_t vocab, const BestRow& found) {
  std::vector<std::int32_t> ids(vocab);
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  ASSERT_EQ(found.count, std::min(kBest, vocab));
  for (std::uint32_t i = 0; i < found.count; ++i) {
    EXPECT_EQ(found.best[i].token, ids[i]) << i;
    EXPECT_EQ(found.best[i].logit, logits[ids[i]]) << i;
  }
}

TEST(CudaBest, AreThoseOfASort) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  for (const std::uint32_t vocab : {64u, 1000u, 4096u, 50001u}) {
    constexpr std::uint32_t kRows = 3;
    std::mt19937 random(vocab);
    std::normal_distribution<float> normal(0, 5);
    std::vector<float> logits(std::size_t{kRows} * vocab);
    for (float& x : logits) x = normal(random);
    // The second row has many equals, zeros of both signs and forbidden tokens.
    for (std::uint32_t i = 0; i < vocab; ++i) {
      float& x = logits[vocab + i];
      x = std::round(x / 2);
      if (i % 3 == 0) x = -x;
      if (i % 7 == 0) x = -std::numeric_limits<float>::infinity();
    }
    // The third row's best lie side by side.
    for (std::uint32_t i = 0; i < std::min(vocab, 300u); ++i) logits[2 * vocab + i] += 50;
    const std::vector<BestRow> found = best_of(logits, kRows);
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (found[r].count == 0) {  // so many equals that the row has to be looked at
        EXPECT_EQ(r, 1u);
        EXPECT_GT(vocab, 2048u);
        continue;
      }
      expect_sorted_best(logits.data() + std::size_t{r} * vocab, vocab, found[r]);
    }
  }
}

TEST(CudaBest, RowsThatHaveToBeLookedAtSaySo) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  constexpr std::uint32_t kVocab = 4096;
  std::vector<float> logits(2 * kVocab, 1.0f);  // all equal
  for (std::uint32_t i = 0; i < kVocab; ++i) logits[kVocab + i] = static_cast<float>(i);
  logits[kVocab + 17] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<BestRow> found = best_of(logits, 2);
  EXPECT_EQ(found[0].count, 0u);
  EXPECT_EQ(found[1].count, 0u);
}

}  // namespace
}  // namespace gem::cuda
