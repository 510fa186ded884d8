// What the tests of kept prompts share: a tiny model on one thread, engines over it, requests and caches.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/collector.h"
#include "engine/engine.h"
#include "golden.h"

namespace gem::testing {

using Tokens = std::vector<std::int32_t>;

class KeptPrompts : public ::testing::TestWithParam<KvType> {
 protected:
  static constexpr std::uint32_t kChunk = 24;

  void SetUp() override {
    const auto path = golden_file("models/dense-a/q4_0.gguf");
    if (!path) GTEST_SKIP() << "golden model not at hand";
    model_ = Model::load(*path, {.any_geometry = true});
    backend_ = make_backend(BackendKind::kCpu, *model_, 1);
    window_ = model_->geometry().window;
  }

  Engine engine(PromptCache* kept, std::uint32_t chunk = kChunk) {
    return Engine(*model_, *backend_,
                  {.context = model_->geometry().context,
                   .chunk = chunk,
                   .max_streams = 1,
                   .kv_type = GetParam(),
                   .prompt_cache = kept});
  }

  Tokens tokens(std::uint32_t seed, std::size_t n) const {
    std::mt19937 random(seed);
    Tokens out(n);
    for (std::int32_t& t : out) t = static_cast<std::int32_t>(random() % model_->geometry().vocab);
    return out;
  }

  static Tokens joined(Tokens first, const Tokens& more) {
    first.insert(first.end(), more.begin(), more.end());
    return first;
  }

  static GenerationRequest request(Tokens prompt, std::uint32_t reply) {
    GenerationRequest r;
    r.prompt = std::move(prompt);
    r.max_tokens = reply;
    r.sampling.seed = 7;
    r.logprobs = 0;
    return r;
  }

  // Serves `r` in the place of `state`, as a slot of the server would.
  std::shared_ptr<Stream> serve(Engine& with, const GenerationRequest& r, Collector& sink, KeptState& state) {
    with.resume_from_cache(state, r.prompt);
    const auto stream = with.open(r, sink, std::move(state));
    with.run(*stream);
    state = stream->take_state();
    return stream;
  }

  void expect_fresh(const GenerationRequest& r, const Collector& found) {
    Engine plain = engine(nullptr);
    Collector fresh;
    plain.run(*plain.open(r, fresh));
    EXPECT_EQ(found.tokens, fresh.tokens);
    EXPECT_EQ(found.logprobs, fresh.logprobs);
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  std::uint32_t window_ = 0;
};

// Caches of `n` positions with the given tokens, without a model's rounds.
inline std::unique_ptr<KvCache> filled(Backend& backend, const KvPlan& plan, std::uint32_t n) {
  auto cache = backend.new_cache(plan);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  while (cache->length() < n) {
    const std::uint32_t rows = std::min(plan.max_span, n - cache->length());
    cache->prepare(rows);
    for (std::uint32_t p = cache->length(); p < cache->length() + rows; ++p) {
      for (std::uint32_t layer = 0; layer < plan.layers.size(); ++layer) {
        std::vector<float> key(plan.layers[layer].width), value(plan.layers[layer].width);
        for (float& x : key) x = normal(random);
        for (float& x : value) x = normal(random);
        EXPECT_TRUE(cache->write_row(layer, p, key, value));
      }
    }
    cache->advance(rows);
  }
  return cache;
}

}  // namespace gem::testing
