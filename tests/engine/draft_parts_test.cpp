// The parts of drafting by themselves: copies, depths, rejection sampling.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/draft/copy.h"
#include "engine/draft/depth.h"
#include "engine/draft/speculation.h"

namespace gem {
namespace {

// The longest earlier match by definition: every earlier end tried, the latest one first.
SuffixIndex::Match by_hand(std::span<const std::int32_t> tokens, std::uint32_t shortest) {
  SuffixIndex::Match best;
  for (std::size_t next = tokens.size() - 1; next > 0; --next) {
    std::size_t length = 0;
    while (length < next && tokens[next - 1 - length] == tokens[tokens.size() - 1 - length]) ++length;
    if (length >= shortest && length > best.length) best = {next, length};
  }
  return best;
}

TEST(SuffixIndex, FindsTheLongestLatestMatchAsTheTextGrowsAndShrinks) {
  std::mt19937 random(3);
  for (const std::uint32_t shortest : {1u, 2u, 4u}) {
    SuffixIndex index({.shortest = shortest, .candidates = 100000});
    std::vector<std::int32_t> text;
    std::size_t found = 0;
    for (int step = 0; step < 400; ++step) {
      if (step % 37 == 36) {
        text.resize(text.size() - std::min<std::size_t>(text.size(), random() % 20));
        index.roll_back(text.size());
      }
      text.push_back(static_cast<std::int32_t>(random() % 3));
      index.extend(text);
      const SuffixIndex::Match a = index.find(text);
      const SuffixIndex::Match b = by_hand(text, shortest);
      ASSERT_EQ(a.length, b.length) << step;
      if (b.length > 0) {
        ASSERT_EQ(a.next, b.next) << step;
        ++found;
      }
    }
    EXPECT_GT(found, 200u);
  }
}

TEST(CopyDrafter, GoesOnWhereTheTextRepeatsItself) {
  CopyDrafter drafter({.shortest = 3, .most = 8});
  const std::vector<std::int32_t> text = {9, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3};
  const auto state = drafter.open();
  drafter.absorb(*state, {text, 1, {}});
  EXPECT_EQ(drafter.match(*state), 7u);  // 1 2 3 4 1 2 3 before and after the middle 4
  std::vector<DraftTurn> turns(1);
  turns[0].state = state.get();
  turns[0].tokens = text;
  turns[0].most = 6;
  drafter.propose(turns);
  EXPECT_EQ(turns[0].drafts, (std::vector<std::int32_t>{4, 1, 2, 3, 4, 1}));

  const std::vector<std::int32_t> ends = {2};
  turns[0].drafts.clear();
  turns[0].end_tokens = ends;
  drafter.propose(turns);
  EXPECT_EQ(turns[0].drafts, (std::vector<std::int32_t>{4, 1, 2})) << "nothing after the reply's end";
}

TEST(DraftCosts, LinesBetweenAndBeyondThePoints) {
  const DraftCosts costs{{{1, 2.0}, {3, 4.0}, {7, 6.0}}, {}};
  EXPECT_DOUBLE_EQ(costs.round(1), 2.0);
  EXPECT_DOUBLE_EQ(costs.round(2), 3.0);
  EXPECT_DOUBLE_EQ(costs.round(5), 5.0);
  EXPECT_DOUBLE_EQ(costs.round(9), 7.0);
  EXPECT_DOUBLE_EQ(costs.step(3), 0.0);
}

DraftLuck luck_of(std::uint32_t drafted, std::uint32_t kept, int rounds) {
  DraftLuck luck;
  for (int i = 0; i < rounds; ++i) luck.record(drafted, kept);
  return luck;
}

TEST(DraftLuck, TendsToWhatHappens) {
  const DraftLuck good = luck_of(7, 7, 200);
  for (std::size_t depth = 0; depth < 7; ++depth) EXPECT_GT(good.chance(depth), 0.95);
  const DraftLuck mixed = luck_of(7, 2, 200);  // two are kept, the third never
  EXPECT_GT(mixed.chance(1), 0.95);
  EXPECT_LT(mixed.chance(2), 0.1);
  EXPECT_LT(mixed.chance(6), 0.1) << "what was never reached is judged by what was";
}

// The choice against every other choice of depths, by the definition: tokens over seconds.
TEST(PlanDepths, NoOtherDepthsAreFaster) {
  const DraftLuck lucks[] = {luck_of(7, 7, 50), luck_of(7, 1, 50), luck_of(7, 0, 50)};
  const DraftCosts memory_bound{{{1, 1.0}, {8, 1.1}, {16, 1.3}, {32, 2.6}}, {{1, 0.04}, {4, 0.06}}};
  const DraftCosts compute_bound{{{1, 1.0}, {2, 1.95}, {16, 15.0}}, {{1, 0.05}}};
  for (const DraftCosts& costs : {memory_bound, compute_bound}) {
    for (const RoundLoad& load : {RoundLoad{0, 0}, RoundLoad{20, 0}, RoundLoad{0, 20}, RoundLoad{7, 5}}) {
      std::vector<DepthCandidate> streams;
      for (const DraftLuck& luck : lucks) streams.push_back({&luck, 5, true});
      const auto speed = [&](const std::vector<std::uint32_t>& depths) {
        double tokens = load.streams, seconds = 0;
        std::uint32_t rows = load.prompt_rows + load.streams;
        for (std::size_t i = 0; i < 3; ++i) {
          rows += depths[i] + 1;
          double reach = 1;
          for (std::uint32_t d = 0; d <= depths[i]; ++d) {
            tokens += reach;
            reach *= streams[i].luck->chance(d);
          }
        }
        for (std::uint32_t step = 0; step < 5; ++step) {
          const auto active = static_cast<std::uint32_t>(
              std::count_if(depths.begin(), depths.end(), [&](std::uint32_t d) { return d > step; }));
          if (active > 0) seconds += costs.step(active);
        }
        return tokens / (seconds + costs.round(rows));
      };
      const std::vector<std::uint32_t> chosen = plan_depths(costs, load, streams);
      double best = 0;
      for (std::uint32_t a = 0; a <= 5; ++a)
        for (std::uint32_t b = 0; b <= 5; ++b)
          for (std::uint32_t c = 0; c <= 5; ++c) best = std::max(best, speed({a, b, c}));
      EXPECT_GE(speed(chosen), 0.995 * best)
          << load.prompt_rows << " "
          << load.streams;  // the likeliest-first order is not always the very best
    }
  }
  const std::vector<DepthCandidate> lucky = {{&lucks[0], 7, true}};
  EXPECT_EQ(plan_depths(memory_bound, {}, lucky), std::vector<std::uint32_t>{7});
  EXPECT_EQ(plan_depths(compute_bound, {}, lucky), std::vector<std::uint32_t>{0})
      << "rows cost what they bring";
  // What a lucky stream would win, thirty others that do not draft would pay for.
  const DraftCosts filled{{{1, 1.0}, {16, 1.1}, {32, 1.2}, {64, 2.4}}, {}};
  EXPECT_EQ(plan_depths(filled, {}, lucky), std::vector<std::uint32_t>{7});
  EXPECT_EQ(plan_depths(filled, {.streams = 31}, lucky), std::vector<std::uint32_t>{0});
  const std::vector<DepthCandidate> unlucky = {{&lucks[2], 7, true}};
  const DraftCosts dear_steps{{{1, 1.0}, {8, 1.25}}, {{1, 0.05}}};
  EXPECT_EQ(plan_depths(dear_steps, {}, unlucky), std::vector<std::uint32_t>{0});
}

// Chi-square of 100,000 draws against the wanted distribution. 30 degrees of freedom at most: the bound is
// the 1 - 1e-6 quantile for 15, 51.
double chi_square(const std::vector<std::uint64_t>& counts, const std::vector<double>& p, double draws) {
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * draws;
    if (expected == 0) {
      if (counts[i] > 0) return INFINITY;
      continue;
    }
    sum +=
        (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
  }
  return sum;
}

Distribution distribution_of(const std::vector<double>& p) {
  Distribution d;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) d.tokens.emplace_back(static_cast<std::int32_t>(i), p[i]);
  }
  return d;
}

TEST(RejectionSampling, HasTheTargetsDistribution) {
  constexpr std::size_t kVocab = 16;
  constexpr int kDraws = 100000;
  std::mt19937 random(11);
  const auto some = [&](double keep) {
    std::vector<double> p(kVocab);
    double sum = 0;
    for (double& x : p) {
      x = std::uniform_real_distribution<>(0, 1)(random) < keep ? std::exponential_distribution<>(1)(random)
                                                                : 0;
      sum += x;
    }
    for (double& x : p) x /= sum;
    return p;
  };
  std::vector<double> one_hot(kVocab, 0);
  one_hot[5] = 1;
  const std::vector<double> target = some(0.8);
  const std::vector<double> drafters[] = {target, some(0.8), some(0.4), one_hot,
                                          std::vector<double>(kVocab, 1.0 / kVocab)};
  for (const std::vector<double>& q : drafters) {
    std::vector<std::uint64_t> counts(kVocab, 0);
    double kept = 0, overlap = 0;
    for (std::size_t i = 0; i < kVocab; ++i) overlap += std::min(target[i], q[i]);
    for (int i = 0; i < kDraws; ++i) {
      // As in a reply: one seed, a position for each draw.
      const auto position = static_cast<std::uint64_t>(i);
      const std::int32_t draft = draw(distribution_of(q), 42, position, DrawPurpose::kDraft);
      const std::int32_t token =
          accept_or_resample(distribution_of(target), distribution_of(q), draft, 42, position);
      ++counts[static_cast<std::size_t>(token)];
      kept += token == draft ? 1 : 0;
    }
    EXPECT_LT(chi_square(counts, target, kDraws), 51);
    // A draft is kept with the probability that both distributions share.
    EXPECT_NEAR(kept / kDraws, overlap, 0.01);
  }
}

TEST(RejectionSampling, TheSamplersDistributionIsWhatItDrawsFrom) {
  SamplingParams params;
  params.temperature = 0.8;
  params.top_k = 9;
  params.top_p = 0.93;
  params.logit_bias = {{3, 1.5f}, {4, -INFINITY}};
  std::vector<float> logits(16);
  std::mt19937 random(5);
  for (float& x : logits) x = static_cast<float>(random() % 1000) / 250.0f;
  Sampler sampler(params, {});
  const Distribution d = *sampler.distribution(logits);
  std::vector<double> p(16, 0);
  double sum = 0;
  for (const auto& [token, chance] : d.tokens) sum += p[static_cast<std::size_t>(token)] = chance;
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_EQ(p[4], 0);
  std::vector<std::uint64_t> counts(16, 0);
  for (std::uint64_t i = 0; i < 100000; ++i) ++counts[static_cast<std::size_t>(*sampler.draw(logits, i))];
  EXPECT_LT(chi_square(counts, p, 100000), 51);
}

TEST(DraftCounts, CountsByDepth) {
  DraftCounts counts;
  counts.add(0, 0);
  counts.add(3, 1);
  counts.add(3, 3);
  EXPECT_EQ(counts.rounds, 2u);
  EXPECT_EQ(counts.drafted[2], 2u);
  EXPECT_EQ(counts.accepted[0], 2u);
  EXPECT_EQ(counts.accepted[1], 1u);
  EXPECT_EQ(counts.all_drafted(), 6u);
  EXPECT_EQ(counts.all_accepted(), 4u);
}

}  // namespace
}  // namespace gem
