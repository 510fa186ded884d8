// Drafting for the streams of an engine: who drafts how much in a round, and what becomes of it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/depth.h"
#include "engine/draft/drafter.h"
#include "engine/sampler.h"

namespace gem {

enum class SpecSampling : std::uint8_t {
  // The target draws with the key of the row, a draft is kept while it equals the draw: the reply is bit for
  // bit what it is without drafts. Drafts are drawn with the same keys, so they agree more often than chance.
  kKeyed,
  // Exact rejection and residual sampling (Leviathan et al., "Fast inference from transformers via
  // speculative
  // decoding", 2023): the reply has the same distribution, not the same tokens. For comparison.
  kRejection,
};

struct DraftOptions {
  // Tokens drafted for a stream in one round at most; nothing: the drafter's limit.
  std::optional<std::uint32_t> most = {};
  SpecSampling sampling = SpecSampling::kKeyed;
  bool adaptive = true;                  // false: always as many as can be
  std::optional<DraftCosts> costs = {};  // nothing: measured when the drafter is set up
  // Told once, in a line, when drafting is given up.
  std::function<void(const std::string&)> warn = {};
};

// What drafts have come to. `drafted[i]` counts the drafts at depth i, `accepted[i]` those that were kept.
struct DraftCounts {
  static constexpr std::size_t kDepths = DraftLuck::kDepths;
  std::uint64_t rounds = 0;  // decode rounds of a stream that verified at least one draft
  std::array<std::uint64_t, kDepths> drafted{}, accepted{};

  void add(std::uint32_t drafts, std::uint32_t kept);
  void add(const DraftCounts& other);
  std::uint64_t all_drafted() const;
  std::uint64_t all_accepted() const;
};

// What is kept for one stream. Not for streams that do not draft.
struct StreamDrafts {
  std::unique_ptr<DraftState> state;
  std::array<DraftLuck, kDraftKinds> luck;
  Sampler sampler;             // follows the stream's
  std::uint32_t idle = 0;      // rounds since something was drafted
  std::uint32_t patience = 0;  // idle rounds before drafting is tried again
  DraftCounts counts;
  explicit StreamDrafts(const Sampler& s) : sampler(s) {}
};

// A decoding stream of the coming round.
struct SpeculationTurn {
  StreamDrafts* drafts = nullptr;  // null: it does not draft
  const Sampler* sampler = nullptr;
  KvCache* cache = nullptr;
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> end_tokens;
  std::uint32_t room = 0;  // most drafts that the context, the cache's spans and the reply's limit leave

  // Out
  DraftKind kind = DraftKind::kModel;
  std::vector<std::int32_t> proposed;
  std::vector<Distribution> drawn_from;  // kRejection
};

class Speculation {
 public:
  Speculation(std::unique_ptr<Drafter> drafter, DraftOptions options);

  const Drafter& drafter() const { return *drafter_; }
  const DraftOptions& options() const { return options_; }
  DraftWants wants() const { return active_ ? drafter_->wants() : DraftWants{}; }
  bool active() const { return active_; }
  // Nothing: never (no drafts at all).
  std::unique_ptr<StreamDrafts> open(const Sampler& sampler);

  // Proposals for the streams that are worth drafting for. `prompt_rows` go through the same round.
  void propose(std::span<SpeculationTurn> turns, std::uint32_t prompt_rows);
  // Of a turn's proposals the first `kept` came true.
  void settle(StreamDrafts& drafts, DraftKind kind, std::uint32_t proposed, std::uint32_t kept);
  void absorb(StreamDrafts& drafts, const AbsorbedRows& rows) { drafter_->absorb(*drafts.state, rows); }

 private:
  void give_up();
  void try_again(std::span<SpeculationTurn> turns, std::span<const std::size_t> able, const RoundLoad& load,
                 std::vector<DepthCandidate> candidates, std::span<std::uint32_t> depths) const;
  std::unique_ptr<Drafter> drafter_;
  DraftOptions options_;
  bool active_ = true;
};

// One token by rejection sampling: `draft` was drawn from `q` (independently of the keys kAccept and
// kResidual), the token that is returned is distributed as `p`. It is `draft` where that was accepted, or
// else drawn from what p has more than q. Both distributions are not empty.
std::int32_t accept_or_resample(const Distribution& p, const Distribution& q, std::int32_t draft,
                                std::uint64_t seed, std::uint64_t position);

}  // namespace gem
