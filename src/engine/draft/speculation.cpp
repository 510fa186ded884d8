#include "engine/draft/speculation.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gem {
namespace {

// Rounds without drafts before luck is tried again; doubled after each failure.
constexpr std::uint32_t kPatience = 16;
constexpr std::uint32_t kMostPatience = 256;
// Drafts of such a trial.
constexpr std::uint32_t kTrial = 2;

}  // namespace

void DraftCounts::add(std::uint32_t drafts, std::uint32_t kept) {
  if (drafts > 0) ++rounds;
  for (std::size_t i = 0; i < drafts; ++i) ++drafted[std::min(i, kDepths - 1)];
  for (std::size_t i = 0; i < kept; ++i) ++accepted[std::min(i, kDepths - 1)];
}

void DraftCounts::add(const DraftCounts& other) {
  rounds += other.rounds;
  for (std::size_t i = 0; i < kDepths; ++i) {
    drafted[i] += other.drafted[i];
    accepted[i] += other.accepted[i];
  }
}

std::uint64_t DraftCounts::all_drafted() const {
  return std::accumulate(drafted.begin(), drafted.end(), std::uint64_t{0});
}
std::uint64_t DraftCounts::all_accepted() const {
  return std::accumulate(accepted.begin(), accepted.end(), std::uint64_t{0});
}

Speculation::Speculation(std::unique_ptr<Drafter> drafter, DraftOptions options)
    : drafter_(std::move(drafter)), options_(std::move(options)) {
  if (options_.most == 0u) active_ = false;
}

std::unique_ptr<StreamDrafts> Speculation::open(const Sampler& sampler) {
  if (!active_) return nullptr;
  auto drafts = std::make_unique<StreamDrafts>(sampler);
  drafts->state = drafter_->open();
  drafts->patience = kPatience;
  return drafts;
}

void Speculation::propose(std::span<SpeculationTurn> turns, std::uint32_t prompt_rows) {
  if (!active_) return;
  std::vector<std::size_t> able;
  std::vector<DepthCandidate> candidates;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const SpeculationTurn& turn = turns[i];
    if (turn.drafts == nullptr) continue;
    const DraftOutlook outlook = drafter_->outlook(*turn.drafts->state, turn.tokens);
    const std::uint32_t most = std::min({turn.room, outlook.most, options_.most.value_or(outlook.most)});
    if (most == 0) continue;
    able.push_back(i);
    candidates.push_back({&turn.drafts->luck[static_cast<std::size_t>(outlook.kind)], most, outlook.steps});
  }
  if (able.empty()) return;
  std::vector<std::uint32_t> depths;
  depths.reserve(candidates.size());
  for (const DepthCandidate& c : candidates) depths.push_back(c.most);
  if (options_.adaptive && options_.costs) {
    const RoundLoad load{prompt_rows, static_cast<std::uint32_t>(turns.size() - able.size())};
    depths = plan_depths(*options_.costs, load, candidates);
    try_again(turns, able, load, candidates, depths);
  }

  std::vector<DraftTurn> asked;
  std::vector<std::size_t> of;
  for (std::size_t i = 0; i < able.size(); ++i) {
    if (depths[i] == 0) continue;
    SpeculationTurn& turn = turns[able[i]];
    Sampler& sampler = turn.drafts->sampler;
    if (sampler.penalises()) sampler.follow(*turn.sampler);
    DraftTurn d;
    d.state = turn.drafts->state.get();
    d.cache = turn.cache;
    d.tokens = turn.tokens;
    d.most = depths[i];
    d.sampler = &sampler;
    d.end_tokens = turn.end_tokens;
    d.distributions = options_.sampling == SpecSampling::kRejection;
    asked.push_back(std::move(d));
    of.push_back(able[i]);
  }
  if (asked.empty()) return;
  drafter_->propose(asked);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (asked[i].broken) return give_up();
    SpeculationTurn& turn = turns[of[i]];
    turn.kind = asked[i].kind;
    turn.proposed = std::move(asked[i].drafts);
    turn.drawn_from = std::move(asked[i].drawn_from);
  }
}

// A few drafts for streams that have gone without for long: their luck may have come back. Not where no luck
// would make drafts pay, because the rounds are full.
void Speculation::try_again(std::span<SpeculationTurn> turns, std::span<const std::size_t> able,
                            const RoundLoad& load, std::vector<DepthCandidate> candidates,
                            std::span<std::uint32_t> depths) const {
  static const DraftLuck kPerfect = [] {
    DraftLuck luck;
    for (int i = 0; i < 1000; ++i) luck.record(DraftLuck::kDepths, DraftLuck::kDepths);
    return luck;
  }();
  if (std::find(depths.begin(), depths.end(), 0u) == depths.end()) return;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (depths[i] == 0) candidates[i].luck = &kPerfect;
  }
  const std::vector<std::uint32_t> hoped = plan_depths(*options_.costs, load, candidates);
  for (std::size_t i = 0; i < able.size(); ++i) {
    StreamDrafts& drafts = *turns[able[i]].drafts;
    if (depths[i] == 0 && hoped[i] > 0 && ++drafts.idle >= drafts.patience)
      depths[i] = std::min(kTrial, candidates[i].most);
  }
}

void Speculation::settle(StreamDrafts& drafts, DraftKind kind, std::uint32_t proposed, std::uint32_t kept) {
  if (proposed == 0) return;
  drafter_->accept(*drafts.state, kept);
  drafts.luck[static_cast<std::size_t>(kind)].record(proposed, kept);
  drafts.counts.add(proposed, kept);
  drafts.patience = kept > 0 || drafts.idle == 0 ? kPatience : std::min(drafts.patience * 2, kMostPatience);
  drafts.idle = 0;
}

void Speculation::give_up() {
  active_ = false;
  if (options_.warn) {
    options_.warn(drafter_->description() +
                  " gives values that are not numbers; going on without drafts (replies are not affected)");
  }
}

std::int32_t accept_or_resample(const Distribution& p, const Distribution& q, std::int32_t draft,
                                std::uint64_t seed, std::uint64_t position) {
  const double limit = uniform(seed, position, DrawPurpose::kAccept) * q.of(draft);
  if (limit < p.of(draft)) return draft;
  Distribution rest;
  double sum = 0;
  for (const auto& [token, chance] : p.tokens) {
    const double more = chance - q.of(token);
    if (more > 0) {
      rest.tokens.emplace_back(token, more);
      sum += more;
    }
  }
  if (rest.tokens.empty())
    return draw(p, seed, position, DrawPurpose::kResidual);  // p equals q but for rounding
  for (auto& [token, chance] : rest.tokens) chance /= sum;
  return draw(rest, seed, position, DrawPurpose::kResidual);
}

}  // namespace gem
