// Texts between triple quotes in tool calls: nothing of them is lost, whatever they hold and however the
// reply is cut, and their siblings survive.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/argument_types.h"
#include "text/reply_feed.h"
#include "text/reply_parser.h"

namespace gem {
namespace {

using testing::Fed;
using testing::feed;
using testing::feed_cut;
using testing::show;

// Without a schema, and with one that leaves the text's place free or takes text there.
std::vector<std::shared_ptr<const ToolTypes>> schemas() {
  const auto tool = [](std::string_view properties) {
    return std::make_shared<const ToolTypes>(parse_tools(parse_json(
        R"_([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":)_" +
        std::string(properties) + "}}}]")));
  };
  return {nullptr, tool("{}"), tool(R"_({"s":{"type":"string"},"n":{"type":"integer"}})_")};
}

// The arguments of call:f{…} with ~ for the quote token; the same however the text is cut.
nlohmann::json arguments(std::string braces, bool closed = true, std::string_view behind = "") {
  for (std::size_t at = 0; (at = braces.find('~', at)) != std::string::npos; at += 5)
    braces.replace(at, 1, "<|\"|>");
  const std::string reply =
      "<|tool_call>call:f" + braces + (closed ? "<tool_call|>" : "") + std::string(behind);
  std::string json;
  for (const auto& tools : schemas()) {
    const ReplyOptions options{.tools = tools};
    const Fed whole = feed(reply, options);
    EXPECT_EQ(whole.joined.tool_calls, whole.reply.tool_calls) << reply;
    for (std::size_t cut = 1; cut < reply.size(); ++cut) {
      const Fed twice = feed_cut(reply, options, ReplyEnd::kStop, cut);
      EXPECT_EQ(twice.reply, whole.reply) << reply << " cut before byte " << cut;
      EXPECT_EQ(twice.joined.tool_calls, whole.reply.tool_calls) << reply << " cut before byte " << cut;
    }
    EXPECT_EQ(feed(reply, options, ReplyEnd::kStop, 1).joined.tool_calls, whole.reply.tool_calls) << reply;
    EXPECT_EQ(whole.reply.tool_calls.size(), 1u) << show(whole.reply);
    if (whole.reply.tool_calls.empty()) return {};
    if (tools != nullptr && json != whole.reply.tool_calls[0].arguments)
      ADD_FAILURE() << braces << ": " << json << " with a schema " << whole.reply.tool_calls[0].arguments;
    json = whole.reply.tool_calls[0].arguments;
  }
  return nlohmann::json::parse(json, nullptr, false);
}

nlohmann::json object(const char* json) {
  return nlohmann::json::parse(json);
}

TEST(TripleQuotes, TextAsItStands) {
  EXPECT_EQ(arguments(R"_({s:"""hello""",n:1})_"), object(R"_({"s":"hello","n":1})_"));
  EXPECT_EQ(arguments(R"_({s:'''hello''',n:1})_"), object(R"_({"s":"hello","n":1})_"));
  EXPECT_EQ(arguments("{s:\"\"\"\nline 1, a: b\n  {c} \"q\" 'q' \\n\n\"\"\" , n: 1}"),
            object(R"_({"s":"\nline 1, a: b\n  {c} \"q\" 'q' \\n\n","n":1})_"))
      << "no escapes: what looks like one is code";
  EXPECT_EQ(arguments(R"_({s:"""""",n:1})_"), object(R"_({"s":"","n":1})_"));
  EXPECT_EQ(arguments(R"_({s:"",n:1})_"), object(R"_({"s":"","n":1})_")) << "two are an empty text";
  EXPECT_EQ(arguments(R"_({s:"" , n:1})_"), object(R"_({"s":"","n":1})_"));
  EXPECT_EQ(arguments(R"_({s:''})_"), object(R"_({"s":""})_"));
  EXPECT_EQ(arguments(R"_({s:""""quoted"""",n:1})_"), object(R"_({"s":"\"quoted\"","n":1})_"))
      << "the last three are the end";
  EXPECT_EQ(arguments(R"_({s:"""a '''b''' "" c""",n:1})_"), object(R"_({"s":"a '''b''' \"\" c","n":1})_"));
  EXPECT_EQ(arguments(R"_({"""s""":"""x""",'''n''':1})_"), object(R"_({"s":"x","n":1})_"));
}

TEST(TripleQuotes, CodeWithTripleQuotesOfItsOwn) {
  EXPECT_EQ(arguments("{s:\"\"\"def f():\n  \"\"\"Doc, really: yes.\"\"\"\n  return 1\n\"\"\",n:1}"),
            object(R"_({"s":"def f():\n  \"\"\"Doc, really: yes.\"\"\"\n  return 1\n","n":1})_"));
  EXPECT_EQ(arguments(R"_({s:"""f("""a""", """b""")""",n:1})_"),
            object(R"_({"s":"f(\"\"\"a\"\"\", \"\"\"b\"\"\")","n":1})_"));
  EXPECT_EQ(arguments(R"_({s:"""{"""a""": 1, """b""": {"""c"""}} # end""",n:1})_"),
            object(R"_({"s":"{\"\"\"a\"\"\": 1, \"\"\"b\"\"\": {\"\"\"c\"\"\"}} # end","n":1})_"))
      << "after the outermost brace nothing but brackets may come";
  EXPECT_EQ(arguments(R"_({s:"""x = """a"""] + y""",n:1})_"),
            object(R"_({"s":"x = \"\"\"a\"\"\"] + y","n":1})_"))
      << "no array is open";
  EXPECT_EQ(arguments(R"_({s:"""call("""a""", 2, n)""",n:1})_"),
            object(R"_({"s":"call(\"\"\"a\"\"\", 2, n)","n":1})_"))
      << "neither '2, ' nor 'n)' is a key";
}

TEST(TripleQuotes, WhateverMayFollowAValue) {
  for (const char* braces : {
           R"_({s:"""x""", n: 1})_",
           R"_({s:"""x""",n :1})_",
           R"_({s:"""x""","n":1})_",
           R"_({s:"""x""",'n' : 1})_",
           R"_({s:"""x""",~n~:1})_",
           R"_({s:"""x""",'''n''':1})_",
           R"_({s:"""x""","""n""" : 1})_",
           R"_({s:"""x""",n:1}})_",
           R"_({n:1,s:"""x"""})_",
           R"_({n:1,s:"""x""",})_",
           R"_({n:1,s:"""x"""} )_",
           R"_({n:1,s:"""x"""}})_",
           "{s:\"\"\"x\"\"\" ,\n n:1,}",
       }) {
    EXPECT_EQ(arguments(braces), object(R"_({"s":"x","n":1})_")) << braces;
  }
  EXPECT_EQ(arguments(R"_({n:1,s:"""x"""]})_"), object(R"_({"s":"x\"\"\"]}","n":1})_")) << "no array is open";
  EXPECT_EQ(arguments(R"_({l:["""a, b""","""c"""],n:1})_"), object(R"_({"l":["a, b","c"],"n":1})_"));
  EXPECT_EQ(arguments(R"_({l:["""a""" , ["""b"""]],n:1})_"), object(R"_({"l":["a",["b"]],"n":1})_"));
  EXPECT_EQ(arguments(R"_({o:{k:"""a""",m:{k:"""b"""}},n:1})_"),
            object(R"_({"o":{"k":"a","m":{"k":"b"}},"n":1})_"));
  EXPECT_EQ(arguments(R"_({o:{k:"""a}, {"""}, more, }"""},n:1})_"),
            object(R"_({"o":{"k":"a}, {\"\"\"}, more, }"},"n":1})_"))
      << "no key after that brace";
}

TEST(TripleQuotes, CutOffAnywhere) {
  EXPECT_EQ(arguments(R"_({s:""")_", false), object(R"_({"s":""})_"));
  EXPECT_EQ(arguments(R"_({s:"""a)_", false), object(R"_({"s":"a"})_"));
  EXPECT_EQ(arguments(R"_({s:"""a")_", false), object(R"_({"s":"a\""})_"));
  EXPECT_EQ(arguments(R"_({s:"""a"")_", false), object(R"_({"s":"a\"\""})_"));
  EXPECT_EQ(arguments(R"_({s:"""a""")_", false), object(R"_({"s":"a"})_"));
  EXPECT_EQ(arguments(R"_({s:"""a""", n)_", false), object(R"_({"s":"a"})_"));
  EXPECT_EQ(arguments(R"_({s:"""a""", n:)_", false), object(R"_({"s":"a"})_"));
  EXPECT_EQ(arguments(R"_({s:"""a""",)_"), object(R"_({"s":"a"})_"));
  EXPECT_EQ(arguments(R"_({s:"""a"""}<tool_call|>)_", false), object(R"_({"s":"a"})_"));
}

TEST(TripleQuotes, MarkersInsideAndBehind) {
  EXPECT_EQ(arguments(R"_({s:"""a ~b~ """ ~ """,n:1})_"),
            object(R"_({"s":"a <|\"|>b<|\"|> \"\"\" <|\"|> ","n":1})_"));
  EXPECT_EQ(arguments(R"_({s:"""a""" <|turn> b""",n:1})_"), object(R"_({"s":"a\"\"\" <|turn> b","n":1})_"));
  EXPECT_EQ(arguments(R"_({s:"""a"""}<|turn>)_"), object(R"_({"s":"a"})_"));
  EXPECT_EQ(arguments(R"_({s:~"""a"""~,n:1})_"), object(R"_({"s":"\"\"\"a\"\"\"","n":1})_"))
      << "the format's own quotes are the outer ones";
  // The closing marker is missing.
  EXPECT_EQ(arguments(R"_({s:"""a"""})_", false, "<|tool_response>"), object(R"_({"s":"a"})_"));
  const Fed fed = feed(R"_(<|tool_call>call:f{s:"""a"""}<|channel>thought
x<channel|>y)_");
  EXPECT_EQ(fed.reply.reasoning, "x");
  EXPECT_EQ(fed.reply.content, "y");
  ASSERT_EQ(fed.reply.tool_calls.size(), 1u);
  EXPECT_EQ(fed.reply.tool_calls[0].arguments, R"_({"s":"a"})_");
}

TEST(TripleQuotes, TypedAsOtherText) {
  const auto typed = [](std::string_view property, std::string_view value) {
    const auto tools = std::make_shared<const ToolTypes>(parse_tools(parse_json(
        R"_([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"v":)_" +
        std::string(property) + R"_(,"w":{"type":"boolean"}}}}}])_")));
    const std::string reply = "<|tool_call>call:f{v:" + std::string(value) + ",w=true}<tool_call|>";
    const Fed whole = feed(reply, {.tools = tools});
    EXPECT_EQ(feed(reply, {.tools = tools}, ReplyEnd::kStop, 1).joined.tool_calls, whole.reply.tool_calls);
    return whole.reply.tool_calls.at(0).arguments;
  };
  EXPECT_EQ(typed(R"_({"type":"integer"})_", R"_("""5""")_"), R"_({"v":5,"w":true})_")
      << "'=' after a declared key";
  EXPECT_EQ(typed(R"_({"type":"string"})_", R"_("""5""")_"), R"_({"v":"5","w":true})_");
  EXPECT_EQ(typed(R"_({"type":"object"})_", R"_("""{"a": 1}""")_"), R"_({"v":{"a":1},"w":true})_");
  EXPECT_EQ(typed(R"_({"type":"object"})_", R"_(<|"|>{'a': """x}, y"""}<|"|>)_"),
            R"_({"v":{"a":"x}, y"},"w":true})_")
      << "inside a container found in text";
  EXPECT_EQ(typed(R"_({"type":"string"})_", R"_({"a": """x}, y"""})_"),
            R"_({"v":"{\"a\": \"\"\"x}, y\"\"\"}","w":true})_")
      << "inside a container that is declared as text";
}

TEST(TripleQuotes, TextLeavesAsItComes) {
  ReplyParser parser(ReplyOptions{});
  const auto fed = [&](std::string_view text) {
    feed_marked_text(parser, text);
    std::string sent;
    for (const ReplyEvent& event : parser.take_events()) sent += event.text;
    return sent;
  };
  EXPECT_EQ(fed("<|tool_call>call:f{s:\"\"\"abc"), "f{\"s\":\"abc");
  EXPECT_EQ(fed("\"\"\" "), "") << "it may be the end";
  EXPECT_EQ(fed("d"), R"_(\"\"\" d)_");
  EXPECT_EQ(fed("\"\"\", n"), "");
  EXPECT_EQ(fed(":"), "\"");
}

// Any text without three quotes in a row, whatever else it holds, comes back whole, its sibling too.
TEST(TripleQuotes, AnyTextComesBackWhole) {
  const std::vector<std::string> atoms = {"\"", "\"\"", "'", "'''", "{", "}",  "[", "]", ",",   ":",   "=",
                                          "\\", "\n",   " ", "a",   "n", "n:", "é", "😀", "1.5", "null"};
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (auto n = random() % 20; n > 0; --n) text += atoms[random() % atoms.size()];
    if (text.find("\"\"\"") != std::string::npos) continue;
    const std::string reply = "<|tool_call>call:f{m:0,s:\"\"\"" + text + "\"\"\",n:1}<tool_call|>";
    const Fed whole = feed(reply);
    ASSERT_EQ(whole.reply.tool_calls.size(), 1u) << reply;
    const std::string& json = whole.reply.tool_calls[0].arguments;
    const auto got = nlohmann::json::parse(json, nullptr, false);
    ASSERT_EQ(got, (nlohmann::json{{"m", 0}, {"s", text}, {"n", 1}})) << reply << "\n" << json;
    ASSERT_EQ(feed(reply, {}, ReplyEnd::kStop, 1).joined.tool_calls, whole.reply.tool_calls) << reply;
  }
}

// Ends that turn out to be none, over and over: linear, or this does not end.
TEST(TripleQuotes, LongTextsTakeLinearTime) {
  for (const std::string_view again :
       {"\"", "\"\"\" ", "\"\"\"}", "\"\"\",\"", "\"\"\",'", "\"\"\",n", " "}) {
    ReplyParser parser(ReplyOptions{});
    feed_marked_text(parser, "<|tool_call>call:f{s:\"\"\"\"\"\"");
    for (int i = 0; i < 200'000; ++i) parser.text(again);
    EXPECT_EQ(parser.finish(ReplyEnd::kLength).tool_calls.size(), 1u) << again;
  }
}

}  // namespace
}  // namespace gem
