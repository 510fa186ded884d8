// The prompt cache: whatever is kept, shared, evicted and restored, replies are those of fresh runs bit for
// bit.
#include "engine/prompt_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/collector.h"
#include "engine/engine.h"
#include "engine/kept_prompts.h"

namespace gem {
namespace {

using testing::Collector;
using testing::filled;
using testing::Tokens;

using PromptCacheTest = testing::KeptPrompts;

// Turns appended, last turns edited, branches taken anywhere, other conversations between, over one slot.
TEST_P(PromptCacheTest, AnyConversationContinuesAsAFreshOneWould) {
  PromptCache kept(64 << 20);
  Engine with = engine(&kept);
  KeptState slot;
  std::mt19937 random(3);
  std::vector<Tokens> said = {{}};  // conversations so far, replies included
  std::vector<std::size_t> ends;    // prompt lengths, by conversation
  std::uint64_t reused = 0;
  for (std::uint32_t turn = 0; turn < 30; ++turn) {
    const std::size_t from = random() % said.size();
    Tokens prompt = said[from];
    switch (random() % 3) {
      case 0:  // goes on behind the reply
        break;
      case 1:  // another text in the reply's place
        if (from > 0) prompt.resize(ends[from - 1]);
        break;
      default:  // anywhere
        prompt.resize(prompt.empty() ? 0 : random() % prompt.size());
    }
    prompt = joined(std::move(prompt), tokens(100 + turn, 1 + random() % 90));
    SCOPED_TRACE(::testing::Message() << "turn " << turn << ", " << prompt.size() << " tokens");
    const GenerationRequest r = request(prompt, 1 + static_cast<std::uint32_t>(random() % 80));
    Collector found;
    const auto stream = serve(with, r, found, slot);
    reused += stream->times().reused;
    expect_fresh(r, found);
    said.push_back(stream->tokens());
    ends.push_back(prompt.size());
  }
  EXPECT_GT(reused, 30u * window_);
  EXPECT_GT(kept.status().restored, 5u);
}

// The state at a prompt's end serves whatever goes on from there, also when the slot is long somebody else's.
TEST_P(PromptCacheTest, AnEarlierRequestsEndIsFoundAgain) {
  PromptCache kept(64 << 20);
  Engine with = engine(&kept);
  for (const std::uint32_t length : {5u, window_, 3 * window_ + 7, 700u}) {
    KeptState slot;
    Collector first, other, again;
    const Tokens prompt = tokens(length, length);
    serve(with, request(prompt, 3 * window_), first, slot);
    serve(with, request(tokens(1000 + length, 50), 10), other, slot);
    const GenerationRequest next = request(joined(prompt, tokens(5, 20)), 20);
    EXPECT_EQ(serve(with, next, again, slot)->times().reused, length);
    expect_fresh(next, again);
  }
}

// Copying a long prompt's state takes a while.
TEST_P(PromptCacheTest, TheFirstTokenDoesNotWaitForThePromptToBeKept) {
  PromptCache kept(64 << 20);
  struct Watching : Collector {
    explicit Watching(const PromptCache& cache) : kept(cache) {}
    bool on_token(const DrawnToken& drawn) override {
      kept_by_token.push_back(kept.status().kept);
      return Collector::on_token(drawn);
    }
    const PromptCache& kept;
    std::vector<std::uint64_t> kept_by_token;
  } watching(kept);
  Engine with = engine(&kept);
  KeptState slot;
  serve(with, request(tokens(4, 3 * window_), 3), watching, slot);
  EXPECT_EQ(watching.kept_by_token, (std::vector<std::uint64_t>{0, 1, 1}));
}

// A few tokens less than what was kept: the margin of checkpoints.
TEST_P(PromptCacheTest, APromptThatEndsALittleEarlierResumesThere) {
  PromptCache kept(64 << 20);
  Engine with = engine(&kept, KvPlan::kCheckpointMargin + 16);  // rings that hold the margin
  for (const std::uint32_t less : {1u, 4u, KvPlan::kCheckpointMargin, KvPlan::kCheckpointMargin + 1}) {
    KeptState slot;
    Collector first, other, again;
    const std::uint32_t length = 5 * window_;
    const Tokens prompt = tokens(less, length);
    serve(with, request(prompt, 5), first, slot);
    serve(with, request(tokens(1000 + less, 50), 10), other, slot);
    Tokens cut(prompt.begin(), prompt.end() - less);
    const GenerationRequest next = request(joined(cut, tokens(2000 + less, 20)), 20);
    const bool within = less <= KvPlan::kCheckpointMargin;
    EXPECT_EQ(serve(with, next, again, slot)->times().reused, within ? length - less : 0) << less;
    expect_fresh(next, again);
  }
}

TEST_P(PromptCacheTest, ALongPromptIsKeptOnItsWay) {
  PromptCache kept(256 << 20);
  Engine with = engine(&kept);
  KeptState slot;
  Collector first, again;
  const Tokens prompt = tokens(9, 2600);
  serve(with, request(prompt, 2), first, slot);
  slot = {};
  const GenerationRequest next = request(joined({prompt.begin(), prompt.begin() + 2300}, tokens(10, 20)), 12);
  // The first chunk that ends behind 2,048.
  EXPECT_EQ(serve(with, next, again, slot)->times().reused, (2048 / kChunk + 1) * kChunk);
  expect_fresh(next, again);
}

TEST_P(PromptCacheTest, OneTokenIsAlwaysLeft) {
  PromptCache kept(64 << 20);
  Engine with = engine(&kept);
  KeptState slot;
  Collector first, again;
  const GenerationRequest r = request(tokens(1, 100), 5);
  serve(with, r, first, slot);
  slot = {};
  EXPECT_EQ(kept.longest(with.cache_plan(), r.prompt), 99u);
  EXPECT_EQ(serve(with, r, again, slot)->times().reused, 99u);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.logprobs, first.logprobs);
}

TEST_P(PromptCacheTest, ARequestMayStayOutOfIt) {
  PromptCache kept(64 << 20);
  Engine with = engine(&kept);
  Collector sink;
  GenerationRequest r = request(tokens(1, 100), 5);
  r.keep_prompt = false;
  with.run(*with.open(r, sink));
  EXPECT_EQ(kept.status().states, 0u);
}

TEST_P(PromptCacheTest, WhatIsRestoredEqualsWhatWasKept) {
  const Engine any = engine(nullptr, 2 * KvPlan::kCheckpointMargin);
  const KvPlan plan = any.cache_plan();
  for (const std::uint32_t length : {1u, 31u, 57u, 256u, 600u}) {
    PromptCache kept(64 << 20);
    const auto cache = filled(*backend_, plan, length);
    const Tokens prompt = tokens(2, length + 1);
    ASSERT_TRUE(kept.keep(*cache, std::span(prompt).first(length)));
    const auto other = filled(*backend_, plan, 77);
    EXPECT_EQ(kept.restore(*other, prompt), length);
    ASSERT_EQ(other->length(), length);
    for (std::uint32_t layer = 0; layer < plan.layers.size(); ++layer) {
      const bool ring = plan.layers[layer].slots < plan.context;
      for (std::uint32_t p = ring && length > window_ ? length + 1 - window_ : 0; p < length; ++p) {
        ASSERT_EQ(other->read_key(layer, p), cache->read_key(layer, p)) << layer << " " << p;
        ASSERT_EQ(other->read_value(layer, p), cache->read_value(layer, p));
      }
    }
    EXPECT_FALSE(other->can_roll_back_to(length + 1));
    // Back as far as the rings' rows came with it, and no further.
    const std::uint32_t from = cache->oldest_kept();
    if (from == 0 || from == length) continue;
    EXPECT_TRUE(other->can_roll_back_to(from + window_ - 1));
    EXPECT_FALSE(other->can_roll_back_to(from + window_ - 2));
  }
}

TEST_P(PromptCacheTest, StatesWithOneBeginningShareItsPages) {
  PromptCache kept(64 << 20);
  const Engine any = engine(nullptr);
  const auto long_one = filled(*backend_, any.cache_plan(), 700);
  const auto short_one = filled(*backend_, any.cache_plan(), 600);
  const Tokens text = tokens(2, 700);
  const std::uint64_t fixed = long_one->row_bytes(KvCache::Part::kFixed);
  const std::uint64_t rings = long_one->row_bytes(KvCache::Part::kRings);
  const std::uint64_t window = window_ - 1 + KvPlan::kCheckpointMargin;
  // A ring of window + chunk slots no longer holds all of the margin.
  const std::uint64_t held = std::min<std::uint64_t>(window, window_ + kChunk);
  ASSERT_TRUE(kept.keep(*short_one, std::span(text).first(600)));
  EXPECT_EQ(kept.status().bytes, 600 * fixed + held * rings);
  ASSERT_TRUE(kept.keep(*long_one, text));
  EXPECT_EQ(kept.status().bytes, (600 + 700 - 512) * fixed + 2 * held * rings);
  EXPECT_EQ(kept.status().states, 2u);
  ASSERT_TRUE(kept.keep(*long_one, text));  // the same again
  EXPECT_EQ(kept.status().states, 2u);
  kept.clear();
  EXPECT_EQ(kept.status().bytes, 0u);
}

TEST_P(PromptCacheTest, TheBudgetHoldsAndTheOldestLeave) {
  const Engine any = engine(nullptr);
  const auto cache = filled(*backend_, any.cache_plan(), 300);
  PromptCache measure(64 << 20);
  ASSERT_TRUE(measure.keep(*cache, tokens(0, 300)));
  const std::uint64_t one = measure.status().bytes;
  PromptCache kept(3 * one + one / 2);
  const auto other = filled(*backend_, any.cache_plan(), 10);
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(kept.keep(*cache, tokens(i, 300)));
  EXPECT_EQ(kept.restore(*other, joined(tokens(0, 300), {1})), 300u);  // used: now 1 is the oldest
  ASSERT_TRUE(kept.keep(*cache, tokens(3, 300)));
  EXPECT_LE(kept.status().bytes, 3 * one + one / 2);
  EXPECT_EQ(kept.status().states, 3u);
  EXPECT_EQ(kept.status().evicted, 1u);
  const auto has = [&](std::uint32_t i) {
    return kept.longest(any.cache_plan(), joined(tokens(i, 300), {1})) == 300;
  };
  EXPECT_TRUE(has(0) && !has(1) && has(2) && has(3));
  PromptCache small(one - 1);
  EXPECT_FALSE(small.keep(*cache, tokens(0, 300)));
  EXPECT_EQ(small.status().bytes, 0u);
}

TEST_P(PromptCacheTest, CachesOfAnotherPlanAreLeftAlone) {
  PromptCache kept(64 << 20);
  const Engine any = engine(nullptr);
  const auto cache = filled(*backend_, any.cache_plan(), 100);
  ASSERT_TRUE(kept.keep(*cache, tokens(1, 100)));
  for (const KvPlan& plan : {KvPlan::make(model_->geometry(), 2048, kChunk, GetParam()),
                             KvPlan::make(model_->geometry(), model_->geometry().context, 32, GetParam()),
                             KvPlan::make(model_->geometry(), model_->geometry().context, kChunk,
                                          GetParam() == KvType::kF32 ? KvType::kF16 : KvType::kF32)}) {
    const auto other = backend_->new_cache(plan);
    EXPECT_EQ(kept.restore(*other, joined(tokens(1, 100), {1})), 0u);
    EXPECT_EQ(other->length(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(DenseA, PromptCacheTest, ::testing::Values(KvType::kF32, KvType::kF16Full),
                         [](const auto& test) { return test.param == KvType::kF32 ? "f32" : "f16_full"; });

}  // namespace
}  // namespace gem
