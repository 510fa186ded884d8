// What guesses the tokens that streams will draw, so that one pass of the target can check several.
//
// Law: a drafter never changes a reply. The target draws at every row with the row's own key, whatever was
// guessed; a guess is kept while it equals the draw. A drafter that is wrong costs time, nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/kv_cache.h"
#include "engine/sampler.h"

namespace gem {

// What a drafter keeps of one stream.
class DraftState {
 public:
  virtual ~DraftState() = default;
};

// Hidden rows of the target that a drafter reads of every round. (Drafters that read the residual of several
// layers, as DFlash's, will name those layers here; a round gives them already: Taps of model/schedule.h.)
struct DraftWants {
  bool hidden = false;  // after the final norm
};

// Rows of a stream that are in the cache for good.
struct AbsorbedRows {
  std::span<const std::int32_t> tokens;  // all tokens of the stream, the last one pending (not in the cache)
  std::uint32_t rows = 0;                // the last `rows` positions of the cache are new
  std::span<const float> hidden;         // [given, width] of the last `given` of them; empty when not wanted
};

// Drafters of different kinds have different luck; a record is kept for each.
enum class DraftKind : std::uint8_t { kModel, kCopy };
inline constexpr std::size_t kDraftKinds = 2;

// What the next proposal for a stream would be.
struct DraftOutlook {
  DraftKind kind = DraftKind::kModel;
  std::uint32_t most = 0;  // tokens; 0: nothing to propose
  bool steps = false;      // a step of a model for every token, shared with other streams' steps
};

// One stream's part in a proposal.
struct DraftTurn {
  DraftState* state = nullptr;
  KvCache* cache = nullptr;              // of the target: tokens.size() - 1 positions
  std::span<const std::int32_t> tokens;  // the last one pending
  std::uint32_t most = 0;                // tokens wanted at most; 0 leaves the stream out
  // Draws as the stream does at the given position, penalties included; told of each token proposed
  // (see_reply).
  Sampler* sampler = nullptr;
  std::span<const std::int32_t> end_tokens;  // nothing is proposed after one of these
  bool distributions = false;                // `drawn_from` is wanted, and draws independent of the target's

  // Out
  DraftKind kind = DraftKind::kModel;
  std::vector<std::int32_t> drafts;
  std::vector<Distribution> drawn_from;  // of each draft
  bool broken = false;                   // the drafter's numbers are not usable
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string description() const = 0;
  // Bytes of weights and work space for that many streams.
  virtual std::uint64_t memory(std::uint32_t /*streams*/) const { return 0; }
  // Brings weights into their form before the first proposal. Error(kTooLarge) when there is no room.
  virtual void load() {}
  virtual DraftWants wants() const { return {}; }

  virtual std::unique_ptr<DraftState> open() = 0;
  // After every round in which rows of the stream were accepted, prompt rows included.
  virtual void absorb(DraftState& state, const AbsorbedRows& rows) = 0;
  virtual DraftOutlook outlook(const DraftState& state, std::span<const std::int32_t> tokens) const = 0;
  // Fills the turns of all streams in one go. A turn that gives fewer tokens than wanted, or none, is fine.
  virtual void propose(std::span<DraftTurn> turns) = 0;
  // `kept` of the last proposal were accepted; absorb() follows.
  virtual void accept(DraftState& /*state*/, std::uint32_t /*kept*/) {}
  // Forgets tokens and rows from position `length` on.
  virtual void roll_back(DraftState& state, std::uint32_t length) = 0;
};

}  // namespace gem
