#include "backend/kv_cache.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(plan.bytes(4), plan.elements * 4);
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

}  // namespace
}  // namespace gem
