// The engine on the bundled model: concurrent equals alone, resumed equals fresh, whatever the chunk size.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <new>
#include <random>

#include "base/error.h"
#include "engine/collector.h"
#include "engine/wrapped_backend.h"

namespace gem {
namespace {

using testing::Collector;

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = Model::load(std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf");
  }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override { backend_ = make_backend(BackendKind::kCpu, *model_, 2); }

  // A prompt and settings that depend on the index: greedy and seeded, some with penalties.
  static GenerationRequest request(std::uint32_t index, std::size_t length) {
    std::mt19937 random(index);
    GenerationRequest r;
    r.prompt.push_back(2);
    for (std::size_t i = 1; i < length; ++i)
      r.prompt.push_back(static_cast<std::int32_t>(500 + random() % 3000));
    r.max_tokens = 5 + index * 3 % 17;
    r.sampling.temperature = index % 3 == 0 ? 0 : 0.5 + 0.3 * (index % 4);
    r.sampling.seed = index;
    if (index % 4 == 1) r.sampling.repetition_penalty = 1.3;
    r.sampling.logit_bias = {{1, -INFINITY}, {50, -INFINITY}, {106, -INFINITY}};  // go on to max_tokens
    return r;
  }

  std::vector<std::int32_t> alone(GenerationRequest r, std::uint32_t chunk = 64) {
    Engine engine(*model_, *backend_, {.context = 1024, .chunk = chunk, .max_streams = 1});
    Collector sink;
    const auto stream = engine.open(std::move(r), sink);
    engine.run(*stream);
    EXPECT_TRUE(sink.finished);
    return sink.tokens;
  }

  static inline std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(EngineTest, ConcurrentEqualsAloneWithJoinsAndLeaves) {
  constexpr std::uint32_t kStreams = 17;
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    requests.push_back(request(i, 2 + 23 * i % 211));  // some longer than the window of 128
    expected.push_back(alone(requests.back()));
    EXPECT_EQ(expected.back().size(), requests.back().max_tokens);
  }
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 48, .max_streams = kStreams});
  std::vector<Collector> sinks(kStreams);
  std::vector<std::shared_ptr<Stream>> streams;
  for (std::uint32_t i = 0; i < kStreams; ++i) {  // one joins at every step; short ones leave meanwhile
    streams.push_back(engine.open(requests[i], sinks[i]));
    engine.step();
  }
  while (engine.step()) {
  }
  for (std::uint32_t i = 0; i < kStreams; ++i) EXPECT_EQ(sinks[i].tokens, expected[i]) << "stream " << i;
}

TEST_F(EngineTest, AShortPromptDoesNotWaitForALongOne) {
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 48, .max_streams = 2});
  Collector long_sink, short_sink;
  const GenerationRequest long_one = request(0, 500);
  const GenerationRequest short_one = request(3, 20);
  engine.open(long_one, long_sink);
  engine.step();
  engine.open(short_one, short_sink);
  engine.step();
  EXPECT_EQ(engine.last_round().rows, 48u);
  EXPECT_EQ(short_sink.tokens.size(), 1u) << "half of a round is more than it needs";
  EXPECT_EQ(long_sink.prompt_done, 48u + 28u);
  while (engine.step()) {
  }
  EXPECT_EQ(short_sink.tokens, alone(short_one));
  EXPECT_EQ(long_sink.tokens, alone(long_one));
}

TEST_F(EngineTest, ChunkSizeDoesNotChangeAReply) {
  const GenerationRequest r = request(4, 300);
  const std::vector<std::int32_t> expected = alone(r, 300);
  for (const std::uint32_t chunk : {1u, 7u, 100u, 128u}) EXPECT_EQ(alone(r, chunk), expected) << chunk;
}

TEST_F(EngineTest, ResumedEqualsFresh) {
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 64, .max_streams = 1});
  for (const std::size_t length : {40u, 300u}) {
    Collector first;
    const auto stream = engine.open(request(3, length), first);
    engine.run(*stream);
    KeptState state = stream->take_state();
    EXPECT_EQ(state.tokens.size(), state.cache->length());
    GenerationRequest next = request(3, length);
    next.prompt.insert(next.prompt.end(), first.tokens.begin(), first.tokens.end());
    for (int i = 0; i < 30; ++i) next.prompt.push_back(600 + i);
    next.sampling = request(5, 2).sampling;
    const std::vector<std::int32_t> expected = alone(next);
    Collector second;
    const auto resumed = engine.open(next, second, std::move(state));
    engine.run(*resumed);
    EXPECT_EQ(second.tokens, expected);
    EXPECT_GE(resumed->times().reused, length);
  }
}

// A backend that gives decode rows other bits than prompt rows resumes what was read as prompt alone.
TEST_F(EngineTest, WhereDecodingRoundsDifferentlyRepliesAreReadAgain) {
  testing::BackendHooks hooks;
  hooks.decode_equals_prompt = false;
  backend_ = std::make_unique<testing::WrappedBackend>(std::move(backend_), hooks);
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 64, .max_streams = 1});
  Collector first;
  const auto stream = engine.open(request(3, 40), first);
  engine.run(*stream);
  std::vector<std::int32_t> next = stream->tokens();
  next.push_back(700);
  EXPECT_EQ(engine.resumable(stream->take_state(), next), 40u);
}

TEST_F(EngineTest, ARoundThatFailsEndsItsStreamsAndNothingElse) {
  testing::BackendHooks hooks;
  int rounds = 0;
  hooks.before_round = [&](const RoundRows&) {
    if (++rounds == 4) throw std::bad_alloc();
  };
  backend_ = std::make_unique<testing::WrappedBackend>(std::move(backend_), hooks);
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 64, .max_streams = 2});
  Collector a, b, c;
  engine.open(request(1, 10), a);
  engine.open(request(2, 10), b);
  EXPECT_THROW(
      {
        while (engine.step()) {
        }
      },
      std::bad_alloc);
  EXPECT_EQ(rounds, 4);
  EXPECT_TRUE(a.finished && a.reason == FinishReason::kFailed);
  EXPECT_TRUE(b.finished && b.reason == FinishReason::kFailed);
  engine.run(*engine.open(request(3, 10), c));
  EXPECT_EQ(c.reason, FinishReason::kLength);
}

// Log probabilities against their definition, over rounds that several streams share.
TEST_F(EngineTest, LogProbabilitiesAreThoseOfTheRawSoftmax) {
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 64, .max_streams = 2});
  const std::uint32_t vocab = model_->geometry().vocab;
  GenerationRequest r = request(5, 20);
  r.logprobs = vocab;
  r.sampling.logit_bias.push_back({700, 50});  // draws are bent, log probabilities are not
  Collector sink, beside;
  engine.open(request(2, 30), beside);
  engine.run(*engine.open(r, sink));
  ASSERT_EQ(sink.logprobs.size(), r.max_tokens);
  bool bent = false;
  for (std::size_t i = 0; i < sink.tokens.size(); ++i) {
    const std::vector<TokenLogprob>& top = sink.tops[i];
    ASSERT_EQ(top.size(), vocab);
    double sum = 0;
    for (std::size_t k = 0; k < top.size(); ++k) {
      sum += std::exp(top[k].logprob);
      if (k > 0) {
        EXPECT_LE(top[k].logprob, top[k - 1].logprob);
      }
      if (top[k].token == sink.tokens[i]) {
        EXPECT_EQ(top[k].logprob, sink.logprobs[i]);
      }
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    bent |= sink.tokens[i] == 700 && top[0].token != 700;
  }
  EXPECT_TRUE(bent);
}

TEST_F(EngineTest, AForcedTokenTakesTheDrawnOnesPlace) {
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 64, .max_streams = 1});
  const GenerationRequest r = request(6, 20);
  const std::vector<std::int32_t> plain = alone(r);
  Collector sink;
  sink.force_at = 3;
  sink.force = plain[3] == 700 ? 701 : 700;
  engine.run(*engine.open(r, sink));
  EXPECT_EQ(sink.tokens[3], sink.force);
  EXPECT_TRUE(std::equal(plain.begin(), plain.begin() + 3, sink.tokens.begin()));
  // What follows is what a prompt that ends with the forced token gives.
  GenerationRequest rest = r;
  rest.prompt.insert(rest.prompt.end(), sink.tokens.begin(), sink.tokens.begin() + 4);
  rest.max_tokens -= 4;
  const std::vector<std::int32_t> expected = alone(rest);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), sink.tokens.begin() + 4, sink.tokens.end()));
}

TEST_F(EngineTest, AStateOfAnotherPromptIsUsedUpToTheDifferenceOrNotAtAll) {
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 64, .max_streams = 1});
  for (const std::size_t differs : {0u, 1u, 20u, 150u, 290u, 299u}) {
    Collector first;
    const auto stream = engine.open(request(3, 300), first);
    engine.run(*stream);
    GenerationRequest next = request(3, 300);
    next.prompt[differs] = 777;
    const std::vector<std::int32_t> expected = alone(next);
    Collector second;
    const auto resumed = engine.open(next, second, stream->take_state());
    EXPECT_LE(resumed->times().reused, differs);
    engine.run(*resumed);
    EXPECT_EQ(second.tokens, expected) << differs;
  }
}

TEST_F(EngineTest, EndsAreToldApart) {
  Engine engine(*model_, *backend_, {.context = 64, .chunk = 64, .max_streams = 2});
  Collector length, context, stopped, cancelled;
  GenerationRequest r = request(3, 40);
  r.max_tokens = 4;
  engine.run(*engine.open(r, length));
  EXPECT_EQ(length.reason, FinishReason::kLength);
  EXPECT_EQ(length.tokens.size(), 4u);

  r.max_tokens = 0;
  const auto full = engine.open(r, context);
  engine.run(*full);
  EXPECT_EQ(context.reason, FinishReason::kContext);
  EXPECT_EQ(full->tokens().size(), 64u);

  stopped.stop_after = 2;
  engine.run(*engine.open(r, stopped));
  EXPECT_EQ(stopped.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens.size(), 2u);

  const auto stream = engine.open(r, cancelled);
  engine.step();
  stream->cancel();
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(cancelled.reason, FinishReason::kCancelled);
  EXPECT_EQ(cancelled.tokens.size(), 1u);

  Collector end;
  r.end_tokens = {length.tokens.front()};
  engine.run(*engine.open(r, end));
  EXPECT_EQ(end.reason, FinishReason::kStop);
  EXPECT_EQ(end.tokens.size(), 1u);
}

TEST_F(EngineTest, RequestsThatCannotBeServedAreRefused) {
  Engine engine(*model_, *backend_, {.context = 64, .chunk = 16, .max_streams = 1});
  Collector sink;
  EXPECT_THROW(engine.open(request(1, 64), sink), Error);
  GenerationRequest empty;
  EXPECT_THROW(engine.open(empty, sink), Error);
  GenerationRequest bad = request(1, 10);
  bad.prompt[3] = 4096;
  EXPECT_THROW(engine.open(bad, sink), Error);
  bad.prompt[3] = -1;
  EXPECT_THROW(engine.open(bad, sink), Error);
  bad = request(1, 10);
  bad.sampling.temperature = -1;
  EXPECT_THROW(engine.open(bad, sink), Error);
  const auto stream = engine.open(request(1, 10), sink);
  EXPECT_THROW(engine.open(request(2, 10), sink), Error);
  engine.run(*stream);
}

}  // namespace
}  // namespace gem
