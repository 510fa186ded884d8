// Memory as planned and as taken: a model whose caches are large and whose weights are few, in processes of
// its own.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "base/system_memory.h"
#include "engine/collector.h"
#include "engine/session.h"
#include "formats/temporary_folder.h"
#include "model/synth.h"

namespace gem {
namespace {

using testing::Collector;

// Sanitizers keep a shadow of all memory, and hold on to what was freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

constexpr std::uint32_t kWindow = 16, kChunk = 32, kStreams = 8;

// 64 KB of f32 keys and values a position in full layers, 4 MB of weights.
Profile wide_caches() {
  Profile p = *find_profile("demo");
  p.name = "custom";
  p.title = "wide caches";
  Geometry& g = p.geometry;
  g.hidden = 64;
  g.ffn = 128;
  g.heads = 4;
  g.window = kWindow;
  g.vocab = 4096;
  g.context = 512;
  g.embedding_multiplier = 8;
  const LayerGeometry sliding{.kind = LayerKind::kSliding, .head_dim = 256, .kv_heads = 4};
  const LayerGeometry full{.kind = LayerKind::kFull, .head_dim = 512, .kv_heads = 4, .value_from_key = true};
  g.layers = {sliding, full, sliding, full, full, full};
  return p;
}

class Memory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "memory is not what it is, under a sanitizer";
    model_ = folder_.file("wide.gguf");
    write_synthetic(wide_caches(), model_, {.matrices = StorageType::kQ8_0, .table = StorageType::kQ8_0},
                    [](std::uint64_t, std::uint64_t) {});
  }

  std::unique_ptr<Session> open(std::uint32_t context, std::uint32_t streams, KvType type,
                                std::uint64_t prompt_cache = 0) const {
    SessionOptions options;
    options.model = model_;
    options.threads = 2;
    options.context = context;
    options.chunk = kChunk;
    options.streams = streams;
    options.any_geometry = true;
    options.kv_type = type;
    options.prompt_cache = prompt_cache;
    return Session::open(options);
  }

  static GenerationRequest request(std::uint32_t seed, std::uint32_t prompt, std::uint32_t reply) {
    std::mt19937 random(seed);
    GenerationRequest r;
    for (std::uint32_t i = 0; i < prompt; ++i) r.prompt.push_back(static_cast<std::int32_t>(random() % 512));
    r.max_tokens = reply;
    return r;
  }

  // What `work` returns, computed in a process that has done nothing else.
  using Numbers = std::array<std::uint64_t, 2>;
  static Numbers in_a_child(const std::function<Numbers()>& work) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      Numbers numbers{};
      try {
        numbers = work();
      } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
      }
      const bool told = ::write(ends[1], numbers.data(), sizeof numbers) == sizeof numbers;
      ::_exit(told ? 0 : 1);
    }
    ::close(ends[1]);
    Numbers numbers{};
    EXPECT_EQ(::read(ends[0], numbers.data(), sizeof numbers), static_cast<ssize_t>(sizeof numbers));
    ::close(ends[0]);
    ::waitpid(child, nullptr, 0);
    return numbers;
  }

  testing::TemporaryFolder folder_;
  std::string model_;
};

// All slots full, with replies long enough that their undo logs are.
TEST_F(Memory, ThePlanIsWithin5PercentOfThePeak) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kF16Full}) {
    const bool all = type == KvType::kF32 || type == KvType::kF16;  // the others are as large as these
    for (const std::uint32_t context : all ? std::vector{224u, 256u, 320u, 384u} : std::vector{256u}) {
      const Numbers found = in_a_child([&]() -> Numbers {
        const auto session = open(context, kStreams, type);
        Engine& engine = session->engine();
        std::vector<Collector> sinks(kStreams);
        std::vector<std::shared_ptr<Stream>> streams;
        constexpr std::uint32_t kReply = 80;
        for (std::uint32_t i = 0; i < kStreams; ++i)
          streams.push_back(engine.open(request(i, context - kReply, 0), sinks[i]));
        while (engine.step()) {
        }
        for (const auto& stream : streams) {
          if (stream->position() + 1 < context) return {0, 0};
        }
        return {session->memory().total(), peak_resident_memory()};
      });
      const auto planned = static_cast<double>(found[0]);
      const auto peak = static_cast<double>(found[1]);
      EXPECT_GT(planned, 40e6);
      EXPECT_NEAR(planned / peak, 1, 0.05) << kv_type_name(type) << ", context " << context << ": planned "
                                           << found[0] << ", taken " << found[1];
    }
  }
}

// Conversations that grow, branch and are forgotten, over one slot: once the prompt cache is full, nothing
// grows any more.
TEST_F(Memory, FiftyTurnsTakeNoMoreThanTwentyFive) {
  const Numbers found = in_a_child([&]() -> Numbers {
    const auto session = open(512, 1, KvType::kF32, 50 << 20);
    Engine& engine = session->engine();
    KeptState slot;
    std::vector<std::int32_t> said;
    Numbers most{};  // after a turn of the first half, of the second
    for (std::uint32_t turn = 0; turn < 50; ++turn) {
      if (said.size() > 350) said.resize(turn % 3 == 0 ? 0 : 150);
      GenerationRequest r = request(turn, 90, 10);
      r.prompt.insert(r.prompt.begin(), said.begin(), said.end());
      Collector sink;
      engine.resume_from_cache(slot, r.prompt);
      const auto stream = engine.open(r, sink, std::move(slot));
      engine.run(*stream);
      said = stream->tokens();
      slot = stream->take_state();
      most[turn / 25] = std::max(most[turn / 25], resident_memory());
      if (turn == 24 && session->prompt_cache()->status().evicted == 0) return {0, 0};
    }
    return most;
  });
  EXPECT_GT(found[0], 60e6) << "the cap was not reached";
  EXPECT_LT(static_cast<double>(found[1]), static_cast<double>(found[0]) * 1.02)
      << found[0] << " " << found[1];
}

}  // namespace
}  // namespace gem
