// Drafted replies equal plain ones, bit for bit, whoever drafts; and what drafts cost.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "engine/collector.h"
#include "engine/draft/combined.h"
#include "engine/draft/mtp.h"
#include "engine/engine.h"
#include "engine/wrapped_backend.h"

namespace gem {
namespace {

using testing::Collector;
using Tokens = std::vector<std::int32_t>;

// Drafters that know the replies, or do not. `next` gives the token to propose at a position.
class TestDrafter : public Drafter {
 public:
  using Next = std::function<std::int32_t(std::span<const std::int32_t> tokens, std::size_t position)>;
  explicit TestDrafter(Next next, std::uint32_t most = 7) : next_(std::move(next)), most_(most) {}
  std::string description() const override { return "the test's drafter"; }
  std::unique_ptr<DraftState> open() override { return std::make_unique<DraftState>(); }
  void absorb(DraftState&, const AbsorbedRows& rows) override {
    EXPECT_FALSE(rows.tokens.empty());
    EXPECT_GT(rows.rows, 0u);
  }
  DraftOutlook outlook(const DraftState&, std::span<const std::int32_t>) const override {
    return {DraftKind::kModel, most_, true};
  }
  void propose(std::span<DraftTurn> turns) override {
    for (DraftTurn& turn : turns) {
      EXPECT_EQ(turn.cache->length() + 1, turn.tokens.size());
      for (std::uint32_t i = 0; i < turn.most; ++i) {
        const std::int32_t token = next_(turn.tokens, turn.tokens.size() + i);
        turn.drafts.push_back(token);
        if (turn.distributions) turn.drawn_from.push_back({{{token, 1.0}}});
      }
    }
  }
  void roll_back(DraftState&, std::uint32_t) override {}

 private:
  Next next_;
  std::uint32_t most_;
};

class DraftTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string models = std::string(GEM_SOURCE_DIR) + "/models/";
    model_ = Model::load(models + "gem-demo.gguf");
    assistant_ = Assistant::load(models + "mtp-gem-demo.gguf", *model_);
  }
  static void TearDownTestSuite() {
    assistant_.reset();
    model_.reset();
  }
  void SetUp() override { backend_ = make_backend(BackendKind::kCpu, *model_, 2); }

  // Settings that depend on the index: greedy and seeded, with penalties of both kinds, bias, log
  // probabilities. Prompts repeat themselves a little, so that there is something to copy.
  static GenerationRequest request(std::uint32_t index, std::size_t length, std::uint32_t tokens) {
    std::mt19937 random(index);
    GenerationRequest r;
    r.prompt.push_back(2);
    for (std::size_t i = 1; i < length; ++i)
      r.prompt.push_back(static_cast<std::int32_t>(500 + (i % 19) * 31 + random() % 3));
    r.max_tokens = tokens;
    r.sampling.temperature = index % 3 == 0 ? 0 : 0.4 + 0.3 * (index % 4);
    r.sampling.seed = index;
    if (index % 4 == 1) r.sampling.repetition_penalty = 1.3;
    if (index % 4 == 2) {
      r.sampling.presence_penalty = 0.5;
      r.sampling.frequency_penalty = 0.2;
      r.sampling.penalty_window = 40;
    }
    if (index % 2 == 1) r.logprobs = 3;
    r.sampling.logit_bias = {{1, -INFINITY}, {50, -INFINITY}, {106, -INFINITY}, {700, 2.5f}};
    return r;
  }

  struct Plain {
    Collector sink;
    Tokens all;
    KeptState state;
  };
  std::unique_ptr<Plain> plain(const GenerationRequest& r, const Collector& settings = {},
                               EngineOptions options = {.context = 1024, .chunk = 32, .max_streams = 1}) {
    auto p = std::make_unique<Plain>();
    p->sink = settings;
    Engine engine(*model_, *backend_, options);
    const auto stream = engine.open(r, p->sink);
    engine.run(*stream);
    EXPECT_TRUE(p->sink.finished);
    p->all = stream->tokens();
    p->state = stream->take_state();
    return p;
  }
  static void expect_equal(const Collector& found, const Collector& expected, const std::string& what) {
    EXPECT_EQ(found.tokens, expected.tokens) << what;
    EXPECT_EQ(found.logprobs, expected.logprobs) << what;
    EXPECT_EQ(found.reason, expected.reason) << what;
    ASSERT_EQ(found.tops.size(), expected.tops.size());
    for (std::size_t i = 0; i < found.tops.size(); ++i) {
      ASSERT_EQ(found.tops[i].size(), expected.tops[i].size());
      for (std::size_t k = 0; k < found.tops[i].size(); ++k) {
        EXPECT_EQ(found.tops[i][k].token, expected.tops[i][k].token);
        EXPECT_EQ(found.tops[i][k].logprob, expected.tops[i][k].logprob);
      }
    }
  }
  // Keys and values of all positions that a later row may see.
  static void expect_equal(const KeptState& found, const KeptState& expected) {
    ASSERT_EQ(found.tokens, expected.tokens);
    ASSERT_EQ(found.cache->length(), expected.cache->length());
    const std::uint32_t length = found.cache->length();
    for (std::uint32_t layer = 0; layer < found.cache->plan().layers.size(); ++layer) {
      const bool ring = found.cache->plan().layers[layer].slots < found.cache->plan().context;
      const std::uint32_t first = ring && length > 128 ? length - 128 : 0;
      for (std::uint32_t p = first; p < length; ++p) {
        ASSERT_EQ(found.cache->read_key(layer, p), expected.cache->read_key(layer, p)) << layer << " " << p;
        ASSERT_EQ(found.cache->read_value(layer, p), expected.cache->read_value(layer, p));
      }
    }
  }

  using Maker = std::function<std::unique_ptr<Drafter>()>;
  std::map<std::string, Maker> drafters() {
    return {{"mtp", [&] { return std::make_unique<MtpDrafter>(*assistant_, *backend_); }},
            {"mtp, position before",
             [&] {
               return std::make_unique<MtpDrafter>(*assistant_, *backend_, MtpOptions{5, true});
             }},
            {"copy", [&] { return std::make_unique<CopyDrafter>(CopyOptions{.shortest = 2, .most = 15}); }},
            {"combined",
             [&] {
               return std::make_unique<CombinedDrafter>(std::make_unique<MtpDrafter>(*assistant_, *backend_),
                                                        CopyOptions{.shortest = 3}, 5);
             }},
            {"random", [&]() -> std::unique_ptr<Drafter> {
               return std::make_unique<TestDrafter>([&](auto, std::size_t) {
                 return static_cast<std::int32_t>(random_() % model_->geometry().vocab);
               });
             }}};
  }

  static inline std::unique_ptr<Model> model_;
  static inline std::unique_ptr<Assistant> assistant_;
  std::unique_ptr<Backend> backend_;
  std::mt19937 random_{7};
};

TEST_F(DraftTest, DraftedRepliesEqualPlainOnes) {
  constexpr std::uint32_t kStreams = 4;
  std::vector<GenerationRequest> requests;
  std::vector<std::unique_ptr<Plain>> expected;
  std::vector<Collector> settings(kStreams);
  settings[2].force_at = 9;  // a forced token in the middle of windows
  settings[2].force = 777;
  settings[0].stop_after = 23;  // as a stop string ends it
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    // Long enough for the rings of 128 + 32 slots to come round.
    requests.push_back(request(i, 5 + 31 * i, i == 1 ? 150 : 24 + 5 * i));
    expected.push_back(plain(requests[i], settings[i]));
  }
  requests[3].end_tokens = {expected[3]->sink.tokens[17]};
  expected[3] = plain(requests[3], settings[3]);
  EXPECT_EQ(expected[3]->sink.reason, FinishReason::kStop);

  for (const auto& [name, make] : drafters()) {
    Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = kStreams});
    engine.draft_with(make(), {.adaptive = false});
    std::vector<Collector> sinks = settings;
    std::vector<std::shared_ptr<Stream>> streams;
    for (std::uint32_t i = 0; i < kStreams; ++i) {  // one joins at every step; short ones leave meanwhile
      streams.push_back(engine.open(requests[i], sinks[i]));
      engine.step();
    }
    while (engine.step()) {
    }
    std::uint32_t drafted = 0;
    for (std::uint32_t i = 0; i < kStreams; ++i) {
      const std::string what = name + ", stream " + std::to_string(i);
      expect_equal(sinks[i], expected[i]->sink, what);
      expect_equal(streams[i]->take_state(), expected[i]->state);
      EXPECT_LE(streams[i]->times().accepted, streams[i]->times().drafted);
      drafted += streams[i]->times().drafted;
    }
    EXPECT_GT(drafted, 40u) << name;
  }
}

// Every KV cache type: the verify window reads back what a row alone would.
TEST_F(DraftTest, DraftedRepliesEqualPlainOnesWithEveryCacheType) {
  for (const KvType type : backend_->kv_types()) {
    const EngineOptions options{.context = 1024, .chunk = 32, .max_streams = 1, .kv_type = type};
    const GenerationRequest r = request(7, 70, 100);
    const auto expected = plain(r, {}, options);
    Engine engine(*model_, *backend_, options);
    engine.draft_with(drafters().at("combined")(), {.adaptive = false});
    Collector sink;
    const auto stream = engine.open(r, sink);
    engine.run(*stream);
    expect_equal(sink, expected->sink, std::string(kv_type_name(type)));
    EXPECT_GT(stream->times().drafted, 60u);
  }
}

TEST_F(DraftTest, ADrafterThatKnowsIsAlwaysRight) {
  const GenerationRequest r = request(4, 50, 600);
  const auto expected = plain(r);
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = 1});
  const Tokens& all = expected->all;
  engine.draft_with(std::make_unique<TestDrafter>([&](auto, std::size_t at) { return all.at(at); }),
                    {.adaptive = false});
  Collector sink;
  const auto stream = engine.open(r, sink);
  DraftCounts counts;
  while (engine.step()) counts.add(engine.last_round().drafts);
  counts.add(engine.last_round().drafts);
  expect_equal(sink, expected->sink, "oracle");
  EXPECT_EQ(stream->times().accepted, stream->times().drafted);
  // The first token comes with the prompt; 599 others at 8 a round.
  EXPECT_EQ(stream->times().drafted, 599u - 75u);
  EXPECT_EQ(counts.rounds, 75u);
  EXPECT_EQ(counts.drafted[0], 75u);
  EXPECT_EQ(counts.accepted[6], 74u);  // the last round has 7 tokens to give
  EXPECT_EQ(counts.all_accepted(), 524u);
}

// The figures of a memory-bound machine: eight rows cost a quarter more than one.
DraftCosts fixed_costs() {
  return {{{1, 1.0}, {8, 1.25}, {16, 2.0}}, {{1, 0.05}, {4, 0.08}}};
}

TEST_F(DraftTest, ADrafterThatIsAlwaysWrongCostsLittle) {
  const GenerationRequest r = request(4, 50, 600);
  const auto expected = plain(r);
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = 1});
  const Tokens& all = expected->all;
  const auto wrong = [&](auto, std::size_t at) { return at < all.size() && all[at] == 900 ? 901 : 900; };
  engine.draft_with(std::make_unique<TestDrafter>(wrong), {.costs = fixed_costs()});
  Collector sink;
  const auto stream = engine.open(r, sink);
  double cost = 0;
  while (!sink.finished) {
    const std::uint32_t drafted = stream->times().drafted;
    engine.step();
    cost += fixed_costs().round(engine.last_round().rows) + 0.05 * (stream->times().drafted - drafted);
  }
  expect_equal(sink, expected->sink, "wrong");
  EXPECT_EQ(stream->times().accepted, 0u);
  EXPECT_GT(stream->times().drafted, 0u);
  EXPECT_LT(cost, 1.15 * 600);
}

TEST_F(DraftTest, LuckThatReturnsIsFoundAgain) {
  const GenerationRequest r = request(4, 50, 600);
  const auto expected = plain(r);
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = 1});
  const Tokens& all = expected->all;
  const auto half = [&](auto, std::size_t at) {
    return at < 250 ? (all[at] == 900 ? 901 : 900) : all.at(at);  // wrong first, right later
  };
  engine.draft_with(std::make_unique<TestDrafter>(half), {.costs = fixed_costs()});
  Collector sink;
  const auto stream = engine.open(r, sink);
  engine.run(*stream);
  expect_equal(sink, expected->sink, "half");
  EXPECT_GT(stream->times().accepted, 200u);
}

TEST_F(DraftTest, NumbersThatAreNoneEndDraftingWithOneWarning) {
  testing::BackendHooks hooks;
  hooks.nan_drafts = true;
  const GenerationRequest r = request(5, 40, 60);
  const auto expected = plain(r);
  backend_ = std::make_unique<testing::WrappedBackend>(std::move(backend_), hooks);
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = 2});
  std::vector<std::string> warnings;
  engine.draft_with(std::make_unique<MtpDrafter>(*assistant_, *backend_),
                    {.adaptive = false, .warn = [&](const std::string& text) { warnings.push_back(text); }});
  Collector a, b;
  const auto first = engine.open(r, a);
  engine.open(request(6, 30, 20), b);
  engine.run(*first);
  expect_equal(a, expected->sink, "NaN");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("mtp-gem-demo.gguf gives values that are not numbers"), std::string::npos);
  EXPECT_EQ(first->times().drafted, 0u);
  EXPECT_FALSE(engine.speculation()->active());
}

TEST_F(DraftTest, TheContextsEndShortensDrafts) {
  for (const std::uint32_t context : {64u, 65u, 66u, 71u}) {
    const EngineOptions options{.context = context, .chunk = 16, .max_streams = 1};
    const GenerationRequest r = request(3, 40, 0);
    const auto expected = plain(r, {}, options);
    EXPECT_EQ(expected->sink.reason, FinishReason::kContext);
    const Tokens& all = expected->all;
    for (const bool right : {true, false}) {
      Engine engine(*model_, *backend_, options);
      engine.draft_with(std::make_unique<TestDrafter>([&](auto, std::size_t at) {
                          EXPECT_LT(at, context) << "nothing is drafted beyond the end";
                          return right ? all.at(at) : 900;
                        }),
                        {.adaptive = false});
      Collector sink;
      const auto stream = engine.open(r, sink);
      engine.run(*stream);
      expect_equal(sink, expected->sink, "context");
      expect_equal(stream->take_state(), expected->state);
    }
  }
}

// The undo log of a checkpoint: what windows wrote and lost again is no part of what comes back.
TEST_F(DraftTest, AStateAfterDraftsIsResumedAsAFreshOne) {
  const GenerationRequest r = request(3, 200, 300);  // the ring of 160 slots comes round behind the prompt
  for (const std::size_t keep : {200u, 190u, 120u}) {
    Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = 1});
    engine.draft_with(drafters().at("combined")(), {.adaptive = false});
    Collector first, second;
    const auto stream = engine.open(r, first);
    engine.run(*stream);
    GenerationRequest next = request(3, keep, 40);
    for (int i = 0; i < 30; ++i) next.prompt.push_back(600 + i);
    const auto expected = plain(next);
    const auto resumed = engine.open(next, second, stream->take_state());
    if (keep >= 190) {
      EXPECT_GE(resumed->times().reused, keep);
    }
    engine.run(*resumed);
    expect_equal(second, expected->sink, "resumed at " + std::to_string(keep));
    EXPECT_GT(resumed->times().drafted, 0u);
  }
}

TEST_F(DraftTest, ARequestMayGoWithoutDrafts) {
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = 2});
  engine.draft_with(drafters().at("mtp")(), {.adaptive = false});
  GenerationRequest r = request(4, 40, 50);
  const auto expected = plain(r);
  Collector without, with;
  const auto drafting = engine.open(r, with);
  r.draft = false;
  const auto stream = engine.open(r, without);
  while (engine.step()) {
  }
  expect_equal(without, expected->sink, "without");
  expect_equal(with, expected->sink, "with");
  EXPECT_EQ(stream->times().drafted, 0u);
  EXPECT_GT(drafting->times().drafted, 0u);
}

TEST_F(DraftTest, TheOracleDraftsToo) {
  backend_ = make_backend(BackendKind::kOracle, *model_, 1);
  GenerationRequest r = request(5, 12, 10);
  const auto expected = plain(r);
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = 1});
  engine.draft_with(drafters().at("mtp")(), {.adaptive = false});
  Collector sink;
  engine.run(*engine.open(r, sink));
  expect_equal(sink, expected->sink, "oracle backend");
}

// Greedy replies leave rejection sampling nothing to choose.
TEST_F(DraftTest, RejectionSamplingEqualsPlainWhenGreedy) {
  GenerationRequest r = request(3, 30, 100);
  const auto expected = plain(r);
  for (const char* name : {"mtp", "combined", "random"}) {
    Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = 1});
    engine.draft_with(drafters().at(name)(), {.sampling = SpecSampling::kRejection, .adaptive = false});
    Collector sink;
    engine.run(*engine.open(r, sink));
    expect_equal(sink, expected->sink, name);
  }
}

// Eight streams whose drafts always come true: where rows beyond sixteen cost what they bring, nothing is
// drafted while they all decode, also not to try; those that are left draft again.
TEST_F(DraftTest, StreamsThatFillTheRoundsDraftNothing) {
  constexpr std::uint32_t kStreams = 8;
  constexpr std::uint32_t kShort = 80, kLong = 160;
  std::vector<GenerationRequest> requests;
  std::vector<Tokens> all;
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    GenerationRequest r = request(i, 30, i < 2 ? kLong : kShort);
    r.prompt[1] = static_cast<std::int32_t>(900 + i);  // each knows its own
    all.push_back(plain(r)->all);
    requests.push_back(std::move(r));
  }
  const auto knows = [&](std::span<const std::int32_t> tokens, std::size_t at) {
    return all[static_cast<std::size_t>(tokens[1] - 900)].at(at);
  };
  for (const bool full : {true, false}) {
    // Eight rows cost as much as one. Then each row costs one such round's eighth, or hardly anything.
    const DraftCosts costs{{{1, 1.0}, {8, 1.0}, {16, full ? 2.0 : 1.01}, {64, full ? 8.0 : 1.02}}, {}};
    Engine engine(*model_, *backend_, {.context = 1024, .chunk = 256, .max_streams = kStreams});
    engine.draft_with(std::make_unique<TestDrafter>(knows), {.costs = costs});
    std::vector<Collector> sinks(kStreams);
    std::vector<std::shared_ptr<Stream>> streams;
    for (std::uint32_t i = 0; i < kStreams; ++i) streams.push_back(engine.open(requests[i], sinks[i]));
    std::uint64_t together = 0, alone = 0;
    for (bool more = true; more;) {
      const bool all_decode = std::all_of(streams.begin(), streams.end(), [](const auto& s) {
        return s->times().reply_tokens > 0 && !s->finished();
      });
      more = engine.step();
      if (!more) break;
      (all_decode ? together : alone) += engine.last_round().drafts.all_drafted();
    }
    for (std::uint32_t i = 0; i < kStreams; ++i)
      EXPECT_EQ(sinks[i].tokens,
                Tokens(all[i].end() - static_cast<std::ptrdiff_t>(sinks[i].tokens.size()), all[i].end()));
    if (full) {
      EXPECT_EQ(together, 0u);
      EXPECT_GT(alone, 80u);  // of the 2 x 80 tokens that two of them still have to say
    } else {
      EXPECT_GT(together, 300u);
    }
  }
}

// Wide rounds are measured as they come: shared by the streams, no wider than these can make them.
TEST_F(DraftTest, WideRoundsAreMeasuredShared) {
  for (const std::uint32_t streams : {1u, 2u, 6u, 16u}) {
    std::map<std::uint32_t, std::size_t> most_spans;  // of the rounds of so many rows
    testing::BackendHooks hooks;
    hooks.before_round = [&](const RoundRows& rows) {
      auto& spans = most_spans[static_cast<std::uint32_t>(rows.tokens.size())];
      spans = std::max(spans, rows.spans.size());
      EXPECT_EQ(rows.logit_rows.size(), rows.tokens.size()) << "as drafts are verified";
      for (const RowSpan& span : rows.spans) EXPECT_LE(span.rows, 16u);
    };
    testing::WrappedBackend backend(make_backend(BackendKind::kCpu, *model_, 2), hooks);
    Engine engine(*model_, backend, {.context = 1024, .chunk = 32, .max_streams = streams});
    engine.draft_with(std::make_unique<TestDrafter>([](auto, std::size_t) { return 5; }, 15), {});
    const auto& costs = engine.speculation()->options().costs;
    const auto& rounds = costs->rounds;
    for (std::size_t i = 1; i < rounds.size(); ++i) EXPECT_LT(rounds[i - 1].first, rounds[i].first);
    const std::uint32_t widest = rounds.back().first;
    const std::uint32_t wanted = streams == 1 ? 16u : streams == 2 ? 32u : streams == 6 ? 66u : 256u;
    if (widest !=
        wanted) {  // where the next wider round would take more than a second (sanitizers, a busy machine)
      EXPECT_LT(widest, wanted);
      EXPECT_GT(costs->round(wanted), 1.0) << widest << " of " << wanted << " rows";
    }
    // Streams share a wide round by eight rows or more.
    if (widest > 16) {
      EXPECT_EQ(most_spans.at(widest), std::min(streams, widest / 8));
    }
  }
}

TEST_F(DraftTest, MeasuredCostsAreThere) {
  Engine engine(*model_, *backend_, {.context = 1024, .chunk = 32, .max_streams = 1});
  engine.draft_with(drafters().at("mtp")(), {});
  const auto& costs = engine.speculation()->options().costs;
  ASSERT_TRUE(costs);
  ASSERT_EQ(costs->rounds.size(), 5u);
  EXPECT_EQ(costs->rounds.back().first, 16u);
  EXPECT_EQ(costs->steps.size(), 3u);
  for (const auto& [rows, seconds] : costs->rounds) EXPECT_GT(seconds, 0);
}

}  // namespace
}  // namespace gem
