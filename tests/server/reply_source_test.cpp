#include "server/api/reply_source.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "server/api/running_replies.h"
#include "server/api_support.h"

namespace gem::server {
namespace {

using testing::end_update;
using testing::FakeGeneration;
using testing::Script;
using testing::silent_round;
using testing::text_update;

// Writes "<", then "[index:text]" and "[index!]" at a result, then ">"; "X message" at a failure.
class PlainWriter : public ReplyWriter {
 public:
  void begin(std::string& out) override { out += "<"; }
  void update(std::size_t index, const GenerationUpdate& update, std::string& out) override {
    for (const ReplyEvent& event : update.events) {
      out += "[" + std::to_string(index) + ":" + event.text + "]";
      if (event.text == "throw") throw std::runtime_error("no");
    }
    if (update.result) out += "[" + std::to_string(index) + "!]";
  }
  void end(std::string& out) override { out += ">"; }
  void fail(const std::string& message, std::string& out) override { out += "X " + message; }
  HttpResponse whole(const std::vector<GenerationUpdate>& updates) override {
    HttpResponse response;
    for (const GenerationUpdate& update : updates) {
      for (const ReplyEvent& event : update.events) response.body += "[" + event.text + "]";
      response.body += std::to_string(update.tokens.size()) + "/" + std::to_string(update.rounds) + ";";
    }
    return response;
  }
  ErrorShape error_shape() const override { return ErrorShape::kAnthropic; }
};

struct Scripts {
  explicit Scripts(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) all.push_back(std::make_shared<Script>());
  }
  std::vector<std::unique_ptr<Generation>> generations() const {
    std::vector<std::unique_ptr<Generation>> result;
    for (const auto& script : all) result.push_back(std::make_unique<FakeGeneration>(script));
    return result;
  }
  Script& operator[](std::size_t i) const { return *all[i]; }
  std::vector<std::shared_ptr<Script>> all;
};

std::unique_ptr<EventSource> stream_of(const Scripts& scripts) {
  Reply reply = stream_reply(scripts.generations(), std::make_unique<PlainWriter>());
  EventReply& events = std::get<EventReply>(reply);
  EXPECT_EQ(events.head.status, 200);
  EXPECT_EQ(events.head.content_type, "text/event-stream");
  return std::move(events.source);
}

std::unique_ptr<PendingReply> plain_of(const Scripts& scripts, int failure_status = 500) {
  Reply reply = plain_reply(scripts.generations(), std::make_unique<PlainWriter>(), failure_status);
  return std::move(std::get<std::unique_ptr<PendingReply>>(reply));
}

std::string pull(EventSource& source, EventSource::State expected = EventSource::State::kMore) {
  std::string out;
  EXPECT_EQ(source.pull(out), expected);
  return out;
}

TEST(StreamReply, BeginsAtOnceAndEndsOnce) {
  const Scripts scripts(1);
  const auto source = stream_of(scripts);
  EXPECT_EQ(pull(*source), "<");
  EXPECT_EQ(pull(*source), "");  // nothing has happened: nothing is sent
  scripts[0].updates = {text_update("a"), text_update("b"), end_update({})};
  EXPECT_EQ(pull(*source), "[0:a]");
  EXPECT_EQ(pull(*source), "[0:b]");
  EXPECT_EQ(pull(*source, EventSource::State::kDone), "[0!]>");
}

TEST(StreamReply, RoundsWithoutTextSendAComment) {
  const Scripts scripts(2);
  const auto source = stream_of(scripts);
  pull(*source);
  scripts[0].updates = {silent_round(), silent_round()};
  scripts[1].updates = {GenerationUpdate{}, text_update("b")};
  EXPECT_EQ(pull(*source), ":\n\n");
  EXPECT_EQ(pull(*source), "[1:b]");  // one choice spoke: the client's socket was used
}

TEST(StreamReply, ChoicesEndOneByOne) {
  const Scripts scripts(2);
  const auto source = stream_of(scripts);
  pull(*source);
  scripts[1].updates = {end_update({})};
  EXPECT_EQ(pull(*source), "[1!]");
  EXPECT_TRUE(scripts[1].destroyed);
  EXPECT_FALSE(scripts[0].destroyed);
  scripts[0].updates = {text_update("a"), end_update({})};
  EXPECT_EQ(pull(*source), "[0:a]");
  EXPECT_EQ(pull(*source, EventSource::State::kDone), "[0!]>");
}

TEST(StreamReply, AFailureEndsAllChoicesInTheWritersShape) {
  const Scripts scripts(2);
  const auto source = stream_of(scripts);
  pull(*source);
  GenerationUpdate failed = end_update({}, FinishReason::kFailed);
  failed.result->error = "the logits are not finite";
  scripts[0].updates = {text_update("a")};
  scripts[1].updates = {std::move(failed)};
  EXPECT_EQ(pull(*source, EventSource::State::kDone), "[0:a]X the logits are not finite");
  EXPECT_TRUE(scripts[0].destroyed && scripts[1].destroyed);
}

TEST(StreamReply, AReplyCancelledFromThisSideSaysSo) {
  const Scripts scripts(1);
  const auto source = stream_of(scripts);
  scripts[0].updates = {end_update({}, FinishReason::kCancelled)};
  EXPECT_EQ(pull(*source, EventSource::State::kDone), "<X the reply was cancelled by the server");
}

TEST(StreamReply, WhatCannotBeWrittenLeavesNoHalfEvent) {
  const Scripts scripts(1);
  const auto source = stream_of(scripts);
  pull(*source);
  scripts[0].updates = {text_update("throw")};
  EXPECT_EQ(pull(*source, EventSource::State::kDone), "X the reply could not be written");
  EXPECT_TRUE(scripts[0].destroyed);
}

TEST(StreamReply, TheClientLeavingEndsTheGenerations) {
  const Scripts scripts(3);
  { const auto source = stream_of(scripts); }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(scripts[i].destroyed);
}

TEST(StreamReply, EveryGenerationWakesTheTransport) {
  const Scripts scripts(2);
  const auto source = stream_of(scripts);
  int wakes = 0;
  source->on_ready([&] { ++wakes; });
  scripts[0].wake();
  scripts[1].wake();
  EXPECT_EQ(wakes, 2);
}

TEST(PlainReply, WaitsForAllAndJoinsWhatTheySaid) {
  const Scripts scripts(2);
  const auto reply = plain_of(scripts);
  EXPECT_FALSE(reply->poll());
  GenerationUpdate more = text_update("b");
  more.tokens.resize(2);
  scripts[0].updates = {text_update("a"), std::move(more), text_update("t", ReplyEvent::Kind::kReasoning),
                        end_update({})};
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(reply->poll());
  scripts[1].updates = {text_update("c"), end_update({})};
  EXPECT_FALSE(reply->poll());
  const std::optional<HttpResponse> response = reply->poll();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "[ab][t]2/3;[c]0/1;");
}

TEST(PlainReply, FailuresAreHttpErrorsInTheWritersShape) {
  for (const auto& [reason, status, expected] :
       {std::tuple(FinishReason::kFailed, 500, 500), std::tuple(FinishReason::kFailed, 529, 529),
        std::tuple(FinishReason::kCancelled, 500, 503)}) {
    const Scripts scripts(2);
    const auto reply = plain_of(scripts, status);
    scripts[1].updates = {end_update({}, reason)};
    const std::optional<HttpResponse> response = reply->poll();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, expected);
    EXPECT_EQ(testing::Json::parse(response->body)["type"], "error");  // Anthropic's
    EXPECT_TRUE(scripts[0].destroyed);
  }
}

TEST(JoinUpdate, CallsStayApart) {
  using Kind = ReplyEvent::Kind;
  GenerationUpdate all;
  for (const ReplyEvent& event : std::vector<ReplyEvent>{{Kind::kCallStart, 0, "f"},
                                                         {Kind::kCallArguments, 0, "{"},
                                                         {Kind::kCallArguments, 0, "}"},
                                                         {Kind::kCallStart, 1, "f"},
                                                         {Kind::kCallArguments, 1, "{}"}}) {
    GenerationUpdate next;
    next.events.push_back(event);
    join_update(all, std::move(next));
  }
  ASSERT_EQ(all.events.size(), 4u);
  EXPECT_EQ(all.events[1].text, "{}");
}

TEST(AppendEvent, NamesAreOptional) {
  std::string out;
  append_event(out, {}, "{}");
  append_event(out, "ping", "{}");
  EXPECT_EQ(out, "data: {}\n\nevent: ping\ndata: {}\n\n");
}

TEST(RunningReplies, ThoughtsAreClosedByIdUntilTheReplyIsGone) {
  const auto running = std::make_shared<RunningReplies>();
  const Scripts scripts(2);
  auto generations = running->watch("chatcmpl-1", scripts.generations());
  scripts[0].thinking = true;
  EXPECT_EQ(running->end_thought("chatcmpl-2"), RunningReplies::Outcome::kUnknown);
  EXPECT_EQ(running->end_thought("chatcmpl-1"), RunningReplies::Outcome::kClosed);
  EXPECT_EQ(scripts[0].thoughts_ended + scripts[1].thoughts_ended, 2);
  generations[0].reset();
  EXPECT_EQ(running->end_thought("chatcmpl-1"), RunningReplies::Outcome::kNotThinking);
  EXPECT_EQ(scripts[0].thoughts_ended, 1);
  generations.clear();
  EXPECT_EQ(running->end_thought("chatcmpl-1"), RunningReplies::Outcome::kUnknown);
}

}  // namespace
}  // namespace gem::server
