// Replies of the bundled model on a CUDA device: drafted as plain, together as alone, resumed as fresh. (The
// same with more streams and settings on the CPU: draft_test.cpp, engine_test.cpp.)
#include <gtest/gtest.h>

#include "backend/cuda/cuda.h"
#include "engine/collector.h"
#include "engine/draft/combined.h"
#include "engine/draft/mtp.h"
#include "engine/engine.h"
#include "model/assistant.h"
#include "model/model.h"

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

}  // namespace
}  // namespace gem
