#include "engine/draft/combined.h"

#include <utility>

namespace gem {
namespace {

struct State final : DraftState {
  std::unique_ptr<DraftState> model, copy;
  bool copied = false;  // the last proposal
};

State& of(DraftState& state) {
  return static_cast<State&>(state);
}
const State& of(const DraftState& state) {
  return static_cast<const State&>(state);
}

}  // namespace

CombinedDrafter::CombinedDrafter(std::unique_ptr<Drafter> model, CopyOptions copy, std::uint32_t sure)
    : model_(std::move(model)), copy_(copy), sure_(sure) {}

std::string CombinedDrafter::description() const {
  return model_->description() + " and " + copy_.description();
}

std::unique_ptr<DraftState> CombinedDrafter::open() {
  auto state = std::make_unique<State>();
  state->model = model_->open();
  state->copy = copy_.open();
  return state;
}

void CombinedDrafter::absorb(DraftState& state, const AbsorbedRows& rows) {
  model_->absorb(*of(state).model, rows);
  copy_.absorb(*of(state).copy, rows);
}

DraftOutlook CombinedDrafter::outlook(const DraftState& state, std::span<const std::int32_t> tokens) const {
  const State& s = of(state);
  if (copy_.match(*s.copy) >= sure_) return copy_.outlook(*s.copy, tokens);
  return model_->outlook(*s.model, tokens);
}

void CombinedDrafter::propose(std::span<DraftTurn> turns) {
  std::vector<DraftTurn> model, copy;
  std::vector<bool> copied;
  for (DraftTurn& turn : turns) {
    State& s = of(*turn.state);
    s.copied = copy_.match(*s.copy) >= sure_;
    copied.push_back(s.copied);
    auto& list = s.copied ? copy : model;
    list.push_back(std::move(turn));
    list.back().state = s.copied ? s.copy.get() : s.model.get();
  }
  copy_.propose(copy);
  model_->propose(model);
  std::size_t of_model = 0, of_copy = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    DraftState* const state = turns[i].state;  // a pointer outlives the move
    turns[i] = std::move(copied[i] ? copy[of_copy++] : model[of_model++]);
    turns[i].state = state;
  }
}

void CombinedDrafter::accept(DraftState& state, std::uint32_t kept) {
  if (of(state).copied) {
    copy_.accept(*of(state).copy, kept);
  } else {
    model_->accept(*of(state).model, kept);
  }
}

void CombinedDrafter::roll_back(DraftState& state, std::uint32_t length) {
  model_->roll_back(*of(state).model, length);
  copy_.roll_back(*of(state).copy, length);
}

}  // namespace gem
