#include "engine/draft/depth.h"

#include <algorithm>
#include <numeric>

namespace gem {
namespace {

// Before anything is known: good enough to try, weak enough that a few rounds of bad luck outweigh it.
constexpr double kPrior = 0.7;
constexpr double kPriorWeight = 2;
// What a round is worth after the next one; about the last 20 rounds count.
constexpr double kMemory = 0.95;

double on_lines(const std::vector<std::pair<std::uint32_t, double>>& points, std::uint32_t x) {
  if (points.empty()) return 0;
  if (points.size() == 1 || x <= points.front().first) return points.front().second;
  const auto above =
      std::find_if(points.begin() + 1, points.end() - 1, [&](const auto& p) { return x <= p.first; });
  const auto& [x0, y0] = *(above - 1);
  const auto& [x1, y1] = *above;
  const double slope = std::max(0.0, (y1 - y0) / (x1 - x0));
  return y0 + slope * (double{static_cast<double>(x)} - x0);
}

}  // namespace

double DraftCosts::round(std::uint32_t rows) const {
  return on_lines(rounds, rows);
}
double DraftCosts::step(std::uint32_t streams) const {
  return on_lines(steps, streams);
}

void DraftLuck::record(std::uint32_t drafted, std::uint32_t kept) {
  for (std::size_t depth = 0; depth < kDepths && depth < drafted && depth <= kept; ++depth) {
    seen_[depth] = seen_[depth] * kMemory + 1;
    kept_[depth] = kept_[depth] * kMemory + (depth < kept ? 1 : 0);
  }
}

// A depth that was seldom reached is judged by the one before it.
double DraftLuck::chance(std::size_t depth) const {
  double chance = kPrior;
  for (std::size_t i = 0; i <= std::min(depth, kDepths - 1); ++i)
    chance = (kept_[i] + kPriorWeight * chance) / (seen_[i] + kPriorWeight);
  return chance;
}

std::vector<std::uint32_t> plan_depths(const DraftCosts& costs, const RoundLoad& load,
                                       std::span<const DepthCandidate> candidates) {
  const std::size_t n = candidates.size();
  std::vector<std::uint32_t> depths(n, 0), best(n, 0);
  std::vector<double> reach(n);  // of the next draft being kept
  for (std::size_t i = 0; i < n; ++i) reach[i] = candidates[i].luck->chance(0);
  std::vector<std::uint32_t> chains;  // streams at each step of the model
  const std::uint32_t decoding = load.streams + static_cast<std::uint32_t>(n);
  std::uint32_t rows = load.prompt_rows + decoding;
  double tokens = decoding;
  double model = 0;  // seconds of the chains
  double most = tokens / costs.round(rows);
  // One draft after the other, the likeliest first: for each total the depths that keep the most.
  for (;;) {
    std::size_t next = n;
    for (std::size_t i = 0; i < n; ++i) {
      if (depths[i] < candidates[i].most && (next == n || reach[i] > reach[next])) next = i;
    }
    if (next == n) return best;
    const std::uint32_t depth = depths[next]++;
    ++rows;
    tokens += reach[next];
    if (candidates[next].steps) {
      if (chains.size() <= depth) chains.resize(depth + 1, 0);
      if (chains[depth] > 0) model -= costs.step(chains[depth]);
      model += costs.step(++chains[depth]);
    }
    reach[next] *= candidates[next].luck->chance(depth + 1);
    if (const double speed = tokens / (costs.round(rows) + model); speed > most) {
      most = speed;
      best = depths;
    }
  }
}

}  // namespace gem
