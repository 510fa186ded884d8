// Stand-ins for the endpoints' tests: the bundled model, a service without an engine, replies told by hand.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/session.h"
#include "server/api/api.h"
#include "server/api/api_error.h"

namespace gem::server::testing {

using Json = nlohmann::ordered_json;

// One session for the process; loading takes a moment.
inline Session& demo_session() {
  static const std::unique_ptr<Session> session = [] {
    SessionOptions options;
    options.model = std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf";
    options.threads = 1;
    options.context = 2048;
    return Session::open(options);
  }();
  return *session;
}

inline RequestDefaults demo_defaults() {
  RequestDefaults defaults;
  defaults.sampling = demo_session().default_sampling();
  defaults.thinking = false;
  defaults.max_n = 4;
  defaults.vocab = static_cast<std::uint32_t>(demo_session().tokenizer().size());
  return defaults;
}

// The ApiError that `work` throws; a test failure where it throws none.
template <typename Work>
ApiError refusal(Work&& work) {
  try {
    work();
  } catch (const ApiError& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

// What a test tells a reply to say, one update a take().
struct Script {
  std::deque<GenerationUpdate> updates;
  std::function<void()> wake;
  bool cancelled = false, destroyed = false, thinking = false;
  int thoughts_ended = 0;
};

class FakeGeneration : public Generation {
 public:
  explicit FakeGeneration(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  ~FakeGeneration() override { script_->destroyed = true; }
  void on_ready(std::function<void()> wake) override { script_->wake = std::move(wake); }
  GenerationUpdate take() override {
    if (script_->updates.empty()) return {};
    GenerationUpdate next = std::move(script_->updates.front());
    script_->updates.pop_front();
    return next;
  }
  void cancel() override { script_->cancelled = true; }
  bool end_thought() override {
    ++script_->thoughts_ended;
    return script_->thinking;
  }

 private:
  std::shared_ptr<Script> script_;
};

inline GenerationUpdate text_update(std::string text, ReplyEvent::Kind kind = ReplyEvent::Kind::kContent) {
  GenerationUpdate update;
  update.events.push_back({kind, 0, std::move(text)});
  update.rounds = 1;
  return update;
}

inline GenerationUpdate silent_round() {
  GenerationUpdate update;
  update.rounds = 1;
  return update;
}

inline GenerationUpdate end_update(ParsedReply reply, FinishReason reason = FinishReason::kStop) {
  GenerationUpdate update;
  GenerationResult result;
  result.reason = reason;
  if (reply.finish_reason.empty()) {
    reply.finish_reason = reason != FinishReason::kStop ? "length"
                          : reply.tool_calls.empty()    ? "stop"
                                                        : "tool_calls";
  }
  result.reply = std::move(reply);
  result.times = {
      .reused = 4, .prompt_tokens = 8, .reply_tokens = 5, .prompt_seconds = 0.5, .decode_seconds = 2};
  update.times = result.times;
  update.result = std::move(result);
  return update;
}

// The data of every event of a stream; comments are left out. "[DONE]" stays a string.
inline std::vector<Json> events_of(std::string_view stream) {
  std::vector<Json> events;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    EXPECT_NE(end, std::string_view::npos) << "an event without an end: " << stream;
    if (end == std::string_view::npos) break;
    std::string_view event = stream.substr(0, end);
    stream.remove_prefix(end + 2);
    EXPECT_EQ(event.find('\r'), std::string_view::npos);
    if (event.starts_with(':')) continue;
    if (event.starts_with("event: ")) event.remove_prefix(event.find('\n') + 1);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    event.remove_prefix(6);
    EXPECT_EQ(event.find('\n'), std::string_view::npos) << "more than one line of data";
    events.push_back(event == "[DONE]" ? Json("[DONE]") : Json::parse(event));  // also: strict UTF-8
  }
  return events;
}

}  // namespace gem::server::testing
