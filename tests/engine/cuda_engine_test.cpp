// Replies of the bundled model on a CUDA device: drafted as plain, together as alone, resumed as fresh. (The
// same with more streams and settings on the CPU: draft_test.cpp, engine_test.cpp.)
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "backend/cuda/cuda.h"
#include "engine/collector.h"
#include "engine/draft/combined.h"
#include "engine/draft/mtp.h"
#include "engine/engine.h"
#include "model/assistant.h"
#include "model/model.h"
#include "model/schedule.h"

namespace gem {
namespace {

using testing::Collector;

class CudaEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
    const std::string models = std::string(GEM_SOURCE_DIR) + "/models/";
    model_ = Model::load(models + "gem-demo.gguf");
    assistant_ = Assistant::load(models + "mtp-gem-demo.gguf", *model_);
    backend_ = make_backend(BackendKind::kCuda, *model_, 1);
  }

  // Prompts that repeat themselves, so that there is something to copy. The first is greedy.
  static GenerationRequest request(std::uint32_t index, std::uint32_t tokens) {
    GenerationRequest r;
    r.prompt.push_back(2);
    for (std::uint32_t i = 1; i < 30 + 20 * index; ++i)
      r.prompt.push_back(static_cast<std::int32_t>(500 + (i % 11) * 31 + index));
    r.max_tokens = tokens;
    r.sampling.temperature = index == 0 ? 0 : 0.8;
    r.sampling.seed = index;
    if (index == 1) r.sampling.presence_penalty = 0.5;  // needs whole rows
    return r;
  }

  EngineOptions options(std::uint32_t streams) const {
    return {.context = 256, .chunk = 32, .max_streams = streams};
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Assistant> assistant_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(CudaEngine, DraftedTogetherEqualsPlainAlone) {
  constexpr std::uint32_t kStreams = 2;
  constexpr std::uint32_t kTokens = 9;
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    Collector sink;
    Engine engine(*model_, *backend_, options(1));
    const auto stream = engine.open(request(i, kTokens), sink);
    engine.run(*stream);
    EXPECT_EQ(sink.tokens.size(), kTokens);
    expected.push_back(sink.tokens);
  }
  Engine engine(*model_, *backend_, options(kStreams));
  engine.draft_with(std::make_unique<CombinedDrafter>(std::make_unique<MtpDrafter>(*assistant_, *backend_),
                                                      CopyOptions{.shortest = 3}, 5),
                    {.most = 5, .adaptive = false});
  std::vector<Collector> sinks(kStreams);
  for (std::uint32_t i = 0; i < kStreams; ++i) engine.open(request(i, kTokens), sinks[i]);
  std::uint64_t drafted = 0;
  std::uint64_t accepted = 0;
  for (bool more = true; more;) {
    more = engine.step();
    drafted += engine.last_round().drafts.all_drafted();
    accepted += engine.last_round().drafts.all_accepted();
  }
  for (std::uint32_t i = 0; i < kStreams; ++i) EXPECT_EQ(sinks[i].tokens, expected[i]) << "stream " << i;
  EXPECT_GT(drafted, accepted);
  EXPECT_GT(accepted, 0u);
}

// A chain without a look in between is what one step after the other gives, drawn by the sampler.
TEST_F(CudaEngine, ChainsAtOnceEqualThoseStepByStep) {
  const auto drafter = make_assistant_backend(*backend_, *assistant_);
  const Geometry& g = model_->geometry();
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<ChainRow> rows;
  std::vector<std::vector<float>> hidden;
  for (const std::uint32_t n : {5u, 33u, 12u}) {
    caches.push_back(backend_->new_cache(KvPlan::make(g, n, n, choose_kv_type(*backend_, {}))));
    std::vector<std::int32_t> ids(n);
    for (std::uint32_t i = 0; i < n; ++i) ids[i] = static_cast<std::int32_t>(500 + (i * 37 + n) % 3000);
    const Span span[] = {{caches.back().get(), ids, {}, Wanted::kNothing, Wanted::kLast, true}};
    run_round(*backend_, g.layers.size(), span);
    hidden.push_back(backend_->read(Activation::kFinal));
  }
  for (std::size_t i = 0; i < caches.size(); ++i)
    rows.push_back({caches[i].get(), caches[i]->length(), static_cast<std::int32_t>(900 + i), hidden[i]});

  // The best token; drawn from many; from few, and those that are probable enough.
  const KeyedDraw draws[] = {
      {},
      {.temperature = 1.5, .top_k = 128, .seed = 9, .position = 70},
      {.temperature = 3, .top_k = 20, .top_p = 0.9, .min_p = 0.05, .seed = 5, .position = 3}};
  const auto sampler = [&](std::size_t i) {
    SamplingParams p;
    p.temperature = draws[i].temperature;
    p.top_k = draws[i].top_k;
    p.top_p = draws[i].top_p;
    p.min_p = draws[i].min_p;
    p.seed = draws[i].seed;
    return Sampler(p, {});
  };
  constexpr std::uint32_t kSteps = 4;
  std::vector<std::int32_t> taken(kSteps * rows.size());
  ASSERT_TRUE(run_chain(*drafter, rows, kSteps, draws, taken));
  std::vector<std::vector<ScoredToken>> found;
  for (std::uint32_t i = 0; i < kSteps * rows.size(); ++i) {
    const auto best = drafter->best_logits(i);
    found.emplace_back(best.begin(), best.end());
  }
  std::set<std::int32_t> tokens;
  bool best_alone = true;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    const std::vector<float> next = run_chain_step(*drafter, assistant_->geometry(), rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto best = drafter->best_logits(static_cast<std::uint32_t>(i));
      const std::vector<ScoredToken>& chain = found[step * rows.size() + i];
      ASSERT_EQ(best.size(), drafter->most_best());
      EXPECT_TRUE(std::equal(best.begin(), best.end(), chain.begin(), chain.end(),
                             [](const ScoredToken& a, const ScoredToken& b) {
                               return a.token == b.token && a.logit == b.logit;
                             }))
          << "step " << step << ", row " << i;
      const auto drawn = sampler(i).draw_from_best(best, draws[i].position + step);
      ASSERT_TRUE(drawn.has_value());
      EXPECT_EQ(taken[step * rows.size() + i], *drawn) << "step " << step << ", row " << i;
      best_alone &= *drawn == best.front().token;
      rows[i].token = *drawn;
      tokens.insert(*drawn);
      hidden[i].assign(next.begin() + static_cast<std::ptrdiff_t>(i * g.hidden),
                       next.begin() + static_cast<std::ptrdiff_t>((i + 1) * g.hidden));
      rows[i].hidden = hidden[i];
    }
  }
  EXPECT_GT(tokens.size(), 5u);  // not the same one again and again
  EXPECT_FALSE(best_alone);
  EXPECT_FALSE(run_chain(*drafter, rows, 17, draws, taken));
}

// A chain that went on from a token which may not be drawn gives that one draft and no more.
TEST_F(CudaEngine, DraftsEndWhereTheSamplerTakesAnother) {
  const Geometry& g = model_->geometry();
  const std::vector<std::int32_t> ids = request(0, 1).prompt;
  const auto cache = backend_->new_cache(KvPlan::make(g, 64, 64, choose_kv_type(*backend_, {})));
  const Span span[] = {{cache.get(), ids, {}, Wanted::kNothing, Wanted::kLast, true}};
  run_round(*backend_, g.layers.size(), span);
  const std::vector<float> hidden = backend_->read(Activation::kFinal);
  std::vector<std::int32_t> tokens = ids;
  tokens.push_back(900);
  MtpDrafter drafter(*assistant_, *backend_);
  const auto drafted = [&](std::vector<std::int32_t> suppressed) {
    const auto state = drafter.open();
    drafter.absorb(*state, {tokens, 1, hidden});
    SamplingParams greedy;
    greedy.temperature = 0;
    Sampler sampler(greedy, suppressed);
    DraftTurn turn;
    turn.state = state.get();
    turn.cache = cache.get();
    turn.tokens = tokens;
    turn.most = 4;
    turn.sampler = &sampler;
    drafter.propose(std::span(&turn, 1));
    return turn.drafts;
  };
  const std::vector<std::int32_t> free = drafted({});
  ASSERT_EQ(free.size(), 4u);
  const std::vector<std::int32_t> other = drafted({free[0]});
  ASSERT_EQ(other.size(), 1u);
  EXPECT_NE(other[0], free[0]);
}

}  // namespace
}  // namespace gem
