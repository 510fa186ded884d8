#include "engine/draft/mtp.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace gem {
namespace {

struct State final : DraftState {
  std::vector<float> hidden;  // the target's row before the pending token; empty: none since a roll-back
};

bool ends(const DraftTurn& turn, std::int32_t token) {
  return std::find(turn.end_tokens.begin(), turn.end_tokens.end(), token) != turn.end_tokens.end();
}

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

ChainRow MtpDrafter::row_of(const DraftTurn& turn, std::span<const float> hidden) const {
  const std::uint32_t position = turn.cache->length() - (options_.position_before ? 1 : 0);
  return {turn.cache, position, turn.drafts.empty() ? turn.tokens.back() : turn.drafts.back(), hidden};
}

std::optional<KeyedDraw> MtpDrafter::settled_by_best(const DraftTurn& turn) const {
  const std::uint32_t most = backend_->most_best();
  if (most == 0 || turn.distributions) return std::nullopt;
  return turn.sampler->draw_of_best(turn.tokens.size(), most);
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

bool MtpDrafter::propose_at_once(std::span<DraftTurn* const> turns) {
  std::vector<ChainRow> rows;
  std::vector<KeyedDraw> draws;
  std::uint32_t steps = 0;
  for (const DraftTurn* turn : turns) {
    rows.push_back(row_of(*turn, static_cast<const State&>(*turn->state).hidden));
    draws.push_back(*settled_by_best(*turn));
    steps = std::max(steps, turn->most);
  }
  std::vector<std::int32_t> taken(steps * turns.size());
  if (!run_chain(*backend_, rows, steps, draws, taken)) return false;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    for (std::uint32_t k = 0; k < turns[i]->most; ++k) {
      if (taken[k * turns.size() + i] < 0) return false;
    }
  }
  for (std::size_t i = 0; i < turns.size(); ++i) {
    DraftTurn& turn = *turns[i];
    for (std::uint32_t k = 0; k < turn.most; ++k) {
      const std::size_t at = k * turns.size() + i;
      const auto token = turn.sampler->draw_from_best(backend_->best_logits(static_cast<std::uint32_t>(at)),
                                                      turn.tokens.size() + turn.drafts.size());
      if (!token) break;
      turn.drafts.push_back(*token);
      turn.sampler->see_reply(*token);
      // The chain went on from what it took: another one where that may not be drawn, or by a rounding.
      if (*token != taken[at] || ends(turn, *token)) break;
    }
  }
  return true;
}

void MtpDrafter::propose_by_steps(std::vector<DraftTurn*> turns) {
  const std::size_t width = assistant_.geometry().backbone;
  std::vector<float> hidden;  // [turns, width]
  for (const DraftTurn* turn : turns) {
    const auto& row = static_cast<const State&>(*turn->state).hidden;
    hidden.insert(hidden.end(), row.begin(), row.end());
  }
  while (!turns.empty()) {
    std::vector<ChainRow> rows;
    for (std::size_t i = 0; i < turns.size(); ++i)
      rows.push_back(row_of(*turns[i], std::span(hidden).subspan(i * width, width)));
    const std::vector<float> next = run_chain_step(*backend_, assistant_.geometry(), rows);
    std::vector<DraftTurn*> going;
    hidden.clear();
    for (std::size_t i = 0; i < turns.size(); ++i) {
      DraftTurn& turn = *turns[i];
      const std::size_t before = turn.drafts.size();
      take(turn, static_cast<std::uint32_t>(i));
      if (turn.drafts.size() == before || turn.drafts.size() == turn.most) continue;
      if (ends(turn, turn.drafts.back())) continue;
      going.push_back(&turn);
      const auto row = std::span(next).subspan(i * width, width);
      hidden.insert(hidden.end(), row.begin(), row.end());
    }
    turns = std::move(going);
  }
}

void MtpDrafter::propose(std::span<DraftTurn> turns) {
  std::vector<DraftTurn*> at_once;
  std::vector<DraftTurn*> by_steps;
  for (DraftTurn& turn : turns) {
    turn.kind = DraftKind::kModel;
    turn.most = std::min(turn.most, options_.most);
    const auto& row = static_cast<const State&>(*turn.state).hidden;
    // A row that is not finite is the target's own failure, which its next draw reports.
    if (turn.most == 0 || row.empty() || !finite(row)) continue;
    (settled_by_best(turn) ? at_once : by_steps).push_back(&turn);
  }
  if (!at_once.empty() && !propose_at_once(at_once))
    by_steps.insert(by_steps.end(), at_once.begin(), at_once.end());
  propose_by_steps(std::move(by_steps));
}

}  // namespace gem
