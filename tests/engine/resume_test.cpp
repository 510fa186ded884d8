// Prompts that go on from a kept state: whatever was generated in between, tokens and log probabilities are
// those of a fresh run, bit for bit. On tiny models, with both backends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/collector.h"
#include "engine/engine.h"
#include "golden.h"

namespace gem {
namespace {

using testing::Collector;

class Resume : public ::testing::TestWithParam<std::tuple<BackendKind, KvType>> {
 protected:
  void SetUp() override {
    const auto path = testing::golden_file("models/dense-a/q4_0.gguf");
    if (!path) GTEST_SKIP() << "golden model not at hand";
    model_ = Model::load(*path, {.any_geometry = true});
    backend_ = make_backend(std::get<0>(GetParam()), *model_, 1);
    window_ = model_->geometry().window;
    context_ = model_->geometry().context;
    engine_ = std::make_unique<Engine>(
        *model_, *backend_,
        EngineOptions{
            .context = context_, .chunk = 24, .max_streams = 1, .kv_type = std::get<1>(GetParam())});
  }

  std::vector<std::int32_t> tokens(std::uint32_t seed, std::size_t n) const {
    std::mt19937 random(seed);
    std::vector<std::int32_t> out(n);
    for (std::int32_t& t : out) t = static_cast<std::int32_t>(random() % model_->geometry().vocab);
    return out;
  }

  GenerationRequest request(std::vector<std::int32_t> prompt, std::uint32_t reply) const {
    GenerationRequest r;
    r.prompt = std::move(prompt);
    r.max_tokens = reply;
    r.sampling.seed = 7;
    r.logprobs = model_->geometry().vocab;
    return r;
  }

  // Serves `next` from `state` and afresh; the prompt tokens that were reused.
  std::uint32_t expect_same(const GenerationRequest& next, KeptState&& state) {
    Collector resumed, fresh;
    const auto again = engine_->open(next, resumed, std::move(state));
    engine_->run(*again);
    engine_->run(*engine_->open(next, fresh));
    EXPECT_EQ(resumed.tokens, fresh.tokens);
    EXPECT_EQ(resumed.tops.size(), fresh.tops.size());
    for (std::size_t i = 0; i < std::min(resumed.tops.size(), fresh.tops.size()); ++i) {
      const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
        return x.token == y.token && x.logprob == y.logprob;
      };
      EXPECT_TRUE(std::equal(resumed.tops[i].begin(), resumed.tops[i].end(), fresh.tops[i].begin(),
                             fresh.tops[i].end(), same))
          << "token " << i;
    }
    return again->times().reused;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Engine> engine_;
  std::uint32_t window_ = 0, context_ = 0;
};

// The next request's history holds another text in the reply's place, as when thoughts are stripped: it
// resumes at the end of the request, or a few tokens before, where an empty thought is not rendered again.
TEST_P(Resume, AReplyOfAnyLengthIsUndoneToTheRequestsEnd) {
  std::vector<std::uint32_t> replies = {1, 2, 3, 5};                      // windows
  if (std::get<0>(GetParam()) == BackendKind::kOracle) replies = {2, 5};  // it is slow
  for (const std::uint32_t windows : replies) {
    for (const std::uint32_t length : {9u, 2 * window_ + 5}) {
      SCOPED_TRACE(::testing::Message() << windows << " windows after a prompt of " << length);
      const std::vector<std::int32_t> prompt = tokens(length, length);
      Collector first;
      const auto stream = engine_->open(request(prompt, windows * window_ + windows), first);
      engine_->run(*stream);
      ASSERT_EQ(first.tokens.size(), windows * window_ + windows);
      const std::uint32_t kept = windows % 2 == 0 ? length : length - 4;
      std::vector<std::int32_t> next(prompt.begin(), prompt.begin() + kept);
      const std::vector<std::int32_t> other = tokens(99, 40);
      next.insert(next.end(), other.begin(), other.end());
      const std::int32_t was = stream->tokens()[kept];
      next[kept] = was == 0 ? 1 : was - 1;
      KeptState state = stream->take_state();
      EXPECT_EQ(state.prompt_rows, length);
      EXPECT_EQ(engine_->resumable(state, next), kept);
      EXPECT_EQ(expect_same(request(next, 30), std::move(state)), kept);
    }
  }
}

// A conversation: every turn strips the last reply and says something else, on one cache.
TEST_P(Resume, AConversationComesBackToEveryRequestsEnd) {
  std::vector<std::int32_t> prompt = tokens(1, 20);
  KeptState state;
  std::uint32_t expected = 0;
  for (std::uint32_t turn = 0; turn < 5; ++turn) {
    ASSERT_LT(prompt.size() + 4 * window_, context_);
    EXPECT_EQ(engine_->resumable(state, prompt), expected) << turn;
    Collector sink, fresh;
    const GenerationRequest r = request(prompt, 2 * window_ + 11 * turn);
    const auto stream = engine_->open(r, sink, std::move(state));
    engine_->run(*stream);
    engine_->run(*engine_->open(r, fresh));
    EXPECT_EQ(sink.tokens, fresh.tokens) << turn;
    EXPECT_EQ(sink.logprobs, fresh.logprobs) << turn;
    expected = static_cast<std::uint32_t>(prompt.size());
    const std::vector<std::int32_t> more = tokens(50 + turn, 13);
    prompt.insert(prompt.end(), more.begin(), more.end());
    if (prompt[expected] == sink.tokens[0]) prompt[expected] = sink.tokens[0] == 0 ? 1 : sink.tokens[0] - 1;
    state = stream->take_state();
  }
}

// What extends the reply itself, as a tool's result does, resumes behind it.
TEST_P(Resume, WhatExtendsTheReplyResumesBehindIt) {
  for (const std::uint32_t length : {9u, window_ + 8}) {
    Collector first;
    const auto stream = engine_->open(request(tokens(length, length), 3 * window_), first);
    engine_->run(*stream);
    std::vector<std::int32_t> next = stream->tokens();
    const auto held = static_cast<std::uint32_t>(next.size()) - 1;  // the last token was not evaluated
    const std::vector<std::int32_t> more = tokens(5, 12);
    next.insert(next.end(), more.begin(), more.end());
    EXPECT_EQ(expect_same(request(next, 20), stream->take_state()), held);
  }
}

TEST_P(Resume, WithoutCheckpointsALongReplyIsReadAgain) {
  Engine engine(*model_, *backend_,
                {.context = context_,
                 .chunk = 24,
                 .max_streams = 1,
                 .checkpoints = false,
                 .kv_type = std::get<1>(GetParam())});
  Collector first;
  const auto stream = engine.open(request(tokens(2, 50), 3 * window_), first);
  engine.run(*stream);
  std::vector<std::int32_t> next = tokens(2, 50);
  next.push_back(first.tokens[0] == 3 ? 4 : 3);
  EXPECT_EQ(engine.resumable(stream->take_state(), next), 0u);
}

TEST_P(Resume, TheSamePromptAgainReadsOneTokenOnly) {
  const std::uint32_t length = 2 * window_;
  Collector first;
  const GenerationRequest r = request(tokens(8, length), 3 * window_);
  const auto stream = engine_->open(r, first);
  engine_->run(*stream);
  EXPECT_EQ(expect_same(r, stream->take_state()), length - 1);
}

TEST_P(Resume, ACancelledReplyLeavesAStateThatResumes) {
  const std::vector<std::int32_t> prompt = tokens(4, 100);
  for (const int steps : {1, 3, 5, 8, 120}) {  // chunks of 24: 1 and 3 end in the prompt
    Collector first;
    const auto stream = engine_->open(request(prompt, 0), first);
    for (int i = 0; i < steps; ++i) engine_->step();
    engine_->cancel(*stream);
    EXPECT_EQ(first.reason, FinishReason::kCancelled);
    EXPECT_FALSE(engine_->step());
    std::vector<std::int32_t> next = prompt;
    next.push_back(first.tokens.empty() || first.tokens[0] != 3 ? 3 : 4);
    EXPECT_EQ(expect_same(request(next, 10), stream->take_state()), std::min(steps * 24, 100)) << steps;
  }
}

INSTANTIATE_TEST_SUITE_P(DenseA, Resume,
                         ::testing::Values(std::tuple(BackendKind::kCpu, KvType::kF32),
                                           std::tuple(BackendKind::kCpu, KvType::kBF16),
                                           std::tuple(BackendKind::kCpu, KvType::kF16),
                                           std::tuple(BackendKind::kCpu, KvType::kF16Full),
                                           std::tuple(BackendKind::kOracle, KvType::kF32)),
                         [](const auto& test) {
                           std::string name =
                               std::get<0>(test.param) == BackendKind::kCpu ? "cpu_" : "oracle_";
                           name += kv_type_name(std::get<1>(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace gem
