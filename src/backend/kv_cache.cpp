#include "backend/kv_cache.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"

namespace gem {
namespace {

constexpr std::uint64_t kLargestElement = sizeof(double);  // the oracle's

}  // namespace

KvPlan KvPlan::make(const Geometry& geometry, std::uint32_t context, std::uint32_t max_span, KvType type) {
  KvPlan plan;
  plan.type = type;
  plan.context = context;
  plan.max_span = max_span;
  plan.window = geometry.window;
  for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
    const LayerKind kind = geometry.layers[i].kind;
    const bool sliding = kind == LayerKind::kSliding;
    const std::uint64_t ring = std::uint64_t{geometry.window} + max_span;
    const auto slots = static_cast<std::uint32_t>(sliding ? std::min<std::uint64_t>(context, ring) : context);
    const std::uint32_t width = geometry.kv_width(i);
    const std::uint32_t spare = sliding ? slots - std::min(slots, geometry.window) : 0;
    plan.layers.push_back({slots, width, kv_storage(type, kind), spare});
    std::uint64_t elements = 0;
    if (__builtin_mul_overflow(std::uint64_t{slots} * 2, std::uint64_t{width}, &elements) ||
        __builtin_add_overflow(plan.elements, elements, &plan.elements) ||
        plan.elements > std::numeric_limits<std::uint64_t>::max() / kLargestElement) {
      fail(ErrorCode::kTooLarge, "a context of {} positions needs more memory than can be addressed",
           context);
    }
  }
  return plan;
}

std::uint32_t KvPlan::ring() const {
  for (const Layer& layer : layers) {
    if (layer.slots < context) return layer.slots;
  }
  return 0;
}

std::uint32_t KvPlan::undo_positions() const {
  const std::uint32_t slots = ring();
  if (slots == 0) return 0;
  // A row at the lowest length to come back to sees window - 1 earlier positions; no more can be lost than
  // are written behind a full ring.
  return std::min(window - 1 + kCheckpointMargin, context - slots);
}

KvBytes KvPlan::bytes(const ElementBytes& element_bytes) const {
  KvBytes sum;
  for (const Layer& layer : layers) {
    const std::uint32_t element =
        element_bytes ? element_bytes(layer.storage) : storage_info(layer.storage).block_bytes;
    const std::uint64_t slot = std::uint64_t{layer.width} * 2 * element;
    sum.slots += layer.slots * slot;
    sum.spans += layer.spare * slot;
    if (layer.slots < context) sum.undo += undo_positions() * slot;
  }
  return sum;
}

KvCache::KvCache(KvPlan plan) : plan_(std::move(plan)), ring_(plan_.ring()) {
  for (const KvPlan::Layer& layer : plan_.layers) {
    if (layer.slots < plan_.context && layer.slots != ring_)
      fail(ErrorCode::kFailed, "rings of {} and {} slots in one cache", ring_, layer.slots);
  }
}

// A row at position `length` sees itself and window - 1 positions before it.
std::uint32_t KvCache::oldest_needed(std::uint32_t length) const {
  return length + 1 > plan_.window ? length + 1 - plan_.window : 0;
}

// The writing of a position p >= written_ destroys position p - ring_; below written_ the slot held p itself,
// from before a roll-back.
void KvCache::prepare(std::uint32_t rows) noexcept {
  const std::uint32_t end = length_ + rows;
  if (end <= written_) return;
  if (checkpoint_ && ring_ != 0 && end > ring_) {
    const std::uint32_t from = std::max(oldest_held(), checkpoint_->saved_to);
    const std::uint32_t to = std::min(end - ring_, checkpoint_->length);
    try {
      if (from < to) save_range(from, to);
    } catch (...) {  // no memory: the reply goes on, its prompt's state cannot be resumed
      drop_checkpoint();
      undo_.clear();
    }
  }
  written_ = end;  // also when the round fails: some of the rows may have been written
}

void KvCache::save_range(std::uint32_t from, std::uint32_t to) {
  for (std::uint32_t position = from; position < to; ++position) {
    copy_out(Part::kRings, position, 1, undo_entry(position - checkpoint_->keep_from));
    checkpoint_->saved_to = position + 1;
  }
}

// Entry `index` of the log: the slots of one position, layer by layer. Block k holds 64 * 2^k entries, so
// that short replies cost little and long ones few allocations.
std::byte* KvCache::undo_entry(std::uint32_t index) {
  constexpr std::uint32_t kFirst = 64;
  const std::size_t stride = row_bytes(Part::kRings);
  const auto block = static_cast<std::uint32_t>(std::bit_width(index / kFirst + 1)) - 1;
  const std::uint32_t before = kFirst * ((1u << block) - 1);  // entries of the blocks before
  while (undo_.size() <= block) {
    const std::size_t start = std::size_t{kFirst} * ((std::size_t{1} << undo_.size()) - 1);
    const std::size_t entries =
        std::min<std::size_t>(std::size_t{kFirst} << undo_.size(), plan_.undo_positions() - start);
    undo_.push_back(new_undo_block(entries * stride));
  }
  return undo_[block].as<std::byte>() + (index - before) * stride;
}

void KvCache::advance(std::uint32_t rows) {
  if (rows > plan_.max_span || rows > plan_.context - length_) {
    fail(ErrorCode::kFailed, "{} rows at position {} do not fit a cache of {} positions and spans of {}",
         rows, length_, plan_.context, plan_.max_span);
  }
  length_ += rows;
  written_ = std::max(written_, length_);
}

bool KvCache::can_roll_back_to(std::uint32_t length) const {
  if (length > length_) return false;
  if (length == 0 || ring_ == 0) return true;
  const std::uint32_t needed = oldest_needed(length);
  if (oldest_held() <= needed) return true;
  return checkpoint_ && needed >= checkpoint_->keep_from &&
         std::min(length, oldest_held()) <= checkpoint_->saved_to;
}

std::uint32_t KvCache::longest_roll_back(std::uint32_t limit) const {
  limit = std::min(limit, length_);
  if (can_roll_back_to(limit)) return limit;
  // The positions right after a checkpoint are lost when the ring has come round; the checkpoint is not.
  if (checkpoint_ && checkpoint_->length < limit && can_roll_back_to(checkpoint_->length))
    return checkpoint_->length;
  return 0;
}

void KvCache::roll_back_to(std::uint32_t length) {
  if (!can_roll_back_to(length)) {
    fail(ErrorCode::kFailed, "the cache at {} positions cannot be rolled back to {}", length_, length);
  }
  if (length == 0) {
    written_ = 0;
    drop_checkpoint();
  } else if (ring_ != 0 && oldest_held() > oldest_needed(length)) {
    // As much of the log as the ring can hold below `length` goes back into its slots.
    const std::uint32_t from = std::max(checkpoint_->keep_from, length > ring_ ? length - ring_ : 0);
    for (std::uint32_t position = from; position < std::min(length, oldest_held()); ++position) {
      copy_in(Part::kRings, position, 1, undo_entry(position - checkpoint_->keep_from));
    }
    written_ = from + ring_;
    checkpoint_->saved_to = from;
  }
  length_ = length;
  if (checkpoint_ && checkpoint_->length > length) drop_checkpoint();
}

void KvCache::set_checkpoint() {
  // Lengths from here up can be reached now.
  const std::uint32_t lowest = oldest_held() == 0 ? 0 : oldest_held() + plan_.window - 1;
  const std::uint32_t before = length_ > KvPlan::kCheckpointMargin ? length_ - KvPlan::kCheckpointMargin : 0;
  const std::uint32_t keep_from = oldest_needed(std::max(lowest, before));
  checkpoint_ = Checkpoint{length_, keep_from, keep_from};
}

std::optional<std::uint32_t> KvCache::checkpoint() const {
  if (!checkpoint_) return std::nullopt;
  return checkpoint_->length;
}

std::size_t KvCache::row_bytes(Part which) const {
  std::size_t sum = 0;
  for (std::uint32_t layer = 0; layer < plan_.layers.size(); ++layer) {
    if (is(which, plan_.layers[layer])) sum += slot_bytes(layer);
  }
  return sum;
}

std::uint32_t KvCache::oldest_kept() const {
  if (ring_ == 0) return length_;
  const std::uint32_t before = length_ > KvPlan::kCheckpointMargin ? length_ - KvPlan::kCheckpointMargin : 0;
  return std::min(length_, std::max(oldest_held(), oldest_needed(before)));
}

void KvCache::copy_out(Part which, std::uint32_t first, std::uint32_t count, std::byte* out) const {
  for (std::uint32_t layer = 0; layer < plan_.layers.size(); ++layer) {
    if (!is(which, plan_.layers[layer])) continue;
    for (std::uint32_t i = 0; i < count; ++i, out += slot_bytes(layer))
      save_slot(layer, (first + i) % plan_.layers[layer].slots, out);
  }
}

std::shared_future<void> KvCache::copy_out_later(Part which, std::uint32_t first, std::uint32_t count,
                                                 std::byte* out, std::shared_ptr<const void>) const {
  copy_out(which, first, count, out);
  return {};
}

void KvCache::copy_in(Part which, std::uint32_t first, std::uint32_t count, const std::byte* in) {
  for (std::uint32_t layer = 0; layer < plan_.layers.size(); ++layer) {
    if (!is(which, plan_.layers[layer])) continue;
    for (std::uint32_t i = 0; i < count; ++i, in += slot_bytes(layer))
      load_slot(layer, (first + i) % plan_.layers[layer].slots, in);
  }
}

void KvCache::begin_restore() {
  drop_checkpoint();
  length_ = 0;
  written_ = 0;
}

void KvCache::finish_restore(std::uint32_t length, std::uint32_t first_ring) {
  if (length > plan_.context || first_ring > length || length - first_ring > ring_)
    fail(ErrorCode::kFailed, "{} positions with rings from {} on do not fit this cache", length, first_ring);
  length_ = length;
  // Slots below first_ring are not there: as if as much had been written.
  written_ = ring_ != 0 && first_ring > 0 ? first_ring + ring_ : length;
}

}  // namespace gem
