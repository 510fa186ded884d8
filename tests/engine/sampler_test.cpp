#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "base/error.h"

namespace gem {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 0.0f, -1.0f, 2.5f};

SamplingParams plain(double temperature = 1.0) {
  SamplingParams p;
  p.temperature = temperature;
  p.top_k = 0;
  p.top_p = 1;
  return p;
}

std::map<std::int32_t, int> draws(SamplingParams params, const std::vector<float>& logits, int n,
                                  std::vector<std::int32_t> suppressed = {}) {
  std::map<std::int32_t, int> counts;
  Sampler sampler(params, suppressed);
  for (int i = 0; i < n; ++i) ++counts[*sampler.draw(logits, static_cast<std::uint64_t>(i))];
  return counts;
}

// Pearson's statistic of counts against softmax(logits / temperature) over the kept tokens.
double chi_square(const std::map<std::int32_t, int>& counts, const std::vector<float>& logits,
                  double temperature, const std::vector<std::int32_t>& kept) {
  double sum = 0;
  double n = 0;
  for (const std::int32_t t : kept)
    sum += std::exp(double{logits[static_cast<std::size_t>(t)]} / temperature);
  for (const auto& [t, c] : counts) n += c;
  double statistic = 0;
  for (const std::int32_t t : kept) {
    const double expected = n * std::exp(double{logits[static_cast<std::size_t>(t)]} / temperature) / sum;
    const auto found = counts.find(t);
    const double difference = (found == counts.end() ? 0 : found->second) - expected;
    statistic += difference * difference / expected;
  }
  return statistic;
}

TEST(Sampler, KeyedDrawsFollowTheSoftmax) {
  // 5 degrees of freedom: the 99.9 % point is 20.5. The draws are fixed by the seed, so this never flickers.
  for (const std::uint64_t seed : {1u, 2u, 12345u}) {
    for (const double t : {0.5, 1.0, 2.0}) {
      SamplingParams p = plain(t);
      p.seed = seed;
      EXPECT_LT(chi_square(draws(p, kLogits, 100000), kLogits, t, {0, 1, 2, 3, 4, 5}), 20.5)
          << seed << " " << t;
    }
  }
}

TEST(Sampler, DrawsAtOnePositionFollowTheSoftmaxOverSeeds) {
  std::map<std::int32_t, int> counts;
  for (std::uint64_t seed = 0; seed < 100000; ++seed) {
    SamplingParams p = plain();
    p.seed = seed;
    ++counts[*Sampler(p, {}).draw(kLogits, 77)];
  }
  EXPECT_LT(chi_square(counts, kLogits, 1, {0, 1, 2, 3, 4, 5}), 20.5);
}

TEST(Sampler, ADrawIsAFunctionOfSeedPositionAndLogitsAlone) {
  SamplingParams p = plain();
  p.seed = 42;
  Sampler a(p, {});
  Sampler b(p, {});
  for (std::uint64_t i = 0; i < 50; ++i) b.draw(kLogits, 1000 + i);  // other work before
  int different = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto first = a.draw(kLogits, i);
    EXPECT_EQ(first, b.draw(kLogits, i));
    SamplingParams q = p;
    q.seed = 43;
    different += first != Sampler(q, {}).draw(kLogits, i) ? 1 : 0;
  }
  EXPECT_GT(different, 50);
}

TEST(Sampler, NoiseIsStandardGumbel) {
  double sum = 0;
  double squares = 0;
  constexpr int kN = 200000;
  for (int i = 0; i < kN; ++i) {
    const double g = gumbel(7, static_cast<std::uint64_t>(i / 100), i % 100);
    sum += g;
    squares += g * g;
  }
  const double mean = sum / kN;
  EXPECT_NEAR(mean, 0.5772156649, 0.01);                           // Euler's constant
  EXPECT_NEAR(squares / kN - mean * mean, M_PI * M_PI / 6, 0.03);  // variance
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  Sampler sampler(plain(0), {});
  EXPECT_EQ(sampler.draw(kLogits, 0), 1);
  EXPECT_EQ(sampler.draw(std::vector<float>{2, 5, 5, 1}, 0), 1);
}

TEST(Sampler, FiltersKeepWhatTheySay) {
  const auto kept = [](SamplingParams p) {
    std::vector<std::int32_t> out;
    for (const auto& [t, c] : draws(p, kLogits, 20000)) out.push_back(t);
    return out;
  };
  SamplingParams p = plain();
  p.top_k = 2;
  EXPECT_EQ(kept(p), (std::vector<std::int32_t>{1, 5}));
  EXPECT_LT(chi_square(draws(p, kLogits, 50000), kLogits, 1, {1, 5}), 10.8);
  p = plain();
  // Probabilities: 1: .459, 5: .279, 2: .169, 0: .062, 3: .023, 4: .008 (e^3, e^2.5, … over 43.75).
  p.top_p = 0.47;
  EXPECT_EQ(kept(p), (std::vector<std::int32_t>{1, 5}));
  p.top_p = 0.45;
  EXPECT_EQ(kept(p), (std::vector<std::int32_t>{1}));
  p.top_p = 0;
  EXPECT_EQ(kept(p), (std::vector<std::int32_t>{1}));
  p = plain();
  p.min_p = 0.3;  // e^-1 = .368 stays, e^-2 = .135 goes
  EXPECT_EQ(kept(p), (std::vector<std::int32_t>{1, 2, 5}));
  // Temperature comes before the filters: at 10 all six are nearly alike.
  p = plain(10);
  p.min_p = 0.3;
  EXPECT_EQ(kept(p).size(), 6u);
}

TEST(Sampler, PenaltiesAndBias) {
  SamplingParams p = plain(0);
  p.repetition_penalty = 2;
  Sampler repetition(p, {});
  const std::int32_t prompt[] = {1, 1};
  repetition.see_prompt(prompt);
  EXPECT_EQ(repetition.draw(kLogits, 0), 5);  // 3 / 2 < 2.5
  repetition.see_reply(5);
  EXPECT_EQ(repetition.draw(kLogits, 0), 2);

  p = plain(0);
  p.presence_penalty = 0.6;
  Sampler presence(p, {});
  presence.see_reply(1);
  presence.see_reply(1);
  EXPECT_EQ(presence.draw(kLogits, 0), 5);  // 2.4 < 2.5, once however often it occurred
  p.presence_penalty = 0.4;
  Sampler weaker(p, {});
  weaker.see_reply(1);
  EXPECT_EQ(weaker.draw(kLogits, 0), 1);

  p = plain(0);
  p.frequency_penalty = 0.3;
  Sampler frequency(p, {});
  frequency.see_reply(1);
  EXPECT_EQ(frequency.draw(kLogits, 0), 1);  // 2.7
  frequency.see_reply(1);
  EXPECT_EQ(frequency.draw(kLogits, 0), 5);  // 2.4

  p = plain(0);
  p.logit_bias = {{4, 10.0f}, {1, -INFINITY}};
  EXPECT_EQ(Sampler(p, {}).draw(kLogits, 0), 4);
}

TEST(Sampler, SuppressedIdsAreNeverDrawn) {
  SamplingParams p = plain(5);
  p.logit_bias = {{1, 100.0f}};
  const auto counts = draws(p, kLogits, 5000, {1, 3});
  EXPECT_EQ(counts.count(1), 0u);
  EXPECT_EQ(counts.count(3), 0u);
  EXPECT_EQ(counts.size(), 4u);
}

TEST(Sampler, UnusableLogitsGiveNothing) {
  std::vector<float> broken = kLogits;
  broken[3] = NAN;
  for (const double t : {0.0, 1.0}) {
    Sampler sampler(plain(t), {});
    EXPECT_EQ(sampler.draw(broken, 0), std::nullopt);
    EXPECT_EQ(sampler.draw(std::vector<float>(4, -INFINITY), 0), std::nullopt);
  }
}

TEST(SamplingParams, FieldsOutOfRangeAreNamed) {
  const auto message = [](auto change) -> std::string {
    SamplingParams p;
    change(p);
    try {
      p.validate(100);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message([](SamplingParams&) {}), "");
  for (const double bad : {-0.1, std::nan(""), double{INFINITY}}) {
    EXPECT_NE(message([&](SamplingParams& p) { p.temperature = bad; }).find("temperature"),
              std::string::npos);
    EXPECT_NE(message([&](SamplingParams& p) { p.top_p = bad; }).find("top_p"), std::string::npos);
    EXPECT_NE(message([&](SamplingParams& p) { p.min_p = bad; }).find("min_p"), std::string::npos);
    EXPECT_NE(message([&](SamplingParams& p) { p.repetition_penalty = bad; }).find("repetition_penalty"),
              std::string::npos);
  }
  EXPECT_NE(message([](SamplingParams& p) { p.presence_penalty = NAN; }).find("presence_penalty"),
            std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.frequency_penalty = 1e9; }).find("frequency_penalty"),
            std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) {
              p.logit_bias = {{100, 1.0f}};
            }).find("token 100"),
            std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) {
              p.logit_bias = {{-1, 1.0f}};
            }).find("token -1"),
            std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.logit_bias = {{1, NAN}}; }).find("token 1"), std::string::npos);
}

// llama's repeat_last_n: all three penalties look at the last tokens of prompt and reply alike, and at no
// others.
TEST(Sampler, APenaltyWindowLooksAtTheLastTokensOnly) {
  const std::vector<float> logits = {5.0f, 4.5f, 4.0f, 3.9f};
  SamplingParams p = plain(0);
  p.penalty_window = 3;
  p.presence_penalty = 0.6;  // token 0 falls behind 1 when it was seen, and not when it was not
  Sampler sampler(p, {});
  sampler.see_prompt(std::vector<std::int32_t>{0, 3, 3, 3});
  EXPECT_EQ(sampler.draw(logits, 4), 0) << "the prompt's 0 is outside the window";
  sampler.see_reply(0);
  EXPECT_EQ(sampler.draw(logits, 5), 1);
  sampler.see_reply(3);
  sampler.see_reply(3);
  EXPECT_EQ(sampler.draw(logits, 7), 1) << "still in the window";
  sampler.see_reply(3);
  EXPECT_EQ(sampler.draw(logits, 8), 0) << "no longer";

  p.presence_penalty = 0;
  p.frequency_penalty = 0.3;  // twice seen costs 0.6
  p.penalty_window = 4;
  Sampler frequency(p, {});
  frequency.see_prompt(std::vector<std::int32_t>{0, 0, 0, 3, 3});
  EXPECT_EQ(frequency.draw(logits, 5), 1) << "two of the prompt's are inside";
  frequency.see_reply(3);
  EXPECT_EQ(frequency.draw(logits, 6), 0) << "one is";

  p.frequency_penalty = 0;
  p.repetition_penalty = 1.2;
  p.penalty_window = 2;
  Sampler repetition(p, {});
  repetition.see_prompt(std::vector<std::int32_t>{1, 0, 3});
  EXPECT_EQ(repetition.draw(logits, 3), 1);
  repetition.see_reply(2);
  EXPECT_EQ(repetition.draw(logits, 4), 0);
}

TEST(Sampler, WithoutAWindowTheReplyAloneCountsForPresence) {
  const std::vector<float> logits = {5.0f, 4.5f};
  SamplingParams p = plain(0);
  p.presence_penalty = 1;
  Sampler sampler(p, {});
  sampler.see_prompt(std::vector<std::int32_t>{0, 0});
  EXPECT_EQ(sampler.draw(logits, 2), 0);
  sampler.see_reply(0);
  for (int i = 0; i < 100; ++i) sampler.see_reply(5);
  EXPECT_EQ(sampler.draw(logits, 103), 1) << "however long ago";
}

TEST(Sampler, AWindowThatIsNoLengthIsRefused) {
  SamplingParams p = plain();
  p.penalty_window = (1u << 24) + 1;
  EXPECT_THROW(p.validate(100), Error);
  p.penalty_window = 1u << 24;
  EXPECT_NO_THROW(p.validate(100));
}

TEST(LogProbabilities, MatchTheSoftmaxAndKeepTheOrder) {
  const Logprobs found = log_probabilities(kLogits, 3, 4);
  double sum = 0;
  for (const float x : kLogits) sum += std::exp(double{x});
  EXPECT_NEAR(found.token, 0.0 - std::log(sum), 1e-14);
  ASSERT_EQ(found.top.size(), 4u);
  const std::int32_t order[] = {1, 5, 2, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found.top[i].token, order[i]);
    EXPECT_NEAR(found.top[i].logprob, double{kLogits[static_cast<std::size_t>(order[i])]} - std::log(sum),
                1e-14);
  }
  EXPECT_EQ(log_probabilities(kLogits, 3, 100).top.size(), kLogits.size());
  EXPECT_TRUE(log_probabilities(kLogits, 3, 0).top.empty());
  // Equal logits: the lower id first. Large ones do not overflow.
  const std::vector<float> equal = {1000.0f, 1000.0f};
  const Logprobs tie = log_probabilities(equal, 1, 2);
  EXPECT_EQ(tie.top[0].token, 0);
  EXPECT_NEAR(tie.token, -std::log(2.0), 1e-12);
}

// A draw by the best tokens alone is the draw from the row, or there is none.
TEST(Sampler, TheBestTokensSettleTheSameDraw) {
  constexpr std::size_t kVocab = 2000;
  constexpr std::size_t kKept = 128;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::size_t settled = 0;
  for (std::uint64_t trial = 0; trial < 300; ++trial) {
    std::vector<float> logits(kVocab);
    for (float& x : logits) x = std::round(normal(random) * 8) / 8;  // with equals
    std::vector<std::int32_t> ids(kVocab);
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    std::vector<ScoredToken> best;
    for (std::size_t i = 0; i < kKept; ++i)
      best.push_back({logits[static_cast<std::size_t>(ids[i])], ids[i]});
    SamplingParams params;
    params.temperature = trial % 4 == 0 ? 0.0 : 0.5 + static_cast<double>(trial % 5);
    params.top_k = trial % 3 == 0 ? 1 : trial % 3 == 1 ? 64 : 125;
    params.top_p = trial % 2 == 0 ? 1.0 : 0.9;
    params.min_p = trial % 7 == 0 ? 0.1 : 0.0;
    params.seed = trial;
    const std::vector<std::int32_t> suppressed = {ids[0], ids[5], ids[kVocab - 1]};
    Sampler sampler(params, suppressed);
    const auto token = sampler.draw_from_best(best, trial * 3);
    ASSERT_TRUE(token);
    EXPECT_EQ(token, sampler.draw(logits, trial * 3)) << trial;
    ++settled;
    // One more than is there once the suppressed are out.
    params.temperature = 1;
    params.top_k = 127;
    EXPECT_FALSE(Sampler(params, suppressed).draw_from_best(best, trial));
  }
  EXPECT_EQ(settled, 300u);
}

TEST(Sampler, WhatNeedsTheWholeRowIsNotDrawnFromItsBest) {
  const std::vector<ScoredToken> best = {{3, 5}, {2, 1}, {1, 0}};
  const auto drawn = [&](const std::function<void(SamplingParams&)>& change) {
    SamplingParams params;
    params.top_k = 2;
    change(params);
    return Sampler(params, {}).draw_from_best(best, 1).has_value();
  };
  EXPECT_TRUE(drawn([](SamplingParams&) {}));
  EXPECT_FALSE(drawn([](SamplingParams& p) { p.top_k = 0; }));
  EXPECT_TRUE(drawn([](SamplingParams& p) { p.top_k = 0, p.temperature = 0; }));
  EXPECT_FALSE(drawn([](SamplingParams& p) { p.presence_penalty = 0.5; }));
  EXPECT_FALSE(drawn([](SamplingParams& p) { p.repetition_penalty = 1.1; }));
  EXPECT_FALSE(drawn([](SamplingParams& p) { p.logit_bias = {{0, 100.0f}}; }));
  SamplingParams params;
  params.temperature = 0;
  EXPECT_FALSE(Sampler(params, {}).draw_from_best({}, 1)) << "a row with a NaN";
}

}  // namespace
}  // namespace gem
