// Drafting as /metrics tells of it after requests over the API, against what a backend in between has seen.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>

#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <sstream>

#include "engine/wrapped_backend.h"
#include "server/api_support.h"
#include "server/app.h"

namespace gem::server {
namespace {

using testing::Json;

// What drafts must have come to, from the rows of the rounds alone: a decoding stream's span has its pending
// token and its drafts; where the next one begins tells how many of them were kept.
struct Seen {
  static constexpr std::uint32_t kMost = 4;
  std::uint64_t rounds = 0, decode_rounds = 0;
  std::array<std::uint64_t, kMost> drafted{}, kept{};
  std::uint32_t position = 0, rows = 0;  // of the last decode span

  void round(const RoundRows& round) {
    ASSERT_EQ(round.spans.size(), 1u);
    const RowSpan& span = round.spans.front();
    if (span.prompt) return;
    if (rows > 0) judge(span.position);
    position = span.position;
    rows = span.rows;
  }
  // The stream goes on at `next`.
  void judge(std::uint32_t next) {
    ++decode_rounds;
    if (rows > 1) ++rounds;
    for (std::uint32_t i = 0; i + 1 < rows; ++i) {
      ++drafted[i];
      if (i + 1 < next - position) ++kept[i];
    }
    rows = 0;
  }
};

class DraftMetrics : public ::testing::Test {
 protected:
  void SetUp() override {
    SessionOptions options;
    options.model = std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf";
    options.threads = 1;
    options.context = 1024;
    options.drafts = {.on = true, .copy = false, .most = Seen::kMost, .adaptive = false};
    options.wrap_backend = [this](std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
      gem::testing::BackendHooks hooks;
      hooks.before_round = [this](const RoundRows& rows) { seen_.round(rows); };
      return std::make_unique<gem::testing::WrappedBackend>(std::move(inner), std::move(hooks));
    };
    session_ = Session::open(options);
    seen_ = {};
    service_ = std::make_unique<Service>(*session_, ServiceOptions{}, &metrics_);
    app_ = std::make_unique<App>(
        AppOptions{}, metrics_,
        AccessLog(LogFormat::kText, std::make_shared<spdlog::logger>(
                                        "access", std::make_shared<spdlog::sinks::null_sink_mt>())));
    ModelCard card;
    card.id = "demo";
    app_->serve({.session = *session_,
                 .service = *service_,
                 .card = card,
                 .defaults = testing::demo_defaults(),
                 .new_id = [](const char* prefix) { return std::string(prefix) + "1"; },
                 .now = [] { return std::int64_t{1780000000}; }});
  }
  void TearDown() override {
    app_.reset();
    service_.reset();
  }

  // As the transport does it: admitted, handled, waited for.
  HttpResponse call(std::string method, std::string path, std::string body = "") {
    HttpRequest request;
    request.method = std::move(method);
    request.target = request.path = std::move(path);
    request.headers = {{"Host", "localhost:8080"}};
    request.body = std::move(body);
    if (auto refused = app_->admit(request)) return *refused;
    Reply reply = app_->handle(std::move(request));
    if (auto* response = std::get_if<HttpResponse>(&reply)) return *response;
    struct Bell {
      std::mutex mutex;
      std::condition_variable changed;
      bool rung = false;
    };
    const auto bell = std::make_shared<Bell>();
    PendingReply& pending = *std::get<std::unique_ptr<PendingReply>>(reply);
    pending.on_ready([bell] {
      const std::lock_guard lock(bell->mutex);
      bell->rung = true;
      bell->changed.notify_all();
    });
    for (;;) {
      if (auto response = pending.poll()) return *response;
      std::unique_lock lock(bell->mutex);
      if (!bell->changed.wait_for(lock, std::chrono::seconds(120), [&] { return bell->rung; })) {
        ADD_FAILURE() << "nothing came";
        return {};
      }
      bell->rung = false;
    }
  }

  // A reply of exactly that many tokens; its timings.
  Json ask(const char* question, int tokens, bool draft = true) {
    const Json body = {{"messages", {{{"role", "user"}, {"content", question}}}},
                       {"max_tokens", tokens},
                       {"ignore_eos", true},
                       {"temperature", 0},
                       {"draft", draft}};
    const HttpResponse response = call("POST", "/v1/chat/completions", body.dump());
    EXPECT_EQ(response.status, 200) << response.body;
    const Json reply = Json::parse(response.body);
    EXPECT_EQ(reply["usage"]["completion_tokens"], tokens);
    // Its last round has brought the tokens that were still missing; the last of them is in no cache.
    const std::uint32_t prompt = reply["usage"]["prompt_tokens"];
    seen_.judge(prompt + static_cast<std::uint32_t>(tokens) - 1);
    return reply["timings"];
  }

  std::map<std::string, double> metrics() {
    const HttpResponse response = call("GET", "/metrics");
    EXPECT_EQ(response.status, 200);
    std::map<std::string, double> values;
    std::istringstream lines(response.body);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t blank = line.rfind(' ');
      if (!line.starts_with('#')) values[line.substr(0, blank)] = std::stod(line.substr(blank));
    }
    return values;
  }

  void expect_seen() {
    auto v = metrics();
    double drafted = 0, kept = 0;
    for (std::uint32_t i = 0; i < DraftCounts::kDepths; ++i) {
      const std::string position = fmt::format("{{position=\"{}\"}}", i + 1);
      const std::uint64_t some = i < Seen::kMost ? seen_.drafted[i] : 0;
      EXPECT_EQ(v.at("gem_draft_tokens_total" + position), static_cast<double>(some)) << position;
      const std::uint64_t good = i < Seen::kMost ? seen_.kept[i] : 0;
      EXPECT_EQ(v.at("gem_draft_tokens_accepted_total" + position), static_cast<double>(good)) << position;
      drafted += static_cast<double>(some);
      kept += static_cast<double>(good);
    }
    EXPECT_EQ(v.at("gem_draft_rounds_total"), static_cast<double>(seen_.rounds));
    // Tokens a round, as docs/api.md gives it: every decode round gives one token and the drafts kept; the
    // first token of each reply came with its prompt.
    EXPECT_EQ(v.at("gem_generated_tokens_total") - v.at("gem_time_to_first_token_seconds_count"),
              static_cast<double>(seen_.decode_rounds) + kept);
    if (seen_.rounds > 0) {
      EXPECT_GT(1 + kept / static_cast<double>(seen_.rounds), 1.5) << "the assistant is of some use";
    }
  }

  Metrics metrics_{{}};
  Seen seen_;  // written by the engine's thread while a reply is made, read when it is there
  std::unique_ptr<Session> session_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<App> app_;
};

TEST_F(DraftMetrics, AreWhatTheBackendSaw) {
  expect_seen();
  const Json one = ask("What is 25 + 17?", 60);
  EXPECT_EQ(one["draft_n"], seen_.drafted[0] + seen_.drafted[1] + seen_.drafted[2] + seen_.drafted[3]);
  EXPECT_EQ(one["draft_n_accepted"], seen_.kept[0] + seen_.kept[1] + seen_.kept[2] + seen_.kept[3]);
  EXPECT_GT(seen_.kept[3], 0u);
  EXPECT_GT(seen_.drafted[3], seen_.kept[3]) << "some are wrong, or this test says little";
  expect_seen();
  const Seen before = seen_;
  const Json plain = ask("What is 25 + 17?", 40, false);
  EXPECT_FALSE(plain.contains("draft_n"));
  EXPECT_EQ(seen_.drafted, before.drafted) << "\"draft\": false";
  EXPECT_EQ(seen_.decode_rounds, before.decode_rounds + 39);
  expect_seen();
  ask("Tell me a story about a fox.", 50);
  EXPECT_GT(seen_.rounds, before.rounds);
  expect_seen();
}

// The names that vLLM has, whose positions count from 0.
TEST(DraftMetricsNames, OfVllm) {
  Metrics m({.vllm_names = true, .model_name = "x"});
  DraftCounts counts;
  counts.add(3, 2);
  counts.add(2, 2);
  m.on_drafts(counts);
  const std::string text = m.text(nullptr);
  const auto has = [&](const std::string& line) {
    return text.find("\n" + line + "\n") != std::string::npos;
  };
  EXPECT_TRUE(has("vllm:spec_decode_num_drafts_total{model_name=\"x\"} 2"));
  EXPECT_TRUE(has("vllm:spec_decode_num_draft_tokens_total{model_name=\"x\"} 5"));
  EXPECT_TRUE(has("vllm:spec_decode_num_accepted_tokens_total{model_name=\"x\"} 4"));
  EXPECT_TRUE(has("vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"x\",position=\"0\"} 2"));
  EXPECT_TRUE(has("vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"x\",position=\"1\"} 2"));
  EXPECT_TRUE(has("vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"x\",position=\"2\"} 0"));
}

}  // namespace
}  // namespace gem::server
