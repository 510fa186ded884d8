// The KV cache of one stream: per layer the keys (after norm and RoPE) and values (after norm) of past
// positions.
//
// A sliding layer keeps a ring of slots, position p in slot p mod slots; a full layer one slot a position.
// Rolling back is setting the length. A ring of window + S slots, S the largest span of rows written at once,
// never loses a live key: a span at positions n .. n+S-1 overwrites positions below n - window only, so a
// later query at n or above still finds the window's keys, whatever part of the span is rolled back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/geometry.h"

namespace gem {

// Sizes of one stream's cache, exact before anything is allocated.
struct KvPlan {
  struct Layer {
    std::uint32_t slots = 0;
    std::uint32_t width = 0;  // elements of one key row (= of one value row)
  };
  std::uint32_t context = 0;   // positions the stream may reach
  std::uint32_t max_span = 0;  // most rows of this stream in one round
  std::uint32_t window = 0;
  std::vector<Layer> layers;
  std::uint64_t elements = 0;  // keys and values of all layers

  // Error(kTooLarge) when a size overflows.
  static KvPlan make(const Geometry& geometry, std::uint32_t context, std::uint32_t max_span);
  std::uint64_t bytes(std::uint32_t element_bytes) const { return elements * element_bytes; }
};

class KvCache {
 public:
  explicit KvCache(KvPlan plan) : plan_(std::move(plan)) {}
  virtual ~KvCache() = default;
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvPlan& plan() const { return plan_; }
  std::uint32_t length() const { return length_; }  // positions held: 0 .. length - 1

  // After a span's rows were written at positions length() .. length() + rows - 1.
  void advance(std::uint32_t rows);

  // Whether every key that a row at position `length` or above needs is still there.
  bool can_roll_back_to(std::uint32_t length) const;
  // Forgets positions >= length. Error(kFailed) when can_roll_back_to says no.
  void roll_back_to(std::uint32_t length);

  // Keys or values of one position, in f32 (tests, state comparison): [width of the layer].
  virtual std::vector<float> read_key(std::uint32_t layer, std::uint32_t position) const = 0;
  virtual std::vector<float> read_value(std::uint32_t layer, std::uint32_t position) const = 0;

 private:
  KvPlan plan_;
  std::uint32_t length_ = 0;
  std::uint32_t written_ =
      0;  // one past the highest position ever written since it was below: what rings may hold
};

}  // namespace gem
