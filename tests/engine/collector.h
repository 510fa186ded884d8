// A sink that keeps what it is told.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace gem::testing {

class Collector : public StreamSink {
 public:
  void on_prompt(std::uint32_t done, std::uint32_t total) override {
    EXPECT_LE(done, total);
    EXPECT_GT(done, prompt_done);
    prompt_done = done;
  }
  bool on_token(const DrawnToken& drawn) override {
    EXPECT_EQ(drawn.forced, tokens.size() == force_at);
    tokens.push_back(drawn.token);
    logprobs.push_back(drawn.logprob);
    tops.emplace_back(drawn.top.begin(), drawn.top.end());
    return tokens.size() != stop_after;
  }
  void on_finish(FinishReason r) override {
    EXPECT_FALSE(finished);
    finished = true;
    reason = r;
  }
  std::optional<std::int32_t> forced_token() override {
    return tokens.size() == force_at ? std::optional(force) : std::nullopt;
  }
  std::vector<std::int32_t> tokens;
  std::vector<double> logprobs;
  std::vector<std::vector<TokenLogprob>> tops;
  std::size_t force_at = ~std::size_t{0};
  std::int32_t force = 0;
  std::uint32_t prompt_done = 0;
  std::size_t stop_after = 0;
  bool finished = false;
  FinishReason reason = FinishReason::kFailed;
};

}  // namespace gem::testing
