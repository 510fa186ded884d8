// Prompts that are read on a lane of their own, layer by layer between the rounds of replies. (The lane is a
// second cpu backend; the cuda backend has one of its own.)
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "base/error.h"
#include "engine/collector.h"
#include "engine/engine.h"
#include "engine/wrapped_backend.h"

namespace gem {
namespace {

using testing::Collector;
using Tokens = std::vector<std::int32_t>;
constexpr std::chrono::milliseconds kSlow{10};

class LaneTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = Model::load(std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf");
  }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override {
    plain_ = make_backend(BackendKind::kCpu, *model_, 2);
    testing::BackendHooks hooks;
    hooks.new_lane = [this] {
      testing::BackendHooks of_lane;
      of_lane.before_round = [this](const RoundRows& rows) {
        for (const RowSpan& span : rows.spans) EXPECT_TRUE(span.prompt);
        if (--rounds_until_failure_ == 0) fail(ErrorCode::kFailed, "the lane's round fails");
      };
      of_lane.after_qk_prep = [this](std::uint32_t, std::span<const RowSpan>, const Backend&) {
        std::this_thread::sleep_for(layer_pause_);
      };
      return std::make_unique<testing::WrappedBackend>(make_backend(BackendKind::kCpu, *model_, 2), of_lane);
    };
    hooks.before_round = [](const RoundRows& rows) {
      for (const RowSpan& span : rows.spans) EXPECT_FALSE(span.prompt);
    };
    backend_ = std::make_unique<testing::WrappedBackend>(make_backend(BackendKind::kCpu, *model_, 2), hooks);
  }

  static GenerationRequest request(std::uint32_t index, std::size_t length, std::uint32_t tokens) {
    std::mt19937 random(index);
    GenerationRequest r;
    r.prompt.push_back(2);
    for (std::size_t i = 1; i < length; ++i)
      r.prompt.push_back(static_cast<std::int32_t>(500 + random() % 3000));
    r.max_tokens = tokens;
    r.sampling.temperature = index % 2 == 0 ? 0 : 0.8;
    r.sampling.seed = index;
    r.sampling.logit_bias = {{1, -INFINITY}, {50, -INFINITY}, {106, -INFINITY}};  // go on to max_tokens
    return r;
  }
  static EngineOptions options(std::uint32_t streams, std::uint32_t chunk = 64) {
    return {.context = 1024, .chunk = chunk, .max_streams = streams};
  }
  Tokens alone(const GenerationRequest& r) {
    Engine engine(*model_, *plain_, options(1));
    Collector sink;
    const auto stream = engine.open(r, sink);
    engine.run(*stream);
    return sink.tokens;
  }

  static inline std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> plain_, backend_;
  int rounds_until_failure_ = 0;
  // How long a layer of a prompt takes more than it would: many times a round of decoding, so that chunks
  // are surely read in pieces, however the machine is slowed down meanwhile.
  std::chrono::milliseconds layer_pause_{0};
};

TEST_F(LaneTest, RepliesAreThoseOfStreamsAlone) {
  constexpr std::uint32_t kStreams = 6;
  std::vector<GenerationRequest> requests;
  std::vector<Collector> sinks(kStreams);
  for (std::uint32_t i = 0; i < kStreams; ++i)
    requests.push_back(request(i, 3 + 53 * i, i == 2 ? 1 : 12 + i));
  Engine engine(*model_, *backend_, options(kStreams));
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    engine.open(requests[i], sinks[i]);
    engine.step();
    engine.step();
  }
  while (engine.step()) {
  }
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    EXPECT_TRUE(sinks[i].finished);
    EXPECT_EQ(sinks[i].tokens, alone(requests[i])) << i;
  }
}

TEST_F(LaneTest, RepliesGoOnWhileAPromptIsRead) {
  layer_pause_ = kSlow;
  Engine engine(*model_, *backend_, options(2, 256));
  Collector first, second;
  engine.open(request(0, 20, 200), first);
  while (first.tokens.empty()) engine.step();
  engine.open(request(1, 700, 3), second);
  std::size_t steps = 0;
  const std::size_t before = first.tokens.size();
  for (; second.tokens.empty(); ++steps) {
    const std::size_t had = first.tokens.size();
    engine.step();
    EXPECT_EQ(first.tokens.size(), had + 1) << "a token a step";
  }
  // Six chunks of half the size, each in several pieces.
  EXPECT_GT(steps, 12u);
  EXPECT_EQ(first.tokens.size(), before + steps);
}

TEST_F(LaneTest, AStreamThatIsCancelledLeavesTheOthersTheirChunk) {
  layer_pause_ = kSlow;
  // Its own prompt tells how long a layer of a chunk takes, so that the next chunk is read in pieces.
  const GenerationRequest running = request(0, 200, 60);
  const GenerationRequest other = request(2, 90, 5);
  Engine engine(*model_, *backend_, options(3));
  Collector first, gone, third;
  engine.open(running, first);
  while (first.tokens.size() < 3) engine.step();
  const auto leaving = engine.open(request(1, 90, 5), gone);
  engine.open(other, third);
  engine.step();
  ASSERT_EQ(gone.prompt_done, 0u) << "a few layers of a chunk of both prompts";
  engine.cancel(*leaving);
  EXPECT_GT(gone.prompt_done, 0u);
  EXPECT_EQ(gone.reason, FinishReason::kCancelled);
  KeptState state = leaving->take_state();
  // What was read of it can be gone on with, while the others read theirs.
  Collector again;
  const auto resumed = engine.open(request(1, 90, 5), again, std::move(state));
  EXPECT_GT(resumed->times().reused, 0u);
  while (engine.step()) {
  }
  EXPECT_EQ(first.tokens, alone(running));
  EXPECT_EQ(third.tokens, alone(other));
  EXPECT_EQ(again.tokens, alone(request(1, 90, 5)));
}

TEST_F(LaneTest, ACancelThatIsOnlyNotedWaitsForTheChunkToo) {
  layer_pause_ = kSlow;
  Engine engine(*model_, *backend_, options(2));
  Collector first, gone;
  engine.open(request(0, 200, 20), first);
  while (first.tokens.size() < 3) engine.step();
  const auto leaving = engine.open(request(1, 90, 5), gone);
  engine.step();
  ASSERT_EQ(gone.prompt_done, 0u);
  leaving->cancel();
  engine.step();
  EXPECT_GT(gone.prompt_done, 0u);
  EXPECT_TRUE(gone.finished);
  EXPECT_EQ(gone.reason, FinishReason::kCancelled);
  while (engine.step()) {
  }
  EXPECT_EQ(first.tokens, alone(request(0, 200, 20)));
}

TEST_F(LaneTest, ALaneThatFailsEndsTheStreamsAndNothingElse) {
  Engine engine(*model_, *backend_, options(2));
  Collector first, second;
  engine.open(request(0, 10, 20), first);
  engine.step();
  engine.step();
  engine.open(request(1, 90, 5), second);
  rounds_until_failure_ = 1;
  EXPECT_THROW(engine.step(), Error);
  EXPECT_EQ(first.reason, FinishReason::kFailed);
  EXPECT_EQ(second.reason, FinishReason::kFailed);
  EXPECT_FALSE(engine.step());
  Collector after;
  const auto stream = engine.open(request(3, 70, 6), after);
  engine.run(*stream);
  EXPECT_EQ(after.tokens, alone(request(3, 70, 6)));
}

}  // namespace
}  // namespace gem
