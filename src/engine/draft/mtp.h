// Drafts by an MTP assistant (model/assistant.h): a chain of steps for every stream, all chains in one pass.
#pragma once

#include <optional>
#include <vector>

#include "engine/draft/drafter.h"
#include "model/assistant.h"

namespace gem {

struct MtpOptions {
  std::uint32_t most = 7;  // the assistants are trained for chains of about that length
  // Queries at the position before the pending token's. Which one keeps more drafts depends on the training;
  // the publisher's implementation takes the pending token's.
  bool position_before = false;
};

class MtpDrafter final : public Drafter {
 public:
  // `target` runs the assistant's target. It and the assistant must outlive the drafter.
  MtpDrafter(const Assistant& assistant, Backend& target, MtpOptions options = {});
  std::string description() const override;
  std::uint64_t memory(std::uint32_t streams) const override;
  void load() override { backend_->load_weights({}); }
  DraftWants wants() const override { return {.hidden = true}; }
  std::unique_ptr<DraftState> open() override;
  void absorb(DraftState& state, const AbsorbedRows& rows) override;
  DraftOutlook outlook(const DraftState& state, std::span<const std::int32_t> tokens) const override;
  void propose(std::span<DraftTurn> turns) override;
  void roll_back(DraftState& state, std::uint32_t length) override;

 private:
  // The row of a turn's next step.
  ChainRow row_of(const DraftTurn& turn, std::span<const float> hidden) const;
  void take(DraftTurn& turn, std::uint32_t row) const;
  // The draws of a turn, where the best tokens of a row settle them and the backend has those.
  std::optional<KeyedDraw> settled_by_best(const DraftTurn& turn) const;
  // All drafts of turns whose draws are settled so, without a look in between. False, and nothing drafted:
  // the backend has no way for that, or a row has to be looked at as a whole.
  bool propose_at_once(std::span<DraftTurn* const> turns);
  void propose_by_steps(std::vector<DraftTurn*> turns);

  const Assistant& assistant_;
  std::unique_ptr<Backend> backend_;
  MtpOptions options_;
};

}  // namespace gem
