#include "backend/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "backend/cpu/cpu_cache.h"
#include "base/error.h"

namespace gem {
namespace {

// Two layers, one of either kind, one KV head of width 2.
Geometry small(std::uint32_t window) {
  Geometry g;
  g.window = window;
  g.heads = 1;
  g.layers = {{LayerKind::kSliding, 2, 1, false}, {LayerKind::kFull, 2, 1, true}};
  return g;
}

TEST(KvPlan, RingsHoldTheWindowAndOneSpan) {
  const KvPlan plan = KvPlan::make(small(16), 1000, 8);
  EXPECT_EQ(plan.layers[0].slots, 24u);
  EXPECT_EQ(plan.layers[1].slots, 1000u);
  EXPECT_EQ(plan.elements, 2u * 2 * (24 + 1000));
  EXPECT_EQ(plan.bytes().slots, 4 * plan.elements);
  EXPECT_EQ(plan.bytes().spans, 4u * 2 * 2 * 8);
}

TEST(KvPlan, AShortContextNeedsNoMoreSlotsThanPositions) {
  const KvPlan plan = KvPlan::make(small(16), 10, 8);
  EXPECT_EQ(plan.layers[0].slots, 10u);
}

TEST(KvPlan, SizesThatOverflowAreRefused) {
  Geometry g = small(16);
  for (LayerGeometry& l : g.layers) l.kv_heads = l.head_dim = 0xffff;
  g.layers.resize(100000, g.layers[1]);
  EXPECT_THROW(KvPlan::make(g, 0xffffffff, 8), Error);
}

// A ring is written slot by slot as the positions pass; a rolled-back cache must still hold every key of the
// window.
TEST(KvCache, RollBackIsAllowedExactlyWhereTheWindowIsAlive) {
  constexpr std::uint32_t kWindow = 16;
  constexpr std::uint32_t kSpan = 8;
  const KvPlan plan = KvPlan::make(small(kWindow), 200, kSpan);
  for (std::uint32_t length = 1; length <= 100; ++length) {
    std::vector<std::uint32_t> slot(plan.layers[0].slots, ~0u);  // which position each slot holds
    cpu::CpuCache cache(plan);
    for (std::uint32_t p = 0; p < length; ++p) {
      slot[p % slot.size()] = p;
      cache.advance(1);
    }
    for (std::uint32_t back = 0; back <= length; ++back) {
      bool alive = true;
      for (std::uint32_t p = back + 1 > kWindow ? back + 1 - kWindow : 0; p < back; ++p)
        alive = alive && slot[p % slot.size()] == p;
      EXPECT_EQ(cache.can_roll_back_to(back), alive) << length << " -> " << back;
      if (length - back <= kSpan) {
        EXPECT_TRUE(alive) << "a span can always be rolled back";
      }
    }
    EXPECT_FALSE(cache.can_roll_back_to(length + 1));
  }
}

TEST(KvCache, WhatWasOverwrittenStaysLostAfterARollBack) {
  const KvPlan plan = KvPlan::make(small(16), 200, 8);
  cpu::CpuCache cache(plan);
  for (int i = 0; i < 100; ++i) cache.advance(1);
  cache.roll_back_to(91);  // the ring's 24 slots hold 76 .. 99; a row at 91 sees 76 .. 91
  EXPECT_FALSE(cache.can_roll_back_to(90));
  EXPECT_THROW(cache.roll_back_to(90), Error);
  cache.advance(1);
  EXPECT_FALSE(cache.can_roll_back_to(90));
  cache.roll_back_to(0);
  EXPECT_EQ(cache.length(), 0u);
}

TEST(KvCache, RowsBeyondTheContextOrTheSpanAreRefused) {
  cpu::CpuCache cache(KvPlan::make(small(16), 10, 8));
  EXPECT_THROW(cache.advance(9), Error);
  cache.advance(8);
  EXPECT_THROW(cache.advance(3), Error);
  cache.advance(2);
  EXPECT_EQ(cache.length(), 10u);
}

// A cache whose slots hold the position that was written last; the full layer is not looked at.
class PositionCache final : public KvCache {
 public:
  explicit PositionCache(KvPlan plan) : KvCache(std::move(plan)), slots_(this->plan().layers[0].slots, ~0u) {}

  // Writes positions as a round would: in spans.
  void write(std::uint32_t to, std::uint32_t span) {
    while (length() < to) {
      const std::uint32_t rows = std::min(span, to - length());
      prepare(rows);
      for (std::uint32_t i = 0; i < rows; ++i) {
        const std::uint32_t position = length() + i;
        slots_[position % slots_.size()] = position + (generation_ << 16);
      }
      advance(rows);
    }
  }
  // What is written from here on is told apart from what was written before at the same positions.
  void next_generation() { ++generation_; }
  // The generation of each position that a row at length() sees.
  bool window_holds(const std::vector<std::uint32_t>& generations) const {
    for (std::uint32_t p = length() + 1 > plan().window ? length() + 1 - plan().window : 0; p < length();
         ++p) {
      if (slots_[p % slots_.size()] != p + (generations[p] << 16)) return false;
    }
    return true;
  }
  std::vector<float> read_key(std::uint32_t, std::uint32_t) const override { return {}; }
  std::vector<float> read_value(std::uint32_t, std::uint32_t) const override { return {}; }

  std::uint32_t blocks = 0;
  std::uint32_t blocks_allowed = ~0u;

 protected:
  std::size_t slot_bytes(std::uint32_t) const override { return sizeof(std::uint32_t); }
  void save_slot(std::uint32_t, std::uint32_t slot, std::byte* out) const override {
    std::memcpy(out, &slots_[slot], sizeof(std::uint32_t));
  }
  void load_slot(std::uint32_t, std::uint32_t slot, const std::byte* in) override {
    std::memcpy(&slots_[slot], in, sizeof(std::uint32_t));
  }
  Buffer new_undo_block(std::size_t bytes) override {
    if (blocks == blocks_allowed) fail(ErrorCode::kTooLarge, "no more memory");
    ++blocks;
    return Buffer(bytes);
  }

 private:
  std::vector<std::uint32_t> slots_;
  std::uint32_t generation_ = 0;
};

constexpr std::uint32_t kWindow = 150;  // more than two blocks of the undo log
constexpr std::uint32_t kSpan = 40;

// Whatever is written after a checkpoint, its length and the margin before it can be returned to, and the
// window there is what it was.
TEST(KvCheckpoint, AnyReplyCanBeUndone) {
  const KvPlan plan = KvPlan::make(small(kWindow), 2000, kSpan);
  for (const std::uint32_t prompt : {1u, 30u, 149u, 150u, 151u, 190u, 191u, 500u}) {
    for (const std::uint32_t reply : {1u, 39u, 40u, 41u, 100u, 151u, 190u, 191u, 400u, 1000u}) {
      for (const std::uint32_t span : {1u, 7u, 40u}) {
        PositionCache cache(plan);
        cache.write(prompt, 40);
        cache.set_checkpoint();
        EXPECT_EQ(cache.checkpoint(), prompt);
        cache.next_generation();
        cache.write(prompt + reply, span);
        for (std::uint32_t back = 0; back <= std::min(prompt, KvPlan::kCheckpointMargin); back += 8)
          EXPECT_TRUE(cache.can_roll_back_to(prompt - back)) << prompt << " " << reply << " " << back;
        const std::uint32_t back = std::min(prompt - 1, reply % 33);
        cache.roll_back_to(prompt - back);
        EXPECT_EQ(cache.length(), prompt - back);
        EXPECT_TRUE(cache.window_holds(std::vector<std::uint32_t>(prompt, 0)))
            << prompt << " " << reply << " " << span << " " << back;
      }
    }
  }
}

// Random lives: prompts, replies, roll-backs to whatever is said to be possible, against a model that
// remembers every position's generation.
TEST(KvCheckpoint, RandomLivesKeepTheWindow) {
  const KvPlan plan = KvPlan::make(small(kWindow), 3000, kSpan);
  std::size_t restored = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    PositionCache cache(plan);
    std::vector<std::uint32_t> generations;
    std::uint32_t generation = 0;
    for (int step = 0; step < 60; ++step) {
      const std::uint32_t rows = std::min(3000 - cache.length(), below(below(3) == 0 ? 600 : 60));
      cache.write(cache.length() + rows, 1 + below(kSpan));
      generations.resize(cache.length(), generation);
      ASSERT_TRUE(cache.window_holds(generations)) << seed << " " << step;
      if (below(2) == 0) cache.set_checkpoint();
      if (below(2) == 0 && cache.length() < 3000) continue;
      // Anywhere, or about the checkpoint.
      const std::uint32_t near = cache.checkpoint().value_or(cache.length());
      const std::uint32_t wish =
          below(2) == 0 ? below(cache.length() + 1) : near + below(60) - std::min(near, 30u);
      const std::uint32_t to = cache.longest_roll_back(wish);
      ASSERT_LE(to, wish);
      if (to > 0 && to + kWindow + kSpan < cache.length()) ++restored;
      cache.roll_back_to(to);
      generations.resize(to);
      ASSERT_TRUE(cache.window_holds(generations)) << seed << " " << step << " at " << to;
      ++generation;
      cache.next_generation();
    }
  }
  EXPECT_GT(restored, 100u);
}

TEST(KvCheckpoint, TheLogIsNoLargerThanPlannedAndKeptForTheNext) {
  const KvPlan plan = KvPlan::make(small(kWindow), 2000, kSpan);
  EXPECT_EQ(plan.undo_positions(), kWindow - 1 + KvPlan::kCheckpointMargin);
  EXPECT_EQ(plan.bytes().undo, std::uint64_t{plan.undo_positions()} * 4 * 2 * 2);
  EXPECT_EQ(KvPlan::make(small(kWindow), 190, kSpan).undo_positions(), 0u);  // no ring
  PositionCache cache(plan);
  for (int turn = 0; turn < 5; ++turn) {
    cache.write(cache.length() + 50, kSpan);
    const std::uint32_t end = cache.length();
    cache.set_checkpoint();
    cache.write(end + 1000, 1);
    cache.roll_back_to(end);
  }
  EXPECT_EQ(cache.blocks, 2u);  // 64 + 117 of the 181 positions
}

TEST(KvCheckpoint, WithoutMemoryOnlyTheWayBackIsLost) {
  const KvPlan plan = KvPlan::make(small(kWindow), 2000, kSpan);
  PositionCache cache(plan);
  cache.blocks_allowed = 1;
  cache.write(500, kSpan);
  cache.set_checkpoint();
  cache.write(550, 1);
  EXPECT_TRUE(cache.can_roll_back_to(500));
  cache.write(1500, 1);
  EXPECT_EQ(cache.length(), 1500u);
  EXPECT_FALSE(cache.checkpoint());
  EXPECT_FALSE(cache.can_roll_back_to(500));
  EXPECT_EQ(cache.longest_roll_back(500), 0u);
}

// A round that fails may have written some of its rows.
TEST(KvCheckpoint, ARoundThatFailsIsCountedAsWritten) {
  const KvPlan plan = KvPlan::make(small(16), 200, 8);
  PositionCache cache(plan);
  cache.write(100, 8);
  EXPECT_TRUE(cache.can_roll_back_to(92));
  cache.prepare(8);
  EXPECT_FALSE(cache.can_roll_back_to(92));
  EXPECT_TRUE(cache.can_roll_back_to(100));
}

}  // namespace
}  // namespace gem
