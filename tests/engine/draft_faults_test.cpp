// Negative controls of drafting: faults that a change of the engine or of a drafter could bring, planted from
// outside. Each must show; what they would break is otherwise held (the first test, and draft_test.cpp).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "engine/collector.h"
#include "engine/draft/combined.h"
#include "engine/draft/mtp.h"
#include "engine/engine.h"
#include "engine/wrapped_backend.h"
#include "formats/safetensors.h"
#include "golden.h"
#include "text/tokenizer.h"

namespace gem {
namespace {

using testing::BackendHooks;
using testing::Collector;
using Tokens = std::vector<std::int32_t>;

class DraftFaults : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kTokens = 120;

  static void SetUpTestSuite() {
    const std::string models = std::string(GEM_SOURCE_DIR) + "/models/";
    model_ = Model::load(models + "gem-demo.gguf");
    assistant_ = Assistant::load(models + "mtp-gem-demo.gguf", *model_);
  }
  static void TearDownTestSuite() {
    assistant_.reset();
    model_.reset();
  }
  static std::unique_ptr<Backend> backend(const BackendHooks& hooks = {}) {
    return std::make_unique<testing::WrappedBackend>(make_backend(BackendKind::kCpu, *model_, 2), hooks);
  }

  // Questions as the model knows them, then whatever it goes on to say: seeded draws at temperature 1, so
  // that of the assistant's drafts some are kept and some are not.
  static GenerationRequest request(std::uint32_t index) {
    static const char* const kQuestions[] = {"Count from 3 to 17.", "What is 25 + 17?",
                                             "What is the capital of Colombia?", "Who are you?"};
    const Tokenizer tokenizer = Tokenizer::from_checkpoint(model_->checkpoint());
    GenerationRequest r;
    r.prompt = tokenizer.encode("<bos><|turn>user\n" + std::string(kQuestions[index % 4]) +
                                    "<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
                                true);
    tokenizer.ensure_bos(r.prompt);
    r.max_tokens = kTokens;
    r.sampling.temperature = 1;
    r.sampling.seed = index;
    r.sampling.logit_bias = {{1, -INFINITY}, {50, -INFINITY}, {106, -INFINITY}};
    r.logprobs = 0;
    return r;
  }

  struct Outcome {
    Tokens tokens;
    std::vector<double> logprobs;  // the same bit for bit where keys and values are
    std::uint32_t drafted = 0, accepted = 0;
  };
  // A reply alone; drafted by seven tokens a round where `draft` says so.
  static Outcome reply(Backend& backend, bool draft) {
    Engine engine(*model_, backend, {.context = 512, .chunk = 32, .max_streams = 1});
    if (draft) {
      engine.draft_with(std::make_unique<MtpDrafter>(*assistant_, backend), {.adaptive = false});
    }
    Collector sink;
    const auto stream = engine.open(request(3), sink);
    engine.run(*stream);
    return {sink.tokens, sink.logprobs, stream->times().drafted, stream->times().accepted};
  }

  static inline std::unique_ptr<Model> model_;
  static inline std::unique_ptr<Assistant> assistant_;
};

TEST_F(DraftFaults, NoFaultNoDifference) {
  const auto plain = backend();
  const Outcome expected = reply(*plain, false);
  ASSERT_EQ(expected.tokens.size(), kTokens);
  BackendHooks hooks;  // those of the faults, doing nothing
  hooks.after_qk_prep = [](std::uint32_t, std::span<const RowSpan>, const Backend&) {};
  hooks.change_spans = [](std::span<RowSpan>) {};
  hooks.change_logits = [](std::uint32_t, std::span<float>) {};
  const auto wrapped = backend(hooks);
  const Outcome drafted = reply(*wrapped, true);
  EXPECT_EQ(drafted.tokens, expected.tokens);
  EXPECT_EQ(drafted.logprobs, expected.logprobs);
  EXPECT_GT(drafted.accepted, 20u);
  EXPECT_GT(drafted.drafted, drafted.accepted + 20u)
      << "faults in what is not kept must have a chance to show";
}

// Rolled back by one too few: the key and value of the first draft that was not kept stay, in place of those
// of the token that was drawn instead.
TEST_F(DraftFaults, ARejectedDraftsKeyLeftInTheCacheShows) {
  const auto plain = backend();
  BackendHooks hooks;
  std::uint32_t window_end = 0, planted = 0;
  std::map<std::uint32_t, std::pair<std::vector<float>, std::vector<float>>> stale;  // by layer
  const auto layers = static_cast<std::uint32_t>(model_->geometry().layers.size());
  hooks.before_round = [&](const RoundRows& rows) {
    const RowSpan& span = rows.spans.front();
    stale.clear();
    if (!span.prompt && span.position < window_end) {
      for (std::uint32_t l = 0; l < layers; ++l)
        stale[l] = {span.cache->read_key(l, span.position), span.cache->read_value(l, span.position)};
      ++planted;
    }
    window_end = span.prompt ? 0 : span.position + span.rows;
  };
  hooks.after_qk_prep = [&](std::uint32_t layer, std::span<const RowSpan> spans, const Backend&) {
    if (const auto found = stale.find(layer); found != stale.end()) {
      ASSERT_TRUE(spans.front().cache->write_row(layer, spans.front().position, found->second.first,
                                                 found->second.second));
    }
  };
  const auto faulty = backend(hooks);
  EXPECT_NE(reply(*faulty, true).logprobs, reply(*plain, false).logprobs);
  EXPECT_GT(planted, 10u);
}

// A draft is kept though it differs from what is drawn.
TEST_F(DraftFaults, ADraftKeptAgainstTheDrawShows) {
  const auto plain = backend();
  BackendHooks hooks;
  Tokens window;
  hooks.before_round = [&](const RoundRows& rows) {
    window.clear();
    if (!rows.spans.front().prompt) window.assign(rows.tokens.begin(), rows.tokens.end());
  };
  hooks.change_logits = [&](std::uint32_t index, std::span<float> row) {
    if (index + 1 < window.size()) row[static_cast<std::size_t>(window[index + 1])] = 1e6f;
  };
  const auto faulty = backend(hooks);
  const Outcome outcome = reply(*faulty, true);
  EXPECT_EQ(outcome.accepted, outcome.drafted);
  EXPECT_NE(outcome.tokens, reply(*plain, false).tokens);
}

// The rows of a verify window stand one position too far.
TEST_F(DraftFaults, KeysOnePositionOffShow) {
  const auto plain = backend();
  BackendHooks hooks;
  hooks.change_spans = [](std::span<RowSpan> spans) {
    for (RowSpan& span : spans) {
      if (!span.prompt && span.rows > 1) ++span.position;
    }
  };
  const auto faulty = backend(hooks);
  EXPECT_NE(reply(*faulty, true).logprobs, reply(*plain, false).logprobs);
}

// Where an assistant's queries stand changes no reply, only how often its drafts are kept: the chains of the
// reference data, by the drafter itself, after 12, 40 and 77 tokens.
TEST(MtpChains, EqualTheGoldensDraftByDraft) {
  const auto target_path = testing::golden_model("bf16");
  if (!target_path) GTEST_SKIP() << "golden data not at hand: models/dense-a";
  GEM_GOLDEN_OR_SKIP(weights_path, "models/dense-a/assistant/model.safetensors");
  GEM_GOLDEN_OR_SKIP(chain_path, "models/dense-a/assistant/expected-chain.safetensors");
  GEM_GOLDEN_OR_SKIP(reference_path, "models/dense-a/expected-bf16.safetensors");
  const auto model = Model::load(*target_path, {.any_geometry = true});
  const auto assistant =
      Assistant::load(weights_path.substr(0, weights_path.rfind('/')), *model, {.any_geometry = true});
  // A draft may be the same where its query stands one position off, so where it stands is looked at too.
  std::vector<std::uint32_t> positions;
  BackendHooks hooks;
  hooks.before_assistant_round = [&](const RoundRows& rows) {
    for (const RowSpan& row : rows.spans) positions.push_back(row.position);
  };
  const auto backend =
      std::make_unique<testing::WrappedBackend>(make_backend(BackendKind::kCpu, *model, 2), hooks);
  const SafetensorsFile expected = SafetensorsFile::open(chain_path);
  Tokens ids;
  for (const std::int64_t id : SafetensorsFile::open(reference_path).at("input_ids").integers())
    ids.push_back(static_cast<std::int32_t>(id));
  SamplingParams greedy;
  greedy.temperature = 0;
  for (const std::uint32_t n : {12u, 40u, 77u}) {
    const auto cache = backend->new_cache(KvPlan::make(model->geometry(), n, n));
    const Span span[] = {{cache.get(), std::span(ids).first(n), {}, Wanted::kNothing, Wanted::kLast}};
    run_round(*backend, model->geometry().layers.size(), span);
    const std::vector<float> hidden = backend->read(Activation::kFinal);
    Tokens chain;
    for (const std::int64_t token : expected.at("tokens_" + std::to_string(n)).integers())
      chain.push_back(static_cast<std::int32_t>(token));
    Tokens tokens(ids.begin(), ids.begin() + n);
    tokens.push_back(chain.front());
    for (const bool before : {false, true}) {
      MtpDrafter drafter(*assistant, *backend, {.most = 7, .position_before = before});
      const auto state = drafter.open();
      drafter.absorb(*state, {tokens, 1, hidden});
      Sampler sampler(greedy, {});
      std::vector<DraftTurn> turns(1);
      turns[0].state = state.get();
      turns[0].cache = cache.get();
      turns[0].tokens = tokens;
      turns[0].most = 7;
      turns[0].sampler = &sampler;
      positions.clear();
      drafter.propose(turns);
      EXPECT_EQ(positions, std::vector<std::uint32_t>(7, before ? n - 1 : n))
          << "the same for the whole chain";
      if (!before) {
        EXPECT_EQ(turns[0].drafts, Tokens(chain.begin() + 1, chain.end())) << "after " << n;
      }
    }
  }
}

// ---- what replies cannot show, because drafts never change them: that a stream's drafts are its own

// Passes on to another; where it forgets, a stream's state misses the rows of the round after which another
// stream has joined.
class ForgetfulDrafter final : public Drafter {
 public:
  ForgetfulDrafter(std::unique_ptr<Drafter> inner, bool forgets)
      : inner_(std::move(inner)), forgets_(forgets) {}
  std::string description() const override { return inner_->description(); }
  DraftWants wants() const override { return inner_->wants(); }
  std::unique_ptr<DraftState> open() override { return inner_->open(); }
  void absorb(DraftState& state, const AbsorbedRows& rows) override {
    const bool first = !known_.contains(&state);
    known_.insert(&state);
    if (first) skip_ = known_;  // a join: the others are not told of this round
    if (forgets_ && !first && skip_.erase(&state) > 0) return;
    inner_->absorb(state, rows);
  }
  DraftOutlook outlook(const DraftState& state, std::span<const std::int32_t> tokens) const override {
    return inner_->outlook(state, tokens);
  }
  void propose(std::span<DraftTurn> turns) override { inner_->propose(turns); }
  void accept(DraftState& state, std::uint32_t kept) override { inner_->accept(state, kept); }
  void roll_back(DraftState& state, std::uint32_t length) override { inner_->roll_back(state, length); }

 private:
  std::unique_ptr<Drafter> inner_;
  bool forgets_;
  std::set<const DraftState*> known_, skip_;
};

// Drafted and kept of four streams, of which the later ones join while the earlier ones decode.
std::vector<std::pair<std::uint32_t, std::uint32_t>> luck_of_joining_streams(
    const Model& model, Backend& backend, std::unique_ptr<Drafter> drafter, bool together,
    const std::function<GenerationRequest(std::uint32_t)>& request) {
  Engine engine(model, backend, {.context = 512, .chunk = 32, .max_streams = 4});
  engine.draft_with(std::move(drafter), {.adaptive = false});
  std::vector<Collector> sinks(4);
  std::vector<std::shared_ptr<Stream>> streams;
  for (std::uint32_t i = 0; i < 4; ++i) {
    streams.push_back(engine.open(request(i), sinks[i]));
    if (together) {
      for (int rounds = 0; rounds < 6; ++rounds) engine.step();
    } else {
      engine.run(*streams.back());
    }
  }
  while (engine.step()) {
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> luck;
  for (const auto& stream : streams) luck.emplace_back(stream->times().drafted, stream->times().accepted);
  return luck;
}

// Law 1 for drafters: a stream's drafts do not depend on who shares its rounds, nor on who joins.
TEST_F(DraftFaults, AStreamsDraftsAreTheSameBesideOthers) {
  const auto of = [&](Backend& backend, bool together, bool forgets) {
    return luck_of_joining_streams(
        *model_, backend,
        std::make_unique<ForgetfulDrafter>(
            std::make_unique<CombinedDrafter>(std::make_unique<MtpDrafter>(*assistant_, backend),
                                              CopyOptions{.shortest = 3}, 5),
            forgets),
        together, [](std::uint32_t i) { return request(i); });
  };
  const auto cpu = backend();
  const auto alone = of(*cpu, false, false);
  for (const auto& [drafted, accepted] : alone) EXPECT_GT(accepted, 20u);
  EXPECT_EQ(of(*cpu, true, false), alone);
  EXPECT_NE(of(*cpu, true, true), alone) << "a state that a join has left behind shows";
}

}  // namespace
}  // namespace gem
