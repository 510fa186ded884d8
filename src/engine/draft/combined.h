// Copies where the match is long, else a model's drafts.
#pragma once

#include <memory>

#include "engine/draft/copy.h"
#include "engine/draft/drafter.h"

namespace gem {

class CombinedDrafter final : public Drafter {
 public:
  // A match of `sure` tokens and more is preferred to the model's guess.
  CombinedDrafter(std::unique_ptr<Drafter> model, CopyOptions copy, std::uint32_t sure = 16);
  std::string description() const override;
  std::uint64_t memory(std::uint32_t streams) const override { return model_->memory(streams); }
  void load() override { model_->load(); }
  DraftWants wants() const override { return model_->wants(); }
  std::unique_ptr<DraftState> open() override;
  void absorb(DraftState& state, const AbsorbedRows& rows) override;
  DraftOutlook outlook(const DraftState& state, std::span<const std::int32_t> tokens) const override;
  void propose(std::span<DraftTurn> turns) override;
  void accept(DraftState& state, std::uint32_t kept) override;
  void roll_back(DraftState& state, std::uint32_t length) override;

 private:
  std::unique_ptr<Drafter> model_;
  CopyDrafter copy_;
  std::uint32_t sure_;
};

}  // namespace gem
