// Counters, histograms and their Prometheus text.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

namespace gem::server {
namespace {

// Sample -> value, after a check of every line against the text format.
std::map<std::string, double> parse(const std::string& text) {
  static const std::regex comment(
      R"(# (HELP [a-zA-Z_:][a-zA-Z0-9_:]* \S.*|TYPE [a-zA-Z_:][a-zA-Z0-9_:]* (counter|gauge|histogram)))");
  static const std::regex sample(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-z_]+="([^"\\\n]|\\.)*"(,[a-z_]+="([^"\\\n]|\\.)*")*\})?) ([0-9.e+-]+))re");
  std::map<std::string, double> values;
  std::set<std::string> typed;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (line.starts_with('#')) {
      EXPECT_TRUE(std::regex_match(line, match, comment)) << line;
      if (line.starts_with("# TYPE")) {
        const std::string name = line.substr(7, line.find(' ', 7) - 7);
        EXPECT_TRUE(typed.insert(name).second) << "twice: " << line;
      }
      continue;
    }
    if (!std::regex_match(line, match, sample)) {
      ADD_FAILURE() << "no sample: " << line;
      continue;
    }
    std::string family = line.substr(0, line.find_first_of("{ "));
    const bool known = typed.contains(family) ||
                       typed.contains(std::regex_replace(family, std::regex("_(bucket|sum|count)$"), ""));
    EXPECT_TRUE(known) << "without a type: " << line;
    EXPECT_TRUE(values.emplace(match[1], std::stod(match[6])).second) << "twice: " << line;
  }
  return values;
}

GenerationResult result(FinishReason reason, std::uint32_t reused, std::uint32_t prompt,
                        std::uint32_t reply) {
  GenerationResult r;
  r.reason = reason;
  r.times = {.reused = reused,
             .prompt_tokens = prompt,
             .reply_tokens = reply,
             .prompt_seconds = 0.5,
             .decode_seconds = 2};
  return r;
}

TEST(Metrics, HistogramsCountWhatIsAtMostABound) {
  Histogram h(std::array{1.0, 10.0});
  for (const double v : {0.5, 1.0, 1.5, 10.0, 11.0, 1e300}) h.observe(v);
  h.observe(std::numeric_limits<double>::quiet_NaN());
  const Histogram::Snapshot s = h.snapshot();
  EXPECT_EQ(s.cumulative, (std::vector<std::uint64_t>{2, 4, 6}));
  EXPECT_EQ(s.count(), 6u);
  EXPECT_DOUBLE_EQ(s.sum, 0.5 + 1 + 1.5 + 10 + 11 + 1e300);
}

TEST(Metrics, WhatWasToldIsInTheText) {
  Metrics m({});
  m.on_queued();
  m.on_queued();
  m.on_started(0.02, 12, 4);
  m.on_first_token(0.3);
  m.on_token(0.01);
  m.on_token(0.02);
  m.on_round(8, 1, 0.2);
  m.on_round(1, 3, 0.1);
  GenerationResult calls = result(FinishReason::kStop, 4, 8, 3);
  calls.reply.finish_reason = "tool_calls";
  m.on_finished(calls, 2.5);
  m.on_finished(result(FinishReason::kStop, 0, 100, 1), 1);
  m.on_finished(result(FinishReason::kLength, 0, 1, 1), 1);
  m.on_finished(result(FinishReason::kContext, 0, 1, 1), 1);
  m.on_finished(result(FinishReason::kCancelled, 0, 0, 0), 1);
  m.on_finished(result(FinishReason::kFailed, 0, 0, 0), 1);
  ServiceStatus status;
  status.running = 2;
  status.queued = 5;
  status.kv_used = 25;
  status.kv_total = 100;
  status.slots.resize(3);
  auto v = parse(m.text(&status));
  EXPECT_EQ(v.at("gem_requests_accepted_total"), 2);
  EXPECT_EQ(v.at("gem_requests_running"), 2);
  EXPECT_EQ(v.at("gem_requests_queued"), 5);
  EXPECT_EQ(v.at("gem_slots"), 3);
  EXPECT_EQ(v.at("gem_requests_total{outcome=\"stop\"}"), 1);
  EXPECT_EQ(v.at("gem_requests_total{outcome=\"tool_calls\"}"), 1);
  EXPECT_EQ(v.at("gem_requests_total{outcome=\"length\"}"), 2);
  EXPECT_EQ(v.at("gem_requests_total{outcome=\"cancelled\"}"), 1);
  EXPECT_EQ(v.at("gem_requests_total{outcome=\"failed\"}"), 1);
  EXPECT_EQ(v.at("gem_prompt_tokens_total"), 110);
  EXPECT_EQ(v.at("gem_prompt_tokens_cached_total"), 4);
  EXPECT_EQ(v.at("gem_generated_tokens_total"), 3);
  EXPECT_EQ(v.at("gem_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(v.at("gem_time_to_first_token_seconds_bucket{le=\"0.25\"}"), 0);
  EXPECT_EQ(v.at("gem_time_to_first_token_seconds_bucket{le=\"0.5\"}"), 1);
  EXPECT_EQ(v.at("gem_inter_token_seconds_count"), 2);
  EXPECT_DOUBLE_EQ(v.at("gem_inter_token_seconds_sum"), 0.03);
  EXPECT_EQ(v.at("gem_request_seconds_count"), 6);
  EXPECT_EQ(v.at("gem_queue_seconds_count"), 1);
  EXPECT_EQ(v.at("gem_request_prompt_tokens_sum"), 12);
  EXPECT_EQ(v.at("gem_request_prompt_tokens_bucket{le=\"+Inf\"}"), 1);
  // llama-server's names
  EXPECT_EQ(v.at("llamacpp:prompt_tokens_total"), 110);
  EXPECT_EQ(v.at("llamacpp:tokens_predicted_total"), 3);
  EXPECT_EQ(v.at("llamacpp:requests_deferred"), 5);
  EXPECT_EQ(v.at("llamacpp:n_tokens_max"), 101);
  EXPECT_EQ(v.at("llamacpp:n_busy_slots_per_decode"), 2);
  for (const auto& [name, value] : v) EXPECT_FALSE(name.starts_with("vllm")) << name;
}

TEST(Metrics, NamesOfVllm) {
  Metrics m({.vllm_names = true, .model_name = "a\"b\\c\n"});
  m.on_started(0.02, 12, 4);
  m.on_finished(result(FinishReason::kStop, 4, 8, 3), 1);
  ServiceStatus status;
  status.running = 2;
  status.queued = 5;
  status.kv_used = 25;
  status.kv_total = 100;
  auto v = parse(m.text(&status));
  const std::string label = R"(model_name="a\"b\\c\n")";
  EXPECT_EQ(v.at("vllm:num_requests_running{" + label + "}"), 2);
  EXPECT_EQ(v.at("vllm:num_requests_waiting{" + label + "}"), 5);
  EXPECT_EQ(v.at("vllm:kv_cache_usage_perc{" + label + "}"), 0.25);
  EXPECT_EQ(v.at("vllm:prompt_tokens_total{" + label + "}"), 12);
  EXPECT_EQ(v.at("vllm:prefix_cache_hits_total{" + label + "}"), 4);
  EXPECT_EQ(v.at("vllm:request_success_total{" + label + ",finished_reason=\"stop\"}"), 1);
  EXPECT_EQ(v.at("vllm:e2e_request_latency_seconds_bucket{" + label + ",le=\"+Inf\"}"), 1);
}

TEST(Metrics, LoadingHasNoService) {
  auto v = parse(Metrics({}).text(nullptr));
  EXPECT_EQ(v.at("gem_model_loaded"), 0);
  EXPECT_EQ(v.at("gem_requests_running"), 0);
}

TEST(Metrics, CountedFromManyThreadsNothingIsLost) {
  Metrics m({});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      // Without a lock, so that additions meet; then with one.
      for (int i = 0; i < 20'000; ++i) m.on_token(0.5);
      for (int i = 0; i < 1000; ++i) {
        m.on_exchange("GET", "/health", 200);
        if (i % 100 == 0) (void)m.text(nullptr);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  auto v = parse(m.text(nullptr));
  EXPECT_EQ(v.at("gem_generated_tokens_total"), 80'000);
  EXPECT_EQ(v.at("gem_inter_token_seconds_sum"), 40'000);
  EXPECT_EQ(v.at("gem_http_requests_total{method=\"GET\",route=\"/health\",code=\"200\"}"), 4000);
}

}  // namespace
}  // namespace gem::server
