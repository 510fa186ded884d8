// The state of a prompt that was read: a copy of a cache's rows at one length. Never changed once it is made,
// so that the prompt cache and the thread that writes it to disk (engine/cache_store.h) share it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/kv_cache.h"
#include "base/buffer.h"

namespace gem {

// Rows of keys and values, which count themselves into a sum while they live. They may still be on their way
// from a device: whoever wants them waits.
class KeptRows {
 public:
  using Sum = std::shared_ptr<std::atomic<std::uint64_t>>;
  KeptRows(std::size_t bytes, Sum sum) : memory_(bytes), sum_(std::move(sum)) {
    memory_.prefer_huge_pages();
    *sum_ += memory_.size();
  }
  ~KeptRows() { *sum_ -= memory_.size(); }
  KeptRows(const KeptRows&) = delete;
  KeptRows& operator=(const KeptRows&) = delete;

  std::byte* data() { return memory_.as<std::byte>(); }
  // Before anybody else knows these rows.
  void filled_by(std::shared_future<void> arrival) { arrival_ = std::move(arrival); }
  std::size_t size() const { return memory_.size(); }
  // Error when they could not be fetched.
  std::span<const std::byte> bytes() const {
    if (arrival_.valid()) arrival_.get();
    return {memory_.as<std::byte>(), memory_.size()};
  }

 private:
  Buffer memory_;
  Sum sum_;
  std::shared_future<void> arrival_;
};

struct KeptPrompt {
  static constexpr std::uint32_t kPage = 256;  // positions

  KvPlan plan;
  std::vector<std::int32_t> tokens;
  std::uint32_t first_ring = 0;  // rings holds the rows of positions first_ring .. tokens.size() - 1
  // Rows of kPage positions each, the last one perhaps of fewer; states with a common beginning share pages.
  std::vector<std::shared_ptr<const KeptRows>> fixed;
  std::shared_ptr<const KeptRows> rings;  // null when there are none

  std::uint32_t length() const { return static_cast<std::uint32_t>(tokens.size()); }
};

// Whether a state of `length` positions, with the rings' rows from `first_ring` on, can be left at `at`: a
// row there finds all that it may see.
inline bool reaches(std::uint32_t window, std::uint32_t length, std::uint32_t first_ring, std::uint32_t at) {
  if (at > length) return false;
  if (first_ring == 0 || first_ring == length) return true;  // all, or no layer that forgets
  return at + 1 > window && at + 1 - window >= first_ring;
}

// Tokens that both begin with.
inline std::uint32_t common_tokens(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const std::size_t most = std::min(a.size(), b.size());
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(most);
  return static_cast<std::uint32_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

}  // namespace gem
