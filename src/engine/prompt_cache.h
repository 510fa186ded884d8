// Kept states of prompts, for later requests that begin alike: other conversations than those in the slots,
// branches of one, a turn that was edited.
//
// A state is a copy of a stream's cache at one length: the rings' live window, and the fixed layers' rows in
// pages of 256 positions, which states with a common beginning share. Bits are copied as the backend stores
// them, and prompt rows do not depend on where their chunks began (law 2), so a resumed prompt continues bit
// for bit as a fresh one. States leave in the order of their last use when the budget is full.
//
// A store on disk (engine/cache_store.h) gets every state, and gives back what memory has no more.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "backend/kv_cache.h"
#include "engine/cache_store.h"
#include "engine/kept_prompt.h"

namespace gem {

class PromptCache {
 public:
  // Holds states of at most `budget` bytes in all; a state that alone is larger is not kept.
  explicit PromptCache(std::uint64_t budget, std::unique_ptr<CacheStore> store = nullptr);
  ~PromptCache();
  PromptCache(const PromptCache&) = delete;
  PromptCache& operator=(const PromptCache&) = delete;

  // How much of `prompt` the best state in memory gives, at least one token being left. Nothing is moved.
  std::uint32_t longest(const KvPlan& plan, std::span<const std::int32_t> prompt) const;
  // The same for a state on disk that would be fetched for somebody who has `have` tokens; 0: none.
  std::uint32_t longest_on_disk(const KvPlan& plan, std::span<const std::int32_t> prompt,
                                std::uint32_t have) const;
  // Begins to bring a state on disk into memory that gives more of `prompt` than `have` tokens and than any
  // state there, if reading it is worth that (CacheStore::kLeastGain). Null: there is none (any more). When
  // it is done, or its file has proved damaged, ask again: there may be a next one.
  std::shared_ptr<const CacheStore::Load> begin_fetch(const KvCache& like,
                                                      std::span<const std::int32_t> prompt,
                                                      std::uint32_t have);

  // Fills `cache` with that state (whatever was in it is lost) and counts it as used. The length that it now
  // has, or 0 when there is none: the cache is untouched then.
  std::uint32_t restore(KvCache& cache, std::span<const std::int32_t> prompt);

  // Keeps the state of `cache`, whose positions hold `tokens`. A state of the same tokens is only counted as
  // used. False when it does not fit the budget or the memory.
  bool keep(const KvCache& cache, std::span<const std::int32_t> tokens);
  void clear();  // of memory

  // Null: there is none.
  CacheStore* store() const { return store_.get(); }

  // A long prompt is also kept on its way, every so many positions: as often as states of a full context may
  // take half of the budget, and not below `least`.
  std::uint32_t interval(const KvCache& cache, std::uint32_t least) const;

  struct Status {
    std::uint64_t budget = 0, bytes = 0;
    std::uint64_t states = 0;
    std::uint64_t kept = 0, restored = 0, evicted = 0;  // so far
    std::uint64_t restored_tokens = 0;
    CacheStore::Status disk;  // budget 0: there is none
  };
  Status status() const;

 private:
  // The least recently used one first.
  using States = std::list<std::shared_ptr<const KeptPrompt>>;

  struct Match {
    States::const_iterator state;
    std::uint32_t length = 0;
  };
  Match find(const KvPlan& plan, std::span<const std::int32_t> prompt) const;
  bool make_room(std::uint64_t bytes);
  void take_loaded();

  std::uint64_t budget_;
  KeptRows::Sum bytes_;  // of all rows; pages outlive states
  States states_;
  std::vector<std::shared_ptr<const CacheStore::Load>> loads_;  // their states are not in states_ yet
  Status counts_;
  std::unique_ptr<CacheStore> store_;
};

}  // namespace gem
