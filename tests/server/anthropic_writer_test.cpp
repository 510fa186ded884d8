#include "server/api/anthropic_writer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/reply_updates.h"
#include "server/sse_events.h"

namespace gem::server {
namespace {

using nlohmann::ordered_json;
using test::Kind;

AnthropicWriter writer(bool omit_thinking = false) {
  return AnthropicWriter({"msg_0", "demo", 12, omit_thinking}, test::counted_ids());
}

// The message that a client puts together, by the rules of the official clients. Arguments stay text.
class Reader {
 public:
  void read(const std::vector<test::SseEvent>& events) {
    for (const test::SseEvent& event : events) {
      EXPECT_EQ(event.name, event.data["type"]);
      types.push_back(event.name);
      one(event.name, event.data);
      if (testing::Test::HasFailure()) return;
    }
  }
  ordered_json message;
  std::vector<std::string> types;
  std::vector<std::string> inputs;  // by block

 private:
  void one(const std::string& type, const ordered_json& data) {
    if (type == "message_start") {
      message = data["message"];
    } else if (type == "content_block_start") {
      EXPECT_FALSE(open_) << "the block before is still open";
      open_ = true;
      EXPECT_EQ(data["index"], message["content"].size());
      message["content"].push_back(data["content_block"]);
      inputs.emplace_back();
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(open_);
      ASSERT_EQ(data["index"], message["content"].size() - 1);
      const ordered_json& delta = data["delta"];
      ordered_json& block = message["content"].back();
      const std::string kind = delta["type"];
      if (kind == "text_delta") {
        ASSERT_EQ(block["type"], "text");
        block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
      } else if (kind == "thinking_delta") {
        ASSERT_EQ(block["type"], "thinking");
        block["thinking"] = block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
      } else if (kind == "signature_delta") {
        ASSERT_EQ(block["type"], "thinking");
        block["signature"] = delta["signature"];
      } else {
        ASSERT_EQ(kind, "input_json_delta");
        ASSERT_EQ(block["type"], "tool_use");
        inputs.back() += delta["partial_json"].get<std::string>();
      }
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(open_);
      open_ = false;
    } else if (type == "message_delta") {
      EXPECT_FALSE(open_) << "a block is still open";
      message["stop_reason"] = data["delta"]["stop_reason"];
      message["stop_sequence"] = data["delta"]["stop_sequence"];
      message["usage"] = data["usage"];
    } else {
      ASSERT_EQ(type, "message_stop");
    }
  }
  bool open_ = false;
};

TEST(AnthropicWriter, SendsBlocksOneAfterTheOther) {
  AnthropicWriter w = writer();
  Reader reader;
  reader.read(test::sse_events(test::streamed(w, {test::update_of(test::rich_reply())})));
  const std::vector<std::string> block = {"content_block_start", "content_block_delta", "content_block_stop"};
  std::vector<std::string> expected = {"message_start", "content_block_start", "content_block_delta",
                                       "content_block_delta", "content_block_stop"};  // thinking, signature
  for (int i = 0; i < 4; ++i) expected.insert(expected.end(), block.begin(), block.end());
  expected.insert(expected.end(), {"message_delta", "message_stop"});
  EXPECT_EQ(reader.types, expected);
}

TEST(AnthropicWriter, AStreamCutAnyhowIsThePlainReply) {
  AnthropicWriter plain = writer();
  const std::string body = plain.whole({test::update_of(test::rich_reply())}).body;
  ordered_json whole = ordered_json::parse(body);
  ASSERT_EQ(whole["content"].size(), 5u);
  // Arguments are sent as they were written.
  EXPECT_NE(body.find("\"input\":{\"a\":12345678901234567890123,\"b\":[1.50,\"\\u0041\"]}"),
            std::string::npos);
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    AnthropicWriter w = writer();
    Reader reader;
    reader.read(test::sse_events(test::streamed(w, test::cut(test::rich_reply(), seed))));
    for (std::size_t i = 0; i < reader.inputs.size(); ++i) {
      if (!reader.inputs[i].empty())
        reader.message["content"][i]["input"] = ordered_json::parse(reader.inputs[i]);
    }
    ASSERT_EQ(reader.message, whole) << "seed " << seed;
  }
}

TEST(AnthropicWriter, BlocksAndCountsHaveTheOfficialShape) {
  AnthropicWriter w = writer();
  const ordered_json whole = ordered_json::parse(w.whole({test::update_of(test::rich_reply())}).body);
  EXPECT_EQ(whole["id"], "msg_0");
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["role"], "assistant");
  EXPECT_EQ(whole["model"], "demo");
  EXPECT_EQ(whole["content"][0],
            (ordered_json{{"type", "thinking"}, {"thinking", "Let me \"see\"…\n"}, {"signature", ""}}));
  EXPECT_EQ(whole["content"][1], (ordered_json{{"type", "text"}, {"text", "I shall look: ☂ "}}));
  EXPECT_EQ(whole["content"][2]["type"], "tool_use");
  EXPECT_EQ(whole["content"][2]["id"].get<std::string>().rfind("toolu_", 0), 0u);
  EXPECT_EQ(whole["content"][2]["input"], ordered_json::object());
  EXPECT_EQ(whole["usage"]["input_tokens"], 5);  // without the cached ones
  EXPECT_EQ(whole["usage"]["cache_read_input_tokens"], 7);
  EXPECT_EQ(whole["usage"]["cache_creation_input_tokens"], 0);
  EXPECT_EQ(whole["usage"]["output_tokens"], 9);
}

TEST(AnthropicWriter, SaysWhyItStopped) {
  const auto stop = [](std::vector<ReplyEvent> events, FinishReason reason, std::string matched) {
    GenerationResult result = test::finished(reason);
    result.matched = std::move(matched);
    AnthropicWriter w = writer();
    const auto whole = ordered_json::parse(w.whole({test::update_of(std::move(events), result)}).body);
    return std::pair<ordered_json, ordered_json>(whole["stop_reason"], whole["stop_sequence"]);
  };
  const std::vector<ReplyEvent> text = {{Kind::kContent, 0, "Hi"}};
  const std::vector<ReplyEvent> call = {{Kind::kCallStart, 0, "f"}, {Kind::kCallArguments, 0, "{}"}};
  using Pair = std::pair<ordered_json, ordered_json>;
  EXPECT_EQ(stop(text, FinishReason::kStop, ""), Pair("end_turn", nullptr));
  EXPECT_EQ(stop(call, FinishReason::kStop, ""), Pair("tool_use", nullptr));
  EXPECT_EQ(stop(text, FinishReason::kStop, "###"), Pair("stop_sequence", "###"));
  EXPECT_EQ(stop(text, FinishReason::kLength, ""), Pair("max_tokens", nullptr));
  EXPECT_EQ(stop(call, FinishReason::kLength, ""), Pair("max_tokens", nullptr));
  EXPECT_EQ(stop(text, FinishReason::kContext, ""), Pair("model_context_window_exceeded", nullptr));
}

TEST(AnthropicWriter, AnEmptyReplyHasNoBlocks) {
  AnthropicWriter w = writer();
  EXPECT_EQ(ordered_json::parse(w.whole({test::update_of({})}).body)["content"], ordered_json::array());
}

TEST(AnthropicWriter, OmittedThoughtsKeepTheirBlock) {
  AnthropicWriter w = writer(true);
  const std::string out = test::streamed(w, {test::update_of(test::rich_reply())});
  EXPECT_EQ(out.find("Let me"), std::string::npos);
  Reader reader;
  reader.read(test::sse_events(out));
  EXPECT_EQ(reader.message["content"][0],
            (ordered_json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}));
  AnthropicWriter plain = writer(true);
  EXPECT_EQ(
      ordered_json::parse(plain.whole({test::update_of(test::rich_reply())}).body)["content"][0]["thinking"],
      "");
}

TEST(AnthropicWriter, HeartbeatsArePingsAndFailuresAreErrorEvents) {
  AnthropicWriter w = writer();
  std::string out = w.heartbeat();
  w.fail("no memory", out);
  const auto events = test::sse_events(out);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].name, "ping");
  EXPECT_EQ(events[0].data, (ordered_json{{"type", "ping"}}));
  EXPECT_EQ(events[1].name, "error");
  EXPECT_EQ(events[1].data,
            (ordered_json{{"type", "error"}, {"error", {{"type", "api_error"}, {"message", "no memory"}}}}));
  EXPECT_EQ(w.error_shape(), ErrorShape::kAnthropic);
}

}  // namespace
}  // namespace gem::server
