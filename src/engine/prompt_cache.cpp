#include "engine/prompt_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"

namespace gem {
PromptCache::PromptCache(std::uint64_t budget, std::unique_ptr<CacheStore> store)
    : budget_(budget), bytes_(std::make_shared<std::atomic<std::uint64_t>>(0)), store_(std::move(store)) {}

PromptCache::~PromptCache() = default;

PromptCache::Match PromptCache::find(const KvPlan& plan, std::span<const std::int32_t> prompt) const {
  Match best{states_.end(), 0};
  if (prompt.empty()) return best;
  for (auto state = states_.begin(); state != states_.end(); ++state) {
    if ((*state)->plan != plan) continue;
    const std::uint32_t length = common_tokens((*state)->tokens, prompt.first(prompt.size() - 1));
    if (length > best.length && reaches(plan.window, (*state)->length(), (*state)->first_ring, length))
      best = {state, length};
  }
  return best;
}

std::uint32_t PromptCache::longest(const KvPlan& plan, std::span<const std::int32_t> prompt) const {
  return find(plan, prompt).length;
}

std::uint32_t PromptCache::longest_on_disk(const KvPlan& plan, std::span<const std::int32_t> prompt,
                                           std::uint32_t have) const {
  if (store_ == nullptr || store_->plan() != plan) return 0;
  const auto match = store_->find(prompt, std::max(have, longest(plan, prompt)), budget_);
  return match ? match->length : 0;
}

std::shared_ptr<const CacheStore::Load> PromptCache::begin_fetch(const KvCache& like,
                                                                 std::span<const std::int32_t> prompt,
                                                                 std::uint32_t have) {
  if (store_ == nullptr || store_->plan() != like.plan()) return nullptr;
  take_loaded();
  have = std::max(have, longest(like.plan(), prompt));
  const auto match = store_->find(prompt, have, budget_);
  if (!match || !make_room(match->bytes)) return nullptr;
  try {
    auto load = store_->load(*match, like.row_bytes(KvCache::Part::kFixed),
                             like.row_bytes(KvCache::Part::kRings), bytes_);
    if (load != nullptr && std::find(loads_.begin(), loads_.end(), load) == loads_.end())
      loads_.push_back(load);
    return load;
  } catch (const std::bad_alloc&) {
  } catch (const Error&) {  // no memory for a page
  }
  return nullptr;
}

void PromptCache::take_loaded() {
  std::erase_if(loads_, [&](const auto& load) {
    if (!load->done()) return false;
    if (load->state() != nullptr) states_.push_back(load->state());
    return true;
  });
}

std::uint32_t PromptCache::restore(KvCache& cache, std::span<const std::int32_t> prompt) {
  const Match match = find(cache.plan(), prompt);
  if (match.length == 0) return 0;
  states_.splice(states_.end(), states_, match.state);
  const KeptPrompt& state = **match.state;
  constexpr std::uint32_t kPage = KeptPrompt::kPage;
  cache.begin_restore();
  for (std::uint32_t first = 0; first < match.length; first += kPage) {
    const std::uint32_t in_page = std::min(kPage, state.length() - first);
    cache.copy_in(KvCache::Part::kFixed, first, in_page, state.fixed[first / kPage]->bytes().data());
  }
  if (state.rings != nullptr) {
    cache.copy_in(KvCache::Part::kRings, state.first_ring, state.length() - state.first_ring,
                  state.rings->bytes().data());
  }
  cache.finish_restore(state.length(), state.first_ring);
  cache.roll_back_to(match.length);
  ++counts_.restored;
  counts_.restored_tokens += match.length;
  return match.length;
}

bool PromptCache::keep(const KvCache& cache, std::span<const std::int32_t> tokens) {
  if (tokens.size() != cache.length())
    fail(ErrorCode::kFailed, "a cache of {} positions with {} tokens", cache.length(), tokens.size());
  if (tokens.empty()) return false;
  const std::uint32_t length = cache.length();
  constexpr std::uint32_t kPage = KeptPrompt::kPage;
  const KeptPrompt* like = nullptr;
  std::uint32_t shared = 0;  // tokens in common with `like`
  for (auto state = states_.begin(); state != states_.end(); ++state) {
    if ((*state)->plan != cache.plan()) continue;
    const std::uint32_t alike = common_tokens((*state)->tokens, tokens);
    if (alike == length && (*state)->length() == length) {
      states_.splice(states_.end(), states_, state);
      return true;
    }
    if (alike > shared) {
      shared = alike;
      like = state->get();
    }
  }

  const std::size_t fixed_row = cache.row_bytes(KvCache::Part::kFixed);
  const std::size_t ring_row = cache.row_bytes(KvCache::Part::kRings);
  auto next = std::make_shared<KeptPrompt>();
  next->plan = cache.plan();
  next->tokens.assign(tokens.begin(), tokens.end());
  next->first_ring = cache.oldest_kept();
  if (like != nullptr) next->fixed.assign(like->fixed.begin(), like->fixed.begin() + shared / kPage);
  const std::uint32_t own = static_cast<std::uint32_t>(next->fixed.size()) * kPage;
  const std::uint64_t needed =
      std::uint64_t{length - own} * fixed_row + std::uint64_t{length - next->first_ring} * ring_row;
  const std::uint64_t evicted_before = counts_.evicted;
  if (!make_room(needed)) return false;
  try {
    for (std::uint32_t first = own; first < length; first += kPage) {
      const std::uint32_t count = std::min(kPage, length - first);
      auto page = std::make_shared<KeptRows>(count * fixed_row, bytes_);
      page->filled_by(cache.copy_out_later(KvCache::Part::kFixed, first, count, page->data(), page));
      next->fixed.push_back(std::move(page));
    }
    if (next->first_ring < length) {
      auto rings = std::make_shared<KeptRows>((length - next->first_ring) * ring_row, bytes_);
      rings->filled_by(cache.copy_out_later(KvCache::Part::kRings, next->first_ring,
                                            length - next->first_ring, rings->data(), rings));
      next->rings = std::move(rings);
    }
    states_.push_back(next);
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const Error&) {  // no memory for a page
    return false;
  }
  ++counts_.kept;
  if (store_ != nullptr && store_->plan() == next->plan)
    store_->put(std::move(next), counts_.evicted != evicted_before);
  return true;
}

// False when pages that somebody else needs are in the way: a state of this one's beginning, or one that is
// being written.
bool PromptCache::make_room(std::uint64_t bytes) {
  take_loaded();  // what was read for somebody who has gone can leave like any other
  const std::uint64_t writing = store_ != nullptr ? store_->writing() : 0;
  if (bytes > budget_ || writing > budget_ - bytes) return false;
  while (*bytes_ > budget_ - bytes && !states_.empty()) {
    if (store_ != nullptr) store_->withdraw(*states_.front());
    states_.pop_front();
    ++counts_.evicted;
  }
  return *bytes_ <= budget_ - bytes;
}

std::uint32_t PromptCache::interval(const KvCache& cache, std::uint32_t least) const {
  const std::uint64_t rings =
      std::uint64_t{cache.plan().window + KvPlan::kCheckpointMargin} * cache.row_bytes(KvCache::Part::kRings);
  const std::uint64_t states = budget_ / 2 / std::max<std::uint64_t>(rings, 1);
  return std::max(least,
                  static_cast<std::uint32_t>(cache.plan().context / std::max<std::uint64_t>(states, 1)));
}

void PromptCache::clear() {
  states_.clear();
}

PromptCache::Status PromptCache::status() const {
  Status status = counts_;
  status.budget = budget_;
  status.bytes = *bytes_;
  status.states = states_.size();
  if (store_ != nullptr) status.disk = store_->status();
  return status;
}

}  // namespace gem
