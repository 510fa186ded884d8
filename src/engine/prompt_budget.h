// How many rows of prompts a round reads: as many as a chunk has while nobody waits for tokens, and beside
// decoding streams as many as keep a round within a multiple of what it takes without them, so that a long
// prompt slows running replies but never stops them.
//
// Costs are measured, round by round. Tokens do not depend on them: a prompt's rows have the same bits
// however it is cut (law 2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gem {

class PromptBudget {
 public:
  static constexpr double kSlowdown = 2;  // of a decoding stream while prompts are read

  // Rounds of at most `chunk` prompt rows; never fewer than a 32nd of it, nor than 8, which would read a
  // prompt too slowly.
  explicit PromptBudget(std::uint32_t chunk);

  // Prompt rows for the next round.
  std::uint32_t rows(bool decoding) const;
  // Of a round without prompts; 0: not known yet.
  double decode_seconds() const { return decode_seconds_; }
  // After a round of so many rows of decoding streams and of prompts.
  void observe(std::uint32_t decode_rows, std::uint32_t prompt_rows, double seconds);

 private:
  std::uint32_t chunk_, least_;
  double decode_seconds_ = 0;      // of a round without prompts; 0: not known yet
  double prompt_row_seconds_ = 0;  // that a prompt's row adds; 0: not known yet
};

// Where prompts have a lane of their own (Backend::new_lane), a chunk of them is read layer by layer between
// the rounds of replies: as many layers at a time as take about as long as such a round.
class LanePace {
 public:
  std::size_t layers(double decode_seconds) const;  // at least 1
  void observe(std::size_t layers, double seconds);

 private:
  double layer_seconds_ = 0;  // 0: not known yet
};

// Shares `rows` among prompts that have `left` rows each: evenly, what the short ones do not need going to
// the long ones, so that a short prompt is not kept waiting by a long one. The first ones get the remainder.
std::vector<std::uint32_t> share_rows(std::span<const std::uint32_t> left, std::uint32_t rows);

}  // namespace gem
