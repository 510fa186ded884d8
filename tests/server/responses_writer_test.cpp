#include "server/api/responses_writer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/reply_updates.h"
#include "server/sse_events.h"

namespace gem::server {
namespace {

using nlohmann::ordered_json;
using test::Kind;

ordered_json skeleton() {
  return {{"id", "resp_0"},   {"object", "response"},
          {"created_at", 5},  {"status", "in_progress"},
          {"error", nullptr}, {"incomplete_details", nullptr},
          {"model", "demo"},  {"output", ordered_json::array()},
          {"usage", nullptr}};
}

ResponsesWriter writer() {
  return ResponsesWriter(skeleton(), test::counted_ids(), [] { return std::int64_t{6}; });
}

// What a client makes of a stream, by the rules of the official clients: places must exist before they are
// filled, and what is done must equal what came.
class Reader {
 public:
  void read(const std::vector<test::SseEvent>& events) {
    for (const test::SseEvent& event : events) {
      EXPECT_EQ(event.name, event.data["type"]);
      EXPECT_EQ(event.data["sequence_number"], next_++);
      types.push_back(event.name);
      one(event.name, event.data);
      if (testing::Test::HasFailure()) return;
    }
  }
  ordered_json output = ordered_json::array();
  ordered_json response;
  std::vector<std::string> types;

 private:
  ordered_json& item(const ordered_json& data) {
    const std::size_t index = data["output_index"];
    EXPECT_EQ(index + 1, output.size()) << "an item that is not the last: " << data;
    EXPECT_TRUE(open_) << "nothing is open: " << data;
    EXPECT_EQ(output[index]["id"], data["item_id"]);
    return output[index];
  }
  ordered_json& part(const ordered_json& data) {
    ordered_json& content = item(data)["content"];
    EXPECT_EQ(data["content_index"], 0);
    EXPECT_EQ(content.size(), 1u);
    return content[0];
  }
  void one(const std::string& type, const ordered_json& data) {
    if (data.contains("response")) {
      response = data["response"];
    } else if (type == "response.output_item.added") {
      EXPECT_FALSE(open_) << "the item before is still open";
      open_ = true;
      EXPECT_EQ(data["output_index"], output.size());
      EXPECT_EQ(data["item"]["status"], "in_progress");
      output.push_back(data["item"]);
    } else if (type == "response.content_part.added") {
      item(data)["content"].push_back(data["part"]);
    } else if (type == "response.output_text.delta" || type == "response.reasoning_text.delta") {
      ordered_json& text = part(data)["text"];
      text = text.get<std::string>() + data["delta"].get<std::string>();
    } else if (type == "response.output_text.done" || type == "response.reasoning_text.done") {
      EXPECT_EQ(part(data)["text"], data["text"]);
    } else if (type == "response.content_part.done") {
      EXPECT_EQ(part(data), data["part"]);
    } else if (type == "response.function_call_arguments.delta") {
      ordered_json& text = item(data)["arguments"];
      text = text.get<std::string>() + data["delta"].get<std::string>();
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(item(data)["arguments"], data["arguments"]);
      EXPECT_EQ(item(data)["name"], data["name"]);
    } else if (type == "response.output_item.done") {
      EXPECT_TRUE(open_);
      open_ = false;
      ordered_json now = output.back();
      now["status"] = data["item"]["status"];
      EXPECT_EQ(now, data["item"]);
      output.back() = data["item"];
    } else {
      ADD_FAILURE() << "no such event: " << type;
    }
  }
  std::size_t next_ = 0;
  bool open_ = false;
};

TEST(ResponsesWriter, SendsTheOfficialEventsInTheOfficialOrder) {
  ResponsesWriter w = writer();
  Reader reader;
  reader.read(test::sse_events(test::streamed(w, {test::update_of(test::rich_reply())})));
  const std::vector<std::string> expected = {
      "response.created", "response.in_progress",
      // the thought
      "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
      "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
      // the text
      "response.output_item.added", "response.content_part.added", "response.output_text.delta",
      "response.output_text.done", "response.content_part.done", "response.output_item.done",
      // the calls
      "response.output_item.added", "response.function_call_arguments.delta",
      "response.function_call_arguments.done", "response.output_item.done", "response.output_item.added",
      "response.function_call_arguments.delta", "response.function_call_arguments.done",
      "response.output_item.done",
      // the text after them
      "response.output_item.added", "response.content_part.added", "response.output_text.delta",
      "response.output_text.done", "response.content_part.done", "response.output_item.done",
      "response.completed"};
  EXPECT_EQ(reader.types, expected);
  EXPECT_EQ(reader.response["status"], "completed");
  EXPECT_EQ(reader.response["completed_at"], 6);
}

TEST(ResponsesWriter, AStreamCutAnyhowIsThePlainReply) {
  ResponsesWriter plain = writer();
  const ordered_json whole = ordered_json::parse(plain.whole({test::update_of(test::rich_reply())}).body);
  ASSERT_EQ(whole["output"].size(), 5u);
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    ResponsesWriter w = writer();
    Reader reader;
    reader.read(test::sse_events(test::streamed(w, test::cut(test::rich_reply(), seed))));
    ASSERT_EQ(reader.output, whole["output"]) << "seed " << seed;
    ASSERT_EQ(reader.response, whole) << "seed " << seed;
  }
}

TEST(ResponsesWriter, ItemsHaveTheOfficialFields) {
  ResponsesWriter w = writer();
  const ordered_json whole = ordered_json::parse(w.whole({test::update_of(test::rich_reply())}).body);
  const ordered_json& thought = whole["output"][0];
  EXPECT_EQ(thought["type"], "reasoning");
  EXPECT_EQ(thought["id"].get<std::string>().rfind("rs_", 0), 0u);
  EXPECT_EQ(thought["summary"], ordered_json::array());
  EXPECT_EQ(thought["content"][0]["type"], "reasoning_text");
  EXPECT_EQ(thought["content"][0]["text"], "Let me \"see\"…\n");
  const ordered_json& text = whole["output"][1];
  EXPECT_EQ(text["type"], "message");
  EXPECT_EQ(text["role"], "assistant");
  EXPECT_EQ(text["content"][0]["annotations"], ordered_json::array());
  EXPECT_EQ(text["content"][0]["logprobs"], ordered_json::array());
  const ordered_json& call = whole["output"][3];
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "add");
  EXPECT_EQ(call["arguments"], "{\"a\":12345678901234567890123,\"b\":[1.50,\"\\u0041\"]}");
  EXPECT_EQ(call["id"].get<std::string>().rfind("fc_", 0), 0u);
  EXPECT_EQ(call["call_id"].get<std::string>().rfind("call_", 0), 0u);
  EXPECT_EQ(whole["usage"], (ordered_json{{"input_tokens", 12},
                                          {"input_tokens_details", {{"cached_tokens", 7}}},
                                          {"output_tokens", 9},
                                          {"output_tokens_details", {{"reasoning_tokens", 3}}},
                                          {"total_tokens", 21}}));
}

TEST(ResponsesWriter, AReplyCutByLengthIsIncomplete) {
  ResponsesWriter w = writer();
  Reader reader;
  reader.read(test::sse_events(test::streamed(
      w, {test::update_of({{Kind::kContent, 0, "Half a"}}, test::finished(FinishReason::kLength))})));
  EXPECT_EQ(reader.types.back(), "response.incomplete");
  EXPECT_EQ(reader.response["status"], "incomplete");
  EXPECT_EQ(reader.response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(reader.response["output"][0]["status"], "incomplete");
  EXPECT_FALSE(reader.response.contains("completed_at"));
}

TEST(ResponsesWriter, AFailureInMidStreamIsResponseFailed) {
  ResponsesWriter w = writer();
  std::string out;
  w.begin(out);
  GenerationUpdate update;
  update.events = {{Kind::kReasoning, 0, "Hm"}, {Kind::kContent, 0, "So"}};
  w.update(0, update, out);
  w.fail("no memory", out);
  const auto events = test::sse_events(out);
  EXPECT_EQ(events.back().name, "response.failed");
  const ordered_json& response = events.back().data["response"];
  EXPECT_EQ(response["status"], "failed");
  EXPECT_EQ(response["error"]["code"], "server_error");
  EXPECT_EQ(response["error"]["message"], "no memory");
  EXPECT_EQ(response["output"].size(), 1u);  // what was complete
}

TEST(ResponsesWriter, AnEmptyReplyHasNoItems) {
  ResponsesWriter w = writer();
  Reader reader;
  reader.read(test::sse_events(test::streamed(w, {test::update_of({})})));
  EXPECT_EQ(reader.types,
            (std::vector<std::string>{"response.created", "response.in_progress", "response.completed"}));
  EXPECT_EQ(reader.response["output"], ordered_json::array());
}

TEST(ResponsesWriter, InvalidUtf8NeverLeaves) {
  ResponsesWriter w = writer();
  const std::string out = test::streamed(w, {test::update_of({{Kind::kContent, 0, "a\xff\xfe"}})});
  EXPECT_EQ(out.find('\xff'), std::string::npos);
  EXPECT_NE(out.find("a\xef\xbf\xbd"), std::string::npos);
}

}  // namespace
}  // namespace gem::server
