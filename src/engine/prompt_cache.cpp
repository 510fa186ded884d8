#include "engine/prompt_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"

namespace gem {
namespace {

std::uint32_t common(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const std::size_t most = std::min(a.size(), b.size());
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(most);
  return static_cast<std::uint32_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

}  // namespace

// Bytes that count themselves: into the sum while they live.
struct PromptCache::Page {
  Page(std::size_t size, std::shared_ptr<std::uint64_t> counter) : memory(size), sum(std::move(counter)) {
    *sum += memory.size();
  }
  ~Page() { *sum -= memory.size(); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  Buffer memory;
  std::shared_ptr<std::uint64_t> sum;
};

struct PromptCache::State {
  KvPlan plan;
  std::vector<std::int32_t> tokens;
  std::uint32_t first_ring = 0;  // rings holds the rows of positions first_ring .. tokens.size() - 1
  std::vector<std::shared_ptr<Page>> fixed;  // rows of kPage positions each, the last one perhaps of fewer
  std::shared_ptr<Page> rings;               // null when there are none

  std::uint32_t length() const { return static_cast<std::uint32_t>(tokens.size()); }
  // Whether a row at `at` or above finds all that it may see.
  bool reaches(std::uint32_t at) const {
    if (at > length()) return false;
    if (rings == nullptr && first_ring == length()) return true;  // every layer has a slot for every position
    return first_ring == 0 || (at + 1 > plan.window && at + 1 - plan.window >= first_ring);
  }
};

PromptCache::PromptCache(std::uint64_t budget)
    : budget_(budget), bytes_(std::make_shared<std::uint64_t>(0)) {}

PromptCache::~PromptCache() = default;

PromptCache::Match PromptCache::find(const KvPlan& plan, std::span<const std::int32_t> prompt) const {
  Match best{states_.end(), 0};
  if (prompt.empty()) return best;
  for (auto state = states_.begin(); state != states_.end(); ++state) {
    if ((*state)->plan != plan) continue;
    const std::uint32_t length = common((*state)->tokens, prompt.first(prompt.size() - 1));
    if (length > best.length && (*state)->reaches(length)) best = {state, length};
  }
  return best;
}

std::uint32_t PromptCache::longest(const KvPlan& plan, std::span<const std::int32_t> prompt) const {
  return find(plan, prompt).length;
}

std::uint32_t PromptCache::restore(KvCache& cache, std::span<const std::int32_t> prompt) {
  const Match match = find(cache.plan(), prompt);
  if (match.length == 0) return 0;
  states_.splice(states_.end(), states_, match.state);
  const State& state = **match.state;
  cache.begin_restore();
  for (std::uint32_t first = 0; first < match.length; first += kPage) {
    const std::uint32_t in_page = std::min(kPage, state.length() - first);
    cache.copy_in(KvCache::Part::kFixed, first, in_page, state.fixed[first / kPage]->memory.as<std::byte>());
  }
  if (state.rings != nullptr) {
    cache.copy_in(KvCache::Part::kRings, state.first_ring, state.length() - state.first_ring,
                  state.rings->memory.as<std::byte>());
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
  const State* like = nullptr;
  std::uint32_t shared = 0;  // tokens in common with `like`
  for (auto state = states_.begin(); state != states_.end(); ++state) {
    if ((*state)->plan != cache.plan()) continue;
    const std::uint32_t alike = common((*state)->tokens, tokens);
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
  auto next = std::make_unique<State>();
  next->plan = cache.plan();
  next->tokens.assign(tokens.begin(), tokens.end());
  next->first_ring = cache.oldest_kept();
  if (like != nullptr) next->fixed.assign(like->fixed.begin(), like->fixed.begin() + shared / kPage);
  const std::uint32_t own = static_cast<std::uint32_t>(next->fixed.size()) * kPage;
  const std::uint64_t needed =
      std::uint64_t{length - own} * fixed_row + std::uint64_t{length - next->first_ring} * ring_row;
  if (needed > budget_) return false;
  evict_to(budget_ - needed);
  if (*bytes_ + needed > budget_) return false;  // the shared pages themselves are in the way
  try {
    for (std::uint32_t first = own; first < length; first += kPage) {
      const std::uint32_t count = std::min(kPage, length - first);
      next->fixed.push_back(std::make_shared<Page>(count * fixed_row, bytes_));
      cache.copy_out(KvCache::Part::kFixed, first, count, next->fixed.back()->memory.as<std::byte>());
    }
    if (next->first_ring < length) {
      next->rings = std::make_shared<Page>((length - next->first_ring) * ring_row, bytes_);
      cache.copy_out(KvCache::Part::kRings, next->first_ring, length - next->first_ring,
                     next->rings->memory.as<std::byte>());
    }
    states_.push_back(std::move(next));
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const Error&) {  // no memory for a page
    return false;
  }
  ++counts_.kept;
  return true;
}

void PromptCache::evict_to(std::uint64_t bytes) {
  while (*bytes_ > bytes && !states_.empty()) {
    states_.pop_front();
    ++counts_.evicted;
  }
}

std::uint32_t PromptCache::interval(const KvCache& cache) const {
  constexpr std::uint32_t kLeast = 2048;
  const std::uint64_t rings =
      std::uint64_t{cache.plan().window + KvPlan::kCheckpointMargin} * cache.row_bytes(KvCache::Part::kRings);
  const std::uint64_t states = budget_ / 2 / std::max<std::uint64_t>(rings, 1);
  return std::max(kLeast,
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
  return status;
}

}  // namespace gem
