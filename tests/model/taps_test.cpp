// Taps: the residual after named layers, for the rows that spans ask for, against what an observer of the
// schedule's stages reads there.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "model/model.h"
#include "model/schedule.h"

namespace gem {
namespace {

class TapsTest : public ::testing::TestWithParam<BackendKind> {
 protected:
  static void SetUpTestSuite() {
    model_ = Model::load(std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf");
  }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override { backend_ = make_backend(GetParam(), *model_, 2); }

  struct Stream {
    std::unique_ptr<KvCache> cache;
    std::vector<std::int32_t> tokens;
    Wanted taps = Wanted::kNothing;
    bool prompt = false;
  };
  // Three streams of a round: a prompt's chunk, a verify window and a decode step, each behind some tokens.
  std::vector<Stream> streams() {
    std::vector<Stream> all;
    const std::uint32_t rows[] = {7, 3, 1};
    for (std::uint32_t i = 0; i < 3; ++i) {
      Stream s{backend_->new_cache(KvPlan::make(model_->geometry(), 64, 16)), {}, Wanted::kNothing, i == 0};
      const std::vector<std::int32_t> before(2 + i, static_cast<std::int32_t>(300 + i));
      const Span span[] = {{s.cache.get(), before, {}, Wanted::kNothing, Wanted::kNothing, true}};
      run_round(*backend_, layers(), span);
      for (std::uint32_t r = 0; r < rows[i]; ++r)
        s.tokens.push_back(static_cast<std::int32_t>(400 + 20 * i + r));
      all.push_back(std::move(s));
    }
    return all;
  }
  static std::vector<Span> spans(const std::vector<Stream>& streams) {
    std::vector<Span> all;
    for (const Stream& s : streams)
      all.push_back({s.cache.get(), s.tokens, {}, Wanted::kLast, Wanted::kNothing, s.prompt, s.taps});
    return all;
  }
  static std::size_t layers() { return model_->geometry().layers.size(); }
  std::vector<float> logits(std::uint32_t index) const {
    const auto row = backend_->logits(index);
    return {row.begin(), row.end()};
  }

  static inline std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
};

TEST_P(TapsTest, AreTheSchedulesResidualOfTheRowsAsked) {
  const std::size_t width = model_->geometry().hidden;
  const auto last = static_cast<std::uint32_t>(layers() - 1);
  const std::vector<std::uint32_t> wanted = {last, 0, 2};  // in any order, the first and the last among them

  std::map<std::uint32_t, std::vector<float>> residual;  // [11 rows, width] after each layer
  auto observed = streams();
  run_round(*backend_, layers(), spans(observed), [&](Stage stage, std::uint32_t layer, bool after) {
    if (stage == Stage::kFfnOutput && after) residual[layer] = backend_->read(Activation::kResidual);
  });
  const std::vector<float> untapped = logits(1);
  ASSERT_NE(residual.at(0), residual.at(2));

  auto tapped = streams();
  tapped[0].taps = Wanted::kAll;
  tapped[1].taps = Wanted::kLast;
  Taps taps{wanted, {}};
  const std::vector<SpanResult> results = run_round(*backend_, layers(), spans(tapped), {}, &taps);
  EXPECT_EQ(logits(1), untapped) << "a tap changes nothing";
  ASSERT_EQ(results[0].taps, 7u);
  ASSERT_EQ(results[1].taps, 1u);
  EXPECT_EQ(results[1].first_tap, 7u);
  EXPECT_EQ(results[2].taps, 0u);
  ASSERT_EQ(taps.rows.size(), 8 * wanted.size() * width);
  const std::uint32_t rows[] = {0, 1, 2, 3, 4, 5, 6, 9};  // of the round
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t t = 0; t < wanted.size(); ++t) {
      for (std::size_t c = 0; c < width; ++c) {
        ASSERT_EQ(taps.rows[(i * wanted.size() + t) * width + c], residual.at(wanted[t])[rows[i] * width + c])
            << "row " << rows[i] << " after layer " << wanted[t];
      }
    }
  }

  // Law 1 holds for taps too: the window alone has the same.
  auto alone = streams();
  std::vector<Stream> one;
  one.push_back(std::move(alone[1]));
  one[0].taps = Wanted::kLast;
  Taps few{wanted, {}};
  run_round(*backend_, layers(), spans(one), {}, &few);
  EXPECT_TRUE(std::equal(few.rows.begin(), few.rows.end(),
                         taps.rows.begin() + static_cast<std::ptrdiff_t>(7 * wanted.size() * width),
                         taps.rows.end()));
}

TEST_P(TapsTest, ALayerThatIsNoneIsRefused) {
  auto all = streams();
  const std::vector<std::uint32_t> wanted = {0, static_cast<std::uint32_t>(layers())};
  Taps taps{wanted, {}};
  try {
    run_round(*backend_, layers(), spans(all), {}, &taps);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(e.what()).find("after layer"), std::string::npos) << e.what();
  }
  EXPECT_EQ(all[0].cache->length(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Backends, TapsTest, ::testing::Values(BackendKind::kOracle, BackendKind::kCpu),
                         [](const auto& test) {
                           return test.param == BackendKind::kOracle ? "oracle" : "cpu";
                         });

}  // namespace
}  // namespace gem
