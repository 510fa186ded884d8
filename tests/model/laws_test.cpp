// Laws 1 and 2: a row's bits depend on its own stream alone, however many rows share the round and wherever a
// prompt was cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "backend/cuda/cuda.h"
#include "emulated.h"
#include "golden.h"
#include "model/model.h"
#include "model/schedule.h"

namespace gem {
namespace {

using Logits = std::vector<float>;
using Sizes = std::vector<std::size_t>;
using testing::full_or_quick;

class Laws : public ::testing::TestWithParam<std::tuple<const char*, BackendKind, KvType>> {
 protected:
  void SetUp() override {
    if (std::get<1>(GetParam()) == BackendKind::kCuda && cuda_devices().empty())
      GTEST_SKIP() << "no CUDA device";
    const auto path = testing::golden_model(std::get<0>(GetParam()));
    if (!path) GTEST_SKIP() << "golden model not at hand";
    model_ = Model::load(*path, {.any_geometry = true});
    backend_ = make_backend(std::get<1>(GetParam()), *model_, 2);
  }

  // An emulated one takes long: beside f16 it has one other KV type.
  static bool left_to_a_device(KvType other) {
    return testing::kEmulated && std::get<2>(GetParam()) != KvType::kF16 && std::get<2>(GetParam()) != other;
  }
  std::vector<std::int32_t> tokens(std::uint32_t seed, std::size_t n) const {
    std::mt19937 random(seed);
    std::vector<std::int32_t> out(n);
    for (std::int32_t& t : out) t = static_cast<std::int32_t>(random() % model_->geometry().vocab);
    return out;
  }

  std::unique_ptr<KvCache> cache(std::uint32_t span = 64) const {
    return backend_->new_cache(KvPlan::make(model_->geometry(), 256, span, std::get<2>(GetParam())));
  }

  // Rows of `ids` from the cache's length on, in spans of `chunk`; the logits of every row.
  Logits feed(KvCache& c, std::span<const std::int32_t> ids, std::size_t chunk) {
    Logits out;
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      const Span span[] = {
          {&c, ids.subspan(at, std::min(chunk, ids.size() - at)), {}, Wanted::kAll, Wanted::kNothing}};
      run_round(*backend_, model_->geometry().layers.size(), span);
      const Logits part = backend_->read(Activation::kLogits);
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
};

TEST_P(Laws, ChunkBordersNeverChangeARow) {
  if (left_to_a_device(testing::kSanitized ? KvType::kF16 : KvType::kF16Full)) GTEST_SKIP() << "on a device";
  const std::vector<std::int32_t> ids = tokens(1, 90);  // nearly three windows
  const auto whole = cache(128);
  const Logits expected = feed(*whole, ids, 90);
  for (const std::size_t chunk : full_or_quick<Sizes>({1, 2, 3, 7, 16, 31, 64}, {7, 31})) {
    const auto c = cache();
    EXPECT_TRUE(feed(*c, ids, chunk) == expected) << "chunks of " << chunk;
  }
}

TEST_P(Laws, StreamsThatShareARoundKeepTheirBits) {
  if (left_to_a_device(KvType::kF16)) GTEST_SKIP() << "on a device";
  constexpr std::size_t kStreams = full_or_quick(17, 3);
  // Every stream alone: a prompt, then decode rows.
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<Logits> expected;
  for (std::uint32_t s = 0; s < kStreams; ++s) {
    ids.push_back(tokens(100 + s, 3 + 5 * s % 47 + 12));
    const auto c = cache();
    expected.push_back(feed(*c, ids.back(), 8));
  }
  // All together: stream s joins at round s, brings spans of changing length, and leaves when it is done.
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<Logits> found(kStreams);
  for (std::size_t s = 0; s < kStreams; ++s) caches.push_back(cache());
  const std::size_t vocab = model_->geometry().vocab;
  for (std::size_t round = 0;; ++round) {
    std::vector<Span> spans;
    std::vector<std::size_t> who;
    for (std::size_t s = 0; s < kStreams; ++s) {
      const std::size_t left = ids[s].size() - caches[s]->length();
      if (round < s || left == 0) continue;
      const std::size_t rows = std::min(left, 1 + (round + 3 * s) % 5);
      spans.push_back({caches[s].get(),
                       std::span(ids[s]).subspan(caches[s]->length(), rows),
                       {},
                       Wanted::kAll,
                       Wanted::kNothing});
      who.push_back(s);
    }
    if (spans.empty() && round > kStreams) break;
    const std::vector<SpanResult> results = run_round(*backend_, model_->geometry().layers.size(), spans);
    for (std::size_t i = 0; i < who.size(); ++i) {
      for (std::uint32_t r = 0; r < results[i].logits; ++r) {
        const std::span<const float> row = backend_->logits(results[i].first_logits + r);
        found[who[i]].insert(found[who[i]].end(), row.begin(), row.end());
      }
    }
  }
  for (std::size_t s = 0; s < kStreams; ++s) {
    EXPECT_EQ(found[s].size(), ids[s].size() * vocab);
    EXPECT_TRUE(found[s] == expected[s]) << "stream " << s;
  }
}

TEST_P(Laws, RollingBackForgetsWithoutATrace) {
  const std::vector<std::int32_t> ids = tokens(5, 80);
  const std::vector<std::int32_t> wrong = tokens(6, 40);
  const auto fresh = cache();
  const Logits expected = feed(*fresh, ids, 16);
  const std::size_t vocab = model_->geometry().vocab;
  for (const std::size_t start : full_or_quick<Sizes>({1, 20, 33, 64}, {33})) {
    const auto at = static_cast<std::uint32_t>(start);
    for (const std::size_t rows : full_or_quick<Sizes>({1, 2, 17, 40}, {17})) {
      const auto c = cache();
      feed(*c, std::span(ids).subspan(0, at), 16);
      feed(*c, std::span(wrong).subspan(0, rows), 64);
      ASSERT_TRUE(c->can_roll_back_to(at));
      c->roll_back_to(at);
      const Logits rest = feed(*c, std::span(ids).subspan(at), 16);
      EXPECT_TRUE(
          std::equal(rest.begin(), rest.end(), expected.begin() + static_cast<std::ptrdiff_t>(at * vocab)))
          << at << " " << rows;
    }
  }
}

TEST_P(Laws, ThreadsDoNotChangeBits) {
  if (std::get<1>(GetParam()) != BackendKind::kCpu) GTEST_SKIP() << "its threads are not the caller's";
  const std::vector<std::int32_t> ids = tokens(9, 40);
  const auto c = cache();
  const Logits expected = feed(*c, ids, 16);
  for (const unsigned threads : {1u, 3u, 5u}) {
    backend_ = make_backend(BackendKind::kCpu, *model_, threads);
    const auto again = cache();
    EXPECT_TRUE(feed(*again, ids, 16) == expected) << threads << " threads";
  }
}

// The type is what the caches have: other bits than f32's, and numbers near them.
TEST_P(Laws, EveryKvTypeIsNearF32AndNoOther) {
  const std::vector<std::int32_t> ids = tokens(11, 60);
  const auto c = cache();
  const Logits found = feed(*c, ids, 16);
  const auto plain = backend_->new_cache(KvPlan::make(model_->geometry(), 256, 64));
  const Logits f32 = feed(*plain, ids, 16);
  if (std::get<2>(GetParam()) == KvType::kF32) {
    EXPECT_TRUE(found == f32);
    return;
  }
  EXPECT_FALSE(found == f32);
  // f16 rounds to 2^-11, bf16 to 2^-8; logits are of the order of ten.
  double squares = 0;
  for (std::size_t i = 0; i < f32.size(); ++i)
    squares += (double{found[i]} - double{f32[i]}) * (double{found[i]} - double{f32[i]});
  const double rms = std::sqrt(squares / static_cast<double>(f32.size()));
  EXPECT_LT(rms, std::get<2>(GetParam()) == KvType::kBF16 ? 0.1 : 0.0125) << rms;
}

const auto kLawName = [](const auto& test) {
  const BackendKind kind = std::get<1>(test.param);
  std::string name = std::get<0>(test.param);
  name += kind == BackendKind::kCpu ? "_cpu" : kind == BackendKind::kCuda ? "_cuda" : "_oracle";
  if (std::get<2>(test.param) != KvType::kF32)
    name += "_" + std::string(kv_type_name(std::get<2>(test.param)));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
};

INSTANTIATE_TEST_SUITE_P(DenseA, Laws,
                         ::testing::Values(std::tuple("q4_0", BackendKind::kCpu, KvType::kF32),
                                           std::tuple("q8_0", BackendKind::kCpu, KvType::kF32),
                                           std::tuple("f16", BackendKind::kCpu, KvType::kF32),
                                           std::tuple("mlx-mixed", BackendKind::kCpu, KvType::kF32),
                                           std::tuple("mlx-q4g64", BackendKind::kCpu, KvType::kF32),
                                           std::tuple("q4_0", BackendKind::kOracle, KvType::kF32),
                                           std::tuple("q8_0", BackendKind::kCpu, KvType::kBF16),
                                           std::tuple("q4_0", BackendKind::kCpu, KvType::kF16),
                                           std::tuple("q8_0", BackendKind::kCpu, KvType::kF16Full)),
                         kLawName);

INSTANTIATE_TEST_SUITE_P(Cuda, Laws,
                         ::testing::Values(std::tuple("q4_0", BackendKind::kCuda, KvType::kF16),
                                           std::tuple("q8_0", BackendKind::kCuda, KvType::kF16),
                                           std::tuple("q4_0", BackendKind::kCuda, KvType::kF32),
                                           std::tuple("q8_0", BackendKind::kCuda, KvType::kBF16),
                                           std::tuple("q4_0", BackendKind::kCuda, KvType::kF16Full)),
                         kLawName);

}  // namespace
}  // namespace gem
