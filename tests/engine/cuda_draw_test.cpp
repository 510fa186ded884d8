// The draw that goes on with a chain on the device, against the sampler.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "backend/cuda/best.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device.h"
#include "engine/sampler.h"

namespace gem {
namespace {

// The device's draw of a chain's next token is the sampler's, for rows and settings of every kind.
TEST(CudaDraw, IsTheSamplers) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  std::mt19937 random(4);
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  constexpr std::uint32_t kRows = 300;
  constexpr std::uint32_t kStep = 3;
  std::vector<cuda::BestRow> rows(kRows);
  std::vector<KeyedDraw> draws(kRows);
  std::vector<std::int32_t> expected(kRows, -1);
  std::uint32_t filtered = 0;
  for (std::uint32_t r = 0; r < kRows; ++r) {
    cuda::BestRow& row = rows[r];
    row.count = r % 50 == 7 ? 0 : one_of(1u, 6u, 128u);
    float logit = 20;
    for (std::uint32_t i = 0; i < row.count; ++i) {
      row.best[i] = {logit, static_cast<std::int32_t>(1000 * r + i * 7)};
      logit -= static_cast<float>(random() % 4) * 0.25f;  // some are equal
    }
    SamplingParams p;
    p.temperature = one_of(0.0, 0.5, 1.0, 3.0);
    p.top_k = std::min(std::max(row.count, 1u), one_of(1u, 5u, 64u, 128u));
    p.top_p = one_of(0.3, 0.9, 1.0);
    p.min_p = one_of(0.0, 0.2);
    p.seed = random();
    Sampler sampler(p, {});
    const std::uint64_t position = random() % 10000;
    draws[r] = sampler.draw_of_best(position, cuda::kBest).value();
    if (row.count == 0) continue;
    const std::span<const ScoredToken> best(row.best, row.count);
    expected[r] = sampler.draw_from_best(best, position + kStep).value();
    p.top_p = 1;
    p.min_p = 0;
    filtered += Sampler(p, {}).draw_from_best(best, position + kStep).value() != expected[r];
  }
  EXPECT_GT(filtered, 10u) << "draws that the filters change";
  cuda::DeviceArray<cuda::BestRow> best;
  cuda::DeviceArray<KeyedDraw> keyed;
  cuda::DeviceArray<cuda::RowInfo> infos;
  cuda::DeviceArray<std::int32_t> tokens;
  best.upload(rows, nullptr);
  keyed.upload(draws, nullptr);
  infos.resize(kRows);
  tokens.resize(kRows);
  cuda::draw_best(best.data(), keyed.data(), kRows, kStep, infos.data(), tokens.data(), nullptr);
  EXPECT_EQ(tokens.download(kRows, nullptr), expected);
  const std::vector<cuda::RowInfo> next = infos.download(kRows, nullptr);
  for (std::uint32_t r = 0; r < kRows; ++r) EXPECT_EQ(next[r].token, expected[r]) << r;
}

}  // namespace
}  // namespace gem
