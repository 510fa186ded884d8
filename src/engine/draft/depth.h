// How many tokens to draft: measured costs against the luck of each stream so far.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace gem {

// Seconds, measured when the drafter is set up.
struct DraftCosts {
  // Of rounds of the target by their rows, ascending by rows; in between by straight lines, beyond the last
  // by the last line. At least one entry.
  std::vector<std::pair<std::uint32_t, double>> rounds;
  // Of one step of the drafter's model by its rows (streams), likewise; empty where there is no model.
  std::vector<std::pair<std::uint32_t, double>> steps;

  double round(std::uint32_t rows) const;
  double step(std::uint32_t streams) const;
};

// The luck of one stream's drafts of one kind: for each depth, how often a draft was kept among those whose
// predecessors were. Recent rounds count more.
class DraftLuck {
 public:
  static constexpr std::size_t kDepths = 16;
  // The first `kept` of `drafted` drafts were kept.
  void record(std::uint32_t drafted, std::uint32_t kept);
  // Of a draft at `depth` (0: the first) being kept, given that those before it are.
  double chance(std::size_t depth) const;

 private:
  std::array<double, kDepths> kept_{}, seen_{};
};

// A stream that could draft in the next round.
struct DepthCandidate {
  const DraftLuck* luck = nullptr;
  std::uint32_t most = 0;
  bool steps = false;  // each draft is a step of the model
};

// What goes through the target anyway.
struct RoundLoad {
  std::uint32_t prompt_rows = 0;
  std::uint32_t streams = 0;  // that decode without drafts: a row and a token each
};

// Depths for the round, those that give the most tokens a second over all streams, also those that do not
// draft: what drafts cost they pay too.
std::vector<std::uint32_t> plan_depths(const DraftCosts& costs, const RoundLoad& load,
                                       std::span<const DepthCandidate> candidates);

}  // namespace gem
