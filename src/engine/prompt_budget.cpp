#include "engine/prompt_budget.h"

#include <algorithm>
#include <numeric>

namespace gem {
namespace {

// The mean of about the last eight values; the first one counts whole.
void mix(double& mean, double value) {
  mean = mean == 0 ? value : mean + (value - mean) / 8;
}

}  // namespace

PromptBudget::PromptBudget(std::uint32_t chunk)
    : chunk_(chunk), least_(std::min(chunk, std::max(8u, chunk / 32))) {}

std::uint32_t PromptBudget::rows(bool decoding) const {
  if (!decoding) return chunk_;
  if (decode_seconds_ == 0 || prompt_row_seconds_ == 0) return least_;
  const double fit = (kSlowdown - 1) * decode_seconds_ / prompt_row_seconds_;
  return fit >= chunk_ ? chunk_ : std::max(least_, static_cast<std::uint32_t>(fit));
}

void PromptBudget::observe(std::uint32_t decode_rows, std::uint32_t prompt_rows, double seconds) {
  if (prompt_rows == 0) {
    if (decode_rows > 0) mix(decode_seconds_, seconds);
    return;
  }
  if (decode_rows > 0 && decode_seconds_ == 0) return;  // what the prompt's share was cannot be told
  const double added = seconds - (decode_rows > 0 ? decode_seconds_ : 0);
  // A round that was quicker than one without prompts is noise, not rows for nothing.
  mix(prompt_row_seconds_, std::max(added, seconds / 16) / prompt_rows);
}

std::size_t LanePace::layers(double decode_seconds) const {
  if (layer_seconds_ == 0) return 1;
  return static_cast<std::size_t>(
      std::clamp((PromptBudget::kSlowdown - 1) * decode_seconds / layer_seconds_, 1.0, 1e6));
}

void LanePace::observe(std::size_t layers, double seconds) {
  if (layers > 0) mix(layer_seconds_, seconds / static_cast<double>(layers));
}

std::vector<std::uint32_t> share_rows(std::span<const std::uint32_t> left, std::uint32_t rows) {
  std::vector<std::size_t> shortest(left.size());
  std::iota(shortest.begin(), shortest.end(), 0);
  std::stable_sort(shortest.begin(), shortest.end(),
                   [&](std::size_t a, std::size_t b) { return left[a] < left[b]; });
  std::vector<std::uint32_t> out(left.size());
  for (std::size_t i = 0; i < shortest.size(); ++i) {
    const auto others = static_cast<std::uint32_t>(shortest.size() - i);
    const std::uint32_t share = std::min(left[shortest[i]], (rows + others - 1) / others);
    out[shortest[i]] = share;
    rows -= share;
  }
  return out;
}

}  // namespace gem
