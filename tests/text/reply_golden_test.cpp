// The reply parser against the reference replies, cut in every way.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "golden.h"
#include "text/reply_feed.h"
#include "text/reply_parser.h"

namespace gem {
namespace {

using Json = nlohmann::ordered_json;
using testing::Fed;

struct Case {
  std::string name;
  std::string text;
  ReplyOptions options;
  ReplyEnd end = ReplyEnd::kStop;
  ParsedReply expected;
};

std::vector<Case> cases_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    const Json item = Json::parse(line);
    Case c;
    c.name = item.at("id").get<std::string>() + " " + item.at("name").get<std::string>();
    c.text = item.at("text");
    c.options = {.start_thinking = item.at("start") == "thinking",
                 .tools_active = item.at("tools"),
                 .extract_reasoning = item.at("extract_reasoning")};
    c.end = item.at("end") == "length" ? ReplyEnd::kLength : ReplyEnd::kStop;
    const Json& expect = item.at("expect");
    c.expected = {expect.at("reasoning"), expect.at("content"), {}, expect.at("finish_reason")};
    for (const Json& call : expect.at("tool_calls")) {
      c.expected.tool_calls.push_back({call.at("name"), call.at("arguments")});
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST(ReplyGolden, EveryReplyWhole) {
  GEM_GOLDEN_OR_SKIP(path, "output-parse.jsonl");
  const std::vector<Case> cases = cases_of(path);
  ASSERT_GE(cases.size(), 60u);
  for (const Case& c : cases) {
    const Fed fed = testing::feed(c.text, c.options, c.end);
    EXPECT_EQ(fed.reply, c.expected) << c.name << "\n" << testing::show(fed.reply);
    EXPECT_EQ(fed.joined, c.expected) << c.name << ": the deltas";
  }
}

TEST(ReplyGolden, EveryReplyInChunksOfEverySize) {
  GEM_GOLDEN_OR_SKIP(path, "output-parse.jsonl");
  for (const Case& c : cases_of(path)) {
    for (std::size_t size = 1; size <= c.text.size(); ++size) {
      const Fed fed = testing::feed(c.text, c.options, c.end, size);
      EXPECT_EQ(fed.reply, c.expected) << c.name << " in chunks of " << size;
      EXPECT_EQ(fed.joined, c.expected) << c.name << ": the deltas in chunks of " << size;
    }
  }
}

TEST(ReplyGolden, EveryReplyCutInTwo) {
  GEM_GOLDEN_OR_SKIP(path, "output-parse.jsonl");
  for (const Case& c : cases_of(path)) {
    for (std::size_t cut = 0; cut <= c.text.size(); ++cut) {
      const Fed fed = testing::feed_cut(c.text, c.options, c.end, cut);
      EXPECT_EQ(fed.reply, c.expected) << c.name << " cut at " << cut;
      EXPECT_EQ(fed.joined, c.expected) << c.name << ": the deltas, cut at " << cut;
    }
  }
}

// Cut off anywhere, the arguments are still the JSON of an object, and what had been sent stays true.
TEST(ReplyGolden, EveryReplyEndedEarly) {
  GEM_GOLDEN_OR_SKIP(path, "output-parse.jsonl");
  for (const Case& c : cases_of(path)) {
    for (std::size_t length = 0; length < c.text.size(); ++length) {
      const Fed fed = testing::feed(c.text.substr(0, length), c.options, ReplyEnd::kLength);
      EXPECT_EQ(fed.reply, fed.joined) << c.name << " at " << length;
      EXPECT_EQ(fed.reply.finish_reason, "length");
      for (const ReplyCall& call : fed.reply.tool_calls) {
        EXPECT_TRUE(Json::parse(call.arguments, nullptr, false).is_object())
            << c.name << ": " << call.arguments;
      }
    }
  }
}

}  // namespace
}  // namespace gem
