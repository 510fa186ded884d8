// The filters behind gem format and gem parse.
#include "text/chat_jsonl.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "golden.h"

namespace gem {
namespace {

using Json = nlohmann::ordered_json;

TEST(ChatJsonl, FormatsTheReferenceCases) {
  GEM_GOLDEN_OR_SKIP(path, "chat-format.jsonl");
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json item = Json::parse(line);
    if (item.value("note", "").starts_with("quirk")) continue;
    EXPECT_EQ(Json::parse(format_line(line, ChatVariant::kLarge)), Json({{"prompt", item.at("prompt")}}))
        << item.at("id");
    EXPECT_EQ(Json::parse(format_line(line, ChatVariant::kSmall)),
              Json({{"prompt_small", item.at("prompt_small")}}));
  }
}

TEST(ChatJsonl, ParsesTheReferenceCasesInAnyChunks) {
  GEM_GOLDEN_OR_SKIP(path, "output-parse.jsonl");
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json item = Json::parse(line);
    for (const std::size_t chunk : {0, 1, 2, 5}) {
      EXPECT_EQ(Json::parse(parse_line(line, chunk)), item.at("expect"))
          << item.at("id") << " chunks of " << chunk;
    }
  }
}

TEST(ChatJsonl, TakesWhatTheTemplateTakes) {
  EXPECT_EQ(
      format_line(
          R"({"messages":[{"role":"critic","content":[{"type":"odd"},{"type":"text","text":"Hm"}]}],"options":{"add_generation_prompt":false}})",
          ChatVariant::kLarge),
      R"({"prompt":"<bos><|turn>critic\nHm<turn|>\n"})");
  EXPECT_EQ(format_line(R"({"messages":[],"tools":null})", ChatVariant::kSmall),
            R"({"prompt_small":"<bos><|turn>model\n"})");
  EXPECT_EQ(
      format_line(
          R"({"messages":[{"role":"assistant","content":"Hel"}],"options":{"continue_final_message":true}})",
          ChatVariant::kSmall),
      R"({"prompt_small":"<bos><|turn>model\nHel"})");
}

TEST(ChatJsonl, RefusesMalformedLines) {
  for (const char* bad : {"", "[]", "{", "{}", R"({"messages":{}})", R"({"messages":[],"options":[]})",
                          R"({"messages":[],"options":{"enable_thinking":"yes"}})",
                          R"({"messages":[],"options":{"continue_final_message":"both"}})",
                          R"({"messages":[],"options":{"continue_final_message":true}})"}) {
    EXPECT_THROW(format_line(bad, ChatVariant::kLarge), Error) << bad;
  }
  for (const char* bad : {"", "{}", R"({"text":1})", R"({"text":"","start":"middle"})",
                          R"({"text":"","tools":1})", R"({"text":"","end":"never"})"}) {
    EXPECT_THROW(parse_line(bad, 0), Error) << bad;
  }
}

TEST(ChatJsonl, DefaultsOfAReply) {
  EXPECT_EQ(
      parse_line(R"({"text":"a<|tool_call>call:f{}<tool_call|>"})", 0),
      R"({"reasoning":"","content":"a","tool_calls":[{"name":"f","arguments":"{}"}],"finish_reason":"tool_calls"})");
}

}  // namespace
}  // namespace gem
