// The KV cache of one stream: per layer the keys (after norm and RoPE) and values (after norm) of past
// positions.
//
// A sliding layer keeps a ring of slots, position p in slot p mod slots; a full layer one slot a position.
// Rolling back is setting the length. A ring of window + S slots, S the largest span of rows written at once,
// never loses a live key: a span at positions n .. n+S-1 overwrites positions below n - window only, so a
// later query at n or above still finds the window's keys, whatever part of the span is rolled back.
//
// Rolling back further needs what the ring has overwritten since. A checkpoint remembers the length it was
// set at (a request's end) and copies each slot that is needed to come back there into an undo log, just
// before the slot is first overwritten. So a reply of any length can be undone, at the price of at most
// KvPlan::undo_positions() slots a sliding layer, and of nothing while the ring has not come round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <vector>

#include "backend/geometry.h"
#include "backend/kv_type.h"
#include "base/buffer.h"

namespace gem {

// Bytes of one stream's cache.
struct KvBytes {
  std::uint64_t slots = 0;  // keys and values of all slots
  // Of these, the slots that rings have above the window for the rows of a round. Envelopes that count rings
  // of exactly the window are `slots - spans`.
  std::uint64_t spans = 0;
  std::uint64_t undo = 0;  // most that a checkpoint's undo log holds, beside the slots
};

// Sizes of one stream's cache, exact before anything is allocated.
struct KvPlan {
  struct Layer {
    std::uint32_t slots = 0;
    std::uint32_t width = 0;  // elements of one key row (= of one value row)
    StorageType storage = StorageType::kF32;
    std::uint32_t spare = 0;  // of the slots of a sliding layer, those above the window
    bool operator==(const Layer&) const = default;
  };
  KvType type = KvType::kF32;
  std::uint32_t context = 0;   // positions the stream may reach
  std::uint32_t max_span = 0;  // most rows of this stream in one round
  std::uint32_t window = 0;
  std::vector<Layer> layers;
  std::uint64_t elements = 0;  // keys and values of all layers

  // A checkpoint can be left backwards by that many positions: the next request often ends the last one's
  // prompt a little earlier (the empty thought after the model's turn is not rendered again).
  static constexpr std::uint32_t kCheckpointMargin = 32;

  // Caches of equal plans can take each other's place and contents.
  bool operator==(const KvPlan&) const = default;

  // Error(kTooLarge) when a size overflows.
  static KvPlan make(const Geometry& geometry, std::uint32_t context, std::uint32_t max_span,
                     KvType type = KvType::kF32);

  // By what a backend takes for an element that is stored as a type; without one, the type's own bytes.
  using ElementBytes = std::function<std::uint32_t(StorageType)>;
  KvBytes bytes(const ElementBytes& element_bytes = {}) const;

  // Slots of the sliding layers' rings (all alike); 0 when every layer has a slot for every position.
  std::uint32_t ring() const;
  // Most positions that the undo log of a checkpoint holds.
  std::uint32_t undo_positions() const;
};

class KvCache {
 public:
  explicit KvCache(KvPlan plan);
  virtual ~KvCache() = default;
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvPlan& plan() const { return plan_; }
  std::uint32_t length() const { return length_; }  // positions held: 0 .. length - 1

  // Before a span's rows are written at positions length() .. length() + rows - 1: saves what a checkpoint
  // needs of the slots that they overwrite. When there is no memory for that the checkpoint is dropped.
  void prepare(std::uint32_t rows) noexcept;
  // After they were written.
  void advance(std::uint32_t rows);

  // Whether every key that a row at position `length` or above needs is still there, in the rings or the undo
  // log.
  bool can_roll_back_to(std::uint32_t length) const;
  // The greatest length up to `limit` that can be rolled back to.
  std::uint32_t longest_roll_back(std::uint32_t limit) const;
  // Forgets positions >= length. Error(kFailed) when can_roll_back_to says no. A checkpoint above `length`
  // is dropped.
  void roll_back_to(std::uint32_t length);

  // From now on length(), and what can be reached now of the kCheckpointMargin positions before it, can be
  // rolled back to, whatever is written after it. Replaces an earlier checkpoint.
  void set_checkpoint();
  void drop_checkpoint() { checkpoint_.reset(); }
  // The length of the checkpoint, while there is one.
  std::optional<std::uint32_t> checkpoint() const;

  // Copies of what is held, as the backend stores it (the prompt cache keeps them). Rows of rings are those
  // of the layers whose slots are fewer than the context, fixed rows those of all others; a row has keys and
  // values of all these layers.
  enum class Part : std::uint8_t { kRings, kFixed };
  std::size_t row_bytes(Part which) const;
  // The oldest position whose ring rows are needed to go on at length(), or the margin of a checkpoint
  // earlier where the ring still has that; length() without rings.
  std::uint32_t oldest_kept() const;
  // `count` rows from position `first` on, all of them held: layer after layer, position after position.
  virtual void copy_out(Part which, std::uint32_t first, std::uint32_t count, std::byte* out) const;
  // The same rows as they are now, at `out` when the result is ready, perhaps through another thread,
  // whatever becomes of the cache meanwhile. `owner` keeps `out`. A result without a state: they are there
  // already.
  virtual std::shared_future<void> copy_out_later(Part which, std::uint32_t first, std::uint32_t count,
                                                  std::byte* out, std::shared_ptr<const void> owner) const;
  // To become a cache of `length` positions, forget everything, copy the fixed rows of all positions and the
  // ring rows from `first_ring` on (oldest_kept() of the cache they are from) into their places, then finish.
  void begin_restore();
  virtual void copy_in(Part which, std::uint32_t first, std::uint32_t count, const std::byte* in);
  void finish_restore(std::uint32_t length, std::uint32_t first_ring);

  // Keys or values of one position, in f32 (tests, state comparison): [width of the layer].
  virtual std::vector<float> read_key(std::uint32_t layer, std::uint32_t position) const = 0;
  virtual std::vector<float> read_value(std::uint32_t layer, std::uint32_t position) const = 0;
  // Puts key and value of one position there, rounded as the backend's own are (tests: to start from
  // another's state). False: the backend has no such way, nothing was done.
  virtual bool write_row(std::uint32_t /*layer*/, std::uint32_t /*position*/, std::span<const float> /*key*/,
                         std::span<const float> /*value*/) {
    return false;
  }

 protected:
  // One slot's key and value rows as the backend stores them: `slot_bytes(layer)` bytes.
  virtual std::size_t slot_bytes(std::uint32_t layer) const = 0;
  virtual void save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const = 0;
  virtual void load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) = 0;
  // Memory of the undo log; a backend may want it pinned. Throws when there is none.
  virtual Buffer new_undo_block(std::size_t bytes) { return Buffer(bytes); }

  bool is(Part which, const KvPlan::Layer& layer) const {
    return (which == Part::kRings) == (layer.slots < plan_.context);
  }

 private:
  struct Checkpoint {
    std::uint32_t length = 0;
    std::uint32_t keep_from = 0;  // the oldest position that is needed to come back
    std::uint32_t saved_to = 0;   // keep_from .. saved_to - 1 are in the log
  };
  std::uint32_t oldest_held() const { return written_ > ring_ ? written_ - ring_ : 0; }
  std::uint32_t oldest_needed(std::uint32_t length) const;
  void save_range(std::uint32_t from, std::uint32_t to);
  std::byte* undo_entry(std::uint32_t index);

  KvPlan plan_;
  std::uint32_t ring_ = 0;
  std::uint32_t length_ = 0;
  // One past the highest position that a ring may hold: a slot holds position written_ - ring_ or above.
  std::uint32_t written_ = 0;
  std::optional<Checkpoint> checkpoint_;
  std::vector<Buffer> undo_;  // blocks of 64, 128, 256, … entries; kept from one checkpoint to the next
};

}  // namespace gem
