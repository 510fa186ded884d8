// The Responses and Anthropic endpoints over the real service and the bundled model.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api_support.h"
#include "server/reply_updates.h"
#include "server/sse_events.h"

namespace gem::server {
namespace {

using testing::Json;

// Counts the wakes of a reply, which may outlive the test's interest in it.
class Wakes {
 public:
  std::function<void()> wake() {
    return [count = count_] {
      ++*count;
      count->notify_all();
    };
  }
  void wait() {
    count_->wait(seen_);
    seen_ = count_->load();
  }

 private:
  std::shared_ptr<std::atomic<int>> count_ = std::make_shared<std::atomic<int>>(1);
  int seen_ = 0;
};

class MessageEndpoints : public ::testing::Test {
 protected:
  MessageEndpoints() : service_(testing::demo_session(), {}) {}

  ApiContext context() {
    return {.session = testing::demo_session(),
            .service = service_,
            .card = {"gem-demo", 1, "gem-test"},
            .defaults = testing::demo_defaults(),
            .new_id = test::counted_ids(),
            .now = [] { return std::int64_t{1780000000}; }};
  }
  static HttpRequest post(const std::string& fields) {
    HttpRequest request;
    request.method = "POST";
    request.body = "{\"temperature\":0," + fields + "}";
    return request;
  }
  static Json plain(Reply reply) {
    if (const auto* ready = std::get_if<HttpResponse>(&reply)) return Json::parse(ready->body);
    const auto& pending = std::get<std::unique_ptr<PendingReply>>(reply);
    Wakes wakes;
    pending->on_ready(wakes.wake());
    for (;;) {
      wakes.wait();
      const std::optional<HttpResponse> response = pending->poll();
      if (!response) continue;
      EXPECT_EQ(response->status, 200) << response->body;
      return Json::parse(response->body);
    }
  }
  static std::vector<test::SseEvent> streamed(Reply reply) {
    const EventReply& events = std::get<EventReply>(reply);
    EXPECT_EQ(events.head.content_type, "text/event-stream");
    Wakes wakes;
    events.source->on_ready(wakes.wake());
    std::string out;
    do {
      wakes.wait();
    } while (events.source->pull(out) == EventSource::State::kMore);
    return test::sse_events(out);
  }
  static std::string too_long() {
    std::string text;
    for (int i = 0; i < 3000; ++i) text += "word ";
    return text;
  }

  Service service_;
};

constexpr const char* kParameters =
    R"({"type":"object","properties":{"city":{"type":"string","description":"City name"}},"required":["city"]})";

TEST_F(MessageEndpoints, AResponseIsTheSamePlainAndStreamed) {
  const std::string fields = R"("input":"What is 12 + 30?","reasoning":{"effort":"low"})";
  const Json whole = plain(responses(context(), post(fields)));
  ASSERT_EQ(whole["output"].size(), 2u) << whole;
  EXPECT_EQ(whole["output"][0]["type"], "reasoning");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "12 + 30 = 42");
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["model"], "gem-demo");
  EXPECT_GT(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
  const auto events = streamed(responses(context(), post(fields + R"(,"stream":true)")));
  Json last = events.back().data["response"];
  EXPECT_EQ(events.back().name, "response.completed");
  EXPECT_EQ(last["output"], whole["output"]);
  EXPECT_EQ(plain(responses_input_tokens(context(), post(fields)))["input_tokens"],
            whole["usage"]["input_tokens"]);
}

TEST_F(MessageEndpoints, AResponseThatDoesNotFitFailsInTheStreamAndAsA400Without) {
  const std::string fields = "\"input\":\"" + too_long() + "\"";
  const ApiError error = testing::refusal([&] { responses(context(), post(fields)); });
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.type, "exceed_context_size_error");
  const auto events = streamed(responses(context(), post(fields + R"(,"stream":true)")));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events.back().name, "response.failed");
  EXPECT_EQ(events.back().data["response"]["error"]["code"], "context_length_exceeded");
}

TEST_F(MessageEndpoints, AMessageIsTheSamePlainAndStreamed) {
  const std::string fields =
      std::string(R"("messages":[{"role":"user","content":"What is the weather in Paris?"}],
      "tools":[{"name":"get_weather","description":"Get the current weather.","input_schema":)") +
      kParameters + "}]";
  const Json whole = plain(messages(context(), post(fields)));
  ASSERT_EQ(whole["content"].size(), 1u) << whole;
  EXPECT_EQ(whole["content"][0]["name"], "get_weather");
  EXPECT_EQ(whole["content"][0]["input"], (Json{{"city", "Paris"}}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  const auto events = streamed(messages(context(), post(fields + R"(,"stream":true)")));
  EXPECT_EQ(events.front().name, "message_start");
  EXPECT_EQ(events.back().name, "message_stop");
  std::string input;
  for (const test::SseEvent& event : events) {
    if (event.name == "content_block_delta") input += event.data["delta"]["partial_json"].get<std::string>();
    if (event.name != "message_delta") continue;
    EXPECT_EQ(event.data["delta"]["stop_reason"], "tool_use");
    EXPECT_EQ(event.data["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    EXPECT_GT(event.data["usage"]["cache_read_input_tokens"], 0);  // of the first request
  }
  EXPECT_EQ(Json::parse(input), whole["content"][0]["input"]);
  const int used =
      whole["usage"]["input_tokens"].get<int>() + whole["usage"]["cache_read_input_tokens"].get<int>();
  EXPECT_EQ(plain(count_tokens(context(), post(fields)))["input_tokens"], used);
}

TEST_F(MessageEndpoints, AMessageThatDoesNotFitIsRefusedBeforeAnyEvent) {
  const std::string fields =
      R"("stream":true,"messages":[{"role":"user","content":")" + too_long() + R"("}])";
  EXPECT_EQ(testing::refusal([&] { messages(context(), post(fields)); }).type, "exceed_context_size_error");
}

}  // namespace
}  // namespace gem::server
