// Sessions: how many streams fit, and what a plan without room for everything leaves out.
#include "engine/session.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "engine/wrapped_backend.h"
#include "golden.h"

namespace gem {
namespace {

const std::string kDemo = std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf";

TEST(Session, AsManyStreamsAsFitUpToFour) {
  const auto model = Model::load(kDemo);
  const auto backend = make_backend(BackendKind::kCpu, *model, 1);
  MemoryOptions options{.context = 2048};
  const auto total = [&](std::uint32_t streams) {
    MemoryOptions o = options;
    o.streams = streams;
    return plan_memory(*model, *backend, o).total();
  };
  EXPECT_LT(total(2), total(3));
  EXPECT_EQ(default_streams(*model, *backend, options, total(3)), 3u);
  EXPECT_EQ(default_streams(*model, *backend, options, total(3) - 1), 2u);
  EXPECT_EQ(default_streams(*model, *backend, options, total(1)), 1u);
  EXPECT_EQ(default_streams(*model, *backend, options, total(100)), 4u);
  EXPECT_EQ(default_streams(*model, *backend, options, total(100), 7), 7u);
  EXPECT_EQ(default_streams(*model, *backend, options, 0), 1u) << "whether one fits is not decided here";
  EXPECT_EQ(default_streams(*model, *backend, options, std::nullopt), 4u);

  options.streams = 1;
  const MemoryPlan plan = plan_memory(*model, *backend, options);
  EXPECT_EQ(default_prompt_cache(plan, plan.total() - 1), 0u);
  EXPECT_EQ(default_prompt_cache(plan, plan.total() + 1000), 500u);
  EXPECT_EQ(default_prompt_cache(plan, std::uint64_t{1} << 40), std::uint64_t{8} << 30);
  EXPECT_EQ(default_prompt_cache(plan, std::nullopt), std::uint64_t{8} << 30);
}

TEST(Session, TheNumberOfStreamsMayBeLeftOpen) {
  SessionOptions options;
  options.model = kDemo;
  options.threads = 1;
  options.context = 1024;
  options.streams = 0;
  const auto session = Session::open(options);
  EXPECT_EQ(session->engine().options().max_streams, session->memory().streams);
  EXPECT_GE(session->memory().streams, 1u);
  EXPECT_LE(session->memory().streams, 4u);
}

// A checkpoint keeps a window of slots and a margin of every sliding layer; nothing where no ring comes
// round.
TEST(Session, ThePlanCountsCheckpoints) {
  const auto model = Model::load(kDemo);
  const auto backend = make_backend(BackendKind::kCpu, *model, 1);
  const Geometry& g = model->geometry();
  std::uint64_t slot = 0;  // key and value rows of all sliding layers
  for (std::size_t i = 0; i < g.layers.size(); ++i) {
    if (g.layers[i].kind == LayerKind::kSliding) slot += std::uint64_t{2} * g.kv_width(i) * sizeof(float);
  }
  MemoryOptions options{.context = 2048, .streams = 3, .chunk = 64};
  const MemoryPlan plan = plan_memory(*model, *backend, options);
  EXPECT_EQ(plan.kv_undo, slot * (g.window - 1 + KvPlan::kCheckpointMargin));
  options.checkpoints = false;
  const MemoryPlan without = plan_memory(*model, *backend, options);
  EXPECT_EQ(without.kv_undo, 0u);
  EXPECT_EQ(plan.total() - without.total(), 3 * plan.kv_undo);
  options = {.context = g.window + 64, .streams = 1, .chunk = 64};
  EXPECT_EQ(plan_memory(*model, *backend, options).kv_undo, 0u);
}

// The engine's caches and the plan have the type that was asked for, or the backend's first.
TEST(Session, TheKvTypeIsTheBackendsOrRefused) {
  SessionOptions options;
  options.model = kDemo;
  options.threads = 1;
  options.context = 256;
  EXPECT_EQ(Session::open(options)->memory().kv_type, KvType::kF32);
  const std::uint64_t f32 = Session::open(options)->memory().kv_stream;
  options.kv_type = KvType::kF16;
  const auto session = Session::open(options);
  EXPECT_EQ(session->engine().options().kv_type, KvType::kF16);
  EXPECT_EQ(2 * session->memory().kv_stream, f32);

  options.wrap_backend = [](std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
    testing::BackendHooks hooks;
    hooks.kv_types = {KvType::kF16, KvType::kBF16};
    return std::make_unique<testing::WrappedBackend>(std::move(inner), hooks);
  };
  options.kv_type = std::nullopt;
  EXPECT_EQ(Session::open(options)->engine().options().kv_type, KvType::kF16);
  options.kv_type = KvType::kF16Full;
  try {
    Session::open(options);
    FAIL() << "the backend has no f16-full";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_EQ(std::string(e.what()), "the cpu backend has no KV cache type f16-full (it has f16, bf16)");
  }
}

// Backends with so much memory of their own, one after the other; 0: none of its own.
std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> with_memory(
    std::vector<std::uint64_t> memories) {
  auto next = std::make_shared<std::size_t>(0);
  return [=](std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
    testing::BackendHooks hooks;
    if (const std::uint64_t memory = memories.at((*next)++); memory != 0) hooks.device_memory = memory;
    return std::make_unique<testing::WrappedBackend>(std::move(inner), hooks);
  };
}

TEST(Session, WhatADeviceDoesNotHoldRunsOnTheCpuUnlessTheDeviceWasAskedFor) {
  std::vector<std::string> notices;
  SessionOptions options;
  options.model = kDemo;
  options.threads = 1;
  options.backend_is_default = true;
  options.notice = [&](const std::string& text) { notices.push_back(text); };
  options.wrap_backend = with_memory({1'000'000, 0});
  const auto session = Session::open(options);
  EXPECT_FALSE(session->backend().device_memory());
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("runs on the cpu"), std::string::npos) << notices[0];
  EXPECT_NE(notices[0].find("1000000 are available"), std::string::npos) << notices[0];
  auto request = session->request({2, 500, 600}, session->default_sampling());
  request.max_tokens = 3;
  EXPECT_NO_THROW(session->engine().check(request));

  notices.clear();
  options.wrap_backend = with_memory({std::uint64_t{1} << 40});
  EXPECT_TRUE(Session::open(options)->backend().device_memory());
  EXPECT_TRUE(notices.empty());

  options.backend_is_default = false;
  options.wrap_backend = with_memory({1'000'000});
  try {
    Session::open(options);
    FAIL() << "a device that was asked for is not left silently";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kRefused);
    EXPECT_NE(std::string(e.what()).find("the device's memory"), std::string::npos) << e.what();
  }
}

// A copy of the small model that says it was trained for 65,536 positions.
std::string with_long_context(const std::string& from) {
  std::ifstream in(from, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::string key = "gemma4.context_length";
  const std::size_t at = bytes.find(key);
  EXPECT_NE(at, std::string::npos);
  const std::uint32_t context = 65536;
  std::memcpy(bytes.data() + at + key.size() + 4, &context, sizeof context);  // after the type
  const std::string path = ::testing::TempDir() + "gem-long-context.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(Session, AContextThatNobodyAskedForIsAsLongAsFits) {
  const auto golden = testing::golden_file("models/dense-a/q4_0.gguf");
  if (!golden) GTEST_SKIP() << "golden model not at hand";
  std::vector<std::string> notices;
  SessionOptions options;
  options.model = with_long_context(*golden);
  options.any_geometry = true;
  options.threads = 1;
  options.notice = [&](const std::string& text) { notices.push_back(text); };
  std::uint64_t totals[3] = {};
  for (int i = 0; i < 3; ++i) {
    options.context = 32768u >> i;
    totals[i] = Session::open(options)->memory().total();
  }
  ASSERT_GT(totals[0], totals[1]);
  ASSERT_GT(totals[1], totals[2]);
  EXPECT_TRUE(notices.empty());
  options.context = 0;
  EXPECT_EQ(Session::open(options)->engine().options().context, kDefaultContext);
  for (int i = 1; i < 3; ++i) {
    notices.clear();
    options.wrap_backend = with_memory({totals[i] + 1000});
    const std::uint32_t context = 32768u >> i;
    EXPECT_EQ(Session::open(options)->engine().options().context, context);
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_EQ(notices[0],
              "a context of " + std::to_string(context) + ": the memory does not hold one of 32768");
  }
  options.wrap_backend = with_memory({totals[2] - 2'000'000});
  EXPECT_THROW(Session::open(options), Error);
  // What was asked for is not changed.
  options.wrap_backend = with_memory({totals[1]});
  options.context = 32768;
  EXPECT_THROW(Session::open(options), Error);
}

}  // namespace
}  // namespace gem
