#include "backend/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace gem {

KvPlan KvPlan::make(const Geometry& geometry, std::uint32_t context, std::uint32_t max_span) {
  KvPlan plan;
  plan.context = context;
  plan.max_span = max_span;
  plan.window = geometry.window;
  for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
    const bool sliding = geometry.layers[i].kind == LayerKind::kSliding;
    const std::uint64_t ring = std::uint64_t{geometry.window} + max_span;
    const auto slots = static_cast<std::uint32_t>(sliding ? std::min<std::uint64_t>(context, ring) : context);
    const std::uint32_t width = geometry.kv_width(i);
    plan.layers.push_back({slots, width});
    std::uint64_t elements = 0;
    if (__builtin_mul_overflow(std::uint64_t{slots} * 2, std::uint64_t{width}, &elements) ||
        __builtin_add_overflow(plan.elements, elements, &plan.elements)) {
      fail(ErrorCode::kTooLarge, "a context of {} positions needs more memory than can be addressed",
           context);
    }
  }
  return plan;
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
  if (length == 0) return true;
  for (const KvPlan::Layer& layer : plan_.layers) {
    if (layer.slots >= plan_.context) continue;  // one slot a position: nothing is ever overwritten
    // The next row, at `length`, sees positions from length - window + 1; the ring holds those from written -
    // slots.
    const std::uint32_t oldest = written_ > layer.slots ? written_ - layer.slots : 0;
    const std::uint32_t needed = length + 1 > plan_.window ? length + 1 - plan_.window : 0;
    if (oldest > needed) return false;
  }
  return true;
}

void KvCache::roll_back_to(std::uint32_t length) {
  if (!can_roll_back_to(length)) {
    fail(ErrorCode::kFailed, "the cache at {} positions cannot be rolled back to {}", length_, length);
  }
  length_ = length;
  if (length == 0) written_ = 0;
}

}  // namespace gem
