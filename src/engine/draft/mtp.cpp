#include "engine/draft/mtp.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace gem {
namespace {

struct State final : DraftState {
  std::vector<float> hidden;  // the target's row before the pending token; empty: none since a roll-back
};

bool finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

MtpDrafter::MtpDrafter(const Assistant& assistant, Backend& target, MtpOptions options)
    : assistant_(assistant), backend_(make_assistant_backend(target, assistant)), options_(options) {}

std::string MtpDrafter::description() const {
  return "the MTP assistant " + std::filesystem::path(assistant_.path()).filename().string();
}

std::uint64_t MtpDrafter::memory(std::uint32_t streams) const {
  std::uint64_t weights = 0;
  for (const TensorView& tensor : assistant_.checkpoint().tensors()) weights += tensor.stored_bytes();
  return backend_->weight_bytes().value_or(weights) + backend_->scratch_bytes(streams, streams);
}

std::unique_ptr<DraftState> MtpDrafter::open() {
  return std::make_unique<State>();
}

void MtpDrafter::absorb(DraftState& state, const AbsorbedRows& rows) {
  auto& hidden = static_cast<State&>(state).hidden;
  const auto last =
      rows.hidden.last(std::min<std::size_t>(rows.hidden.size(), assistant_.geometry().backbone));
  hidden.assign(last.begin(), last.end());
}

void MtpDrafter::roll_back(DraftState& state, std::uint32_t) {
  static_cast<State&>(state).hidden.clear();
}

DraftOutlook MtpDrafter::outlook(const DraftState& state, std::span<const std::int32_t>) const {
  return {DraftKind::kModel, static_cast<const State&>(state).hidden.empty() ? 0 : options_.most, true};
}

// The draft that follows from a step's row of logits, if any.
void MtpDrafter::take(DraftTurn& turn, std::uint32_t row) const {
  const std::size_t position = turn.tokens.size() + turn.drafts.size();
  std::optional<std::int32_t> token;
  if (turn.distributions) {
    if (std::optional<Distribution> q = turn.sampler->distribution(backend_->logits(row))) {
      token = draw(*q, turn.sampler->params().seed, position, DrawPurpose::kDraft);
      turn.drawn_from.push_back(std::move(*q));
    }
  } else {
    token = draw_row(*turn.sampler, *backend_, row, position);
  }
  if (token) {
    turn.drafts.push_back(*token);
    turn.sampler->see_reply(*token);
  } else {
    const std::span<const float> logits = backend_->logits(row);
    turn.broken = std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
  }
}

void MtpDrafter::propose(std::span<DraftTurn> turns) {
  const std::size_t width = assistant_.geometry().backbone;
  std::vector<DraftTurn*> active;
  std::vector<float> hidden;  // [active, width]
  for (DraftTurn& turn : turns) {
    turn.kind = DraftKind::kModel;
    turn.most = std::min(turn.most, options_.most);
    const auto& row = static_cast<const State&>(*turn.state).hidden;
    // A row that is not finite is the target's own failure, which its next draw reports.
    if (turn.most == 0 || row.empty() || !finite(row)) continue;
    active.push_back(&turn);
    hidden.insert(hidden.end(), row.begin(), row.end());
  }
  while (!active.empty()) {
    std::vector<ChainRow> rows;
    for (std::size_t i = 0; i < active.size(); ++i) {
      const DraftTurn& turn = *active[i];
      const std::uint32_t position = turn.cache->length() - (options_.position_before ? 1 : 0);
      const std::int32_t token = turn.drafts.empty() ? turn.tokens.back() : turn.drafts.back();
      rows.push_back({turn.cache, position, token, std::span(hidden).subspan(i * width, width)});
    }
    const std::vector<float> next = run_chain_step(*backend_, assistant_.geometry(), rows);
    std::vector<DraftTurn*> going;
    hidden.clear();
    for (std::size_t i = 0; i < active.size(); ++i) {
      DraftTurn& turn = *active[i];
      const std::size_t before = turn.drafts.size();
      take(turn, static_cast<std::uint32_t>(i));
      if (turn.drafts.size() == before || turn.drafts.size() == turn.most) continue;
      const auto& ends = turn.end_tokens;
      if (std::find(ends.begin(), ends.end(), turn.drafts.back()) != ends.end()) continue;
      going.push_back(&turn);
      const auto row = std::span(next).subspan(i * width, width);
      hidden.insert(hidden.end(), row.begin(), row.end());
    }
    active = std::move(going);
  }
}

}  // namespace gem
