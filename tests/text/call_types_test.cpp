// Arguments typed by the tools' schemas (hardening S5): whatever the spelling, a declared type is what the
// client gets, nothing is lost, and how the reply was cut makes no difference.
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
using testing::show;

// A tool f with these properties.
std::shared_ptr<const ToolTypes> declared(std::string_view properties) {
  const std::string tool =
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","$defs":{"level":{"enum":["low","1"]}},"properties":)" +
      std::string(properties) + "}}}]";
  return std::make_shared<const ToolTypes>(parse_tools(parse_json(tool)));
}

constexpr std::string_view kEverything = R"({
  "s":{"type":"string"}, "t":{"type":"string"}, "n":{"type":"number"}, "i":{"type":"integer"},
  "b":{"type":"boolean"}, "o":{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"}}},
  "l":{"type":"array","items":{"type":"integer"}}, "ls":{"type":"array","items":{"type":"string"}},
  "ni":{"type":["integer","null"]}, "nu":{"type":"integer","nullable":true}, "any":{},
  "si":{"type":["string","integer"]}, "e":{"enum":["1","2"]}, "r":{"$ref":"#/$defs/level"},
  "u":{"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"string"}}]},
  "m":{"type":"object","additionalProperties":{"type":"string"}}})";

Fed call_of(std::string braces, const std::shared_ptr<const ToolTypes>& tools, bool closed = true,
            std::size_t size = 0) {
  for (std::size_t at = 0; (at = braces.find('~', at)) != std::string::npos; at += 5)
    braces.replace(at, 1, "<|\"|>");
  return feed("<|tool_call>call:f" + braces + (closed ? "<tool_call|>" : ""), {.tools = tools},
              ReplyEnd::kStop, size);
}

struct Typed {
  std::string json;
  std::vector<std::string> diagnostics;
};

// The arguments of call:f{…} with ~ for the quote token; the same however the text is cut.
Typed typed(const std::string& braces, bool closed = true) {
  const auto tools = declared(kEverything);
  const Fed whole = call_of(braces, tools, closed);
  EXPECT_EQ(whole.joined.tool_calls, whole.reply.tool_calls) << braces;
  for (const std::size_t size : {1u, 2u, 3u, 7u}) {
    const Fed cut = call_of(braces, tools, closed, size);
    EXPECT_EQ(cut.reply, whole.reply) << braces << " in chunks of " << size << "\n" << show(cut.reply);
    EXPECT_EQ(cut.joined.tool_calls, whole.reply.tool_calls) << braces << " in chunks of " << size;
  }
  EXPECT_EQ(whole.reply.tool_calls.size(), 1u) << show(whole.reply);
  EXPECT_EQ(whole.reply.content, "");
  if (whole.reply.tool_calls.empty()) return {};
  const std::string& json = whole.reply.tool_calls[0].arguments;
  EXPECT_TRUE(nlohmann::json::parse(json, nullptr, false).is_object()) << braces << " became " << json;
  return {json, whole.reply.diagnostics};
}

// Typed without anything to remark.
std::string clean(const std::string& braces) {
  const Typed result = typed(braces);
  EXPECT_TRUE(result.diagnostics.empty()) << braces << ": " << result.diagnostics.front();
  return result.json;
}

TEST(CallTypes, TextStaysTextWhereTextIsDeclared) {
  EXPECT_EQ(clean("{s:~5~,t:5}"), R"({"s":"5","t":"5"})");
  EXPECT_EQ(clean("{s:true,t:False}"), R"({"s":"true","t":"False"})");
  EXPECT_EQ(clean("{s:1e5,t:007}"), R"({"s":"1e5","t":"007"})");
  EXPECT_EQ(clean("{e:1,r:1}"), R"({"e":"1","r":"1"})") << "enum and $ref";
  EXPECT_EQ(clean("{s:null,t:~null~}"), R"({"s":null,"t":"null"})") << "the format quotes text";
  EXPECT_EQ(clean("{ls:[1,~2~,true]}"), R"({"ls":["1","2","true"]})");
  EXPECT_EQ(clean("{m:{k:1}}"), R"({"m":{"k":"1"}})");
  EXPECT_EQ(clean("{o:{s:5,n:5}}"), R"({"o":{"s":"5","n":5}})");
}

TEST(CallTypes, ContainersAreTextWhereTextIsDeclared) {
  EXPECT_EQ(clean(R"({s:{"a": [1, "}"], 'b': 2},t:x})"), R"({"s":"{\"a\": [1, \"}\"], 'b': 2}","t":"x"})")
      << "as spelled";
  EXPECT_EQ(clean("{s:{a:[~x~,{}]},i:1}"), R"({"s":"{\"a\":[\"x\",{}]}","i":1})")
      << "the format's own quotes are no text: JSON";
  EXPECT_EQ(clean("{s:[a-z]+\\.cpp,i:1}"), R"({"s":"[a-z]+\\.cpp","i":1})");
  EXPECT_EQ(clean("{s:[],t:{} }"), R"({"s":"[]","t":"{}"})");
  EXPECT_EQ(clean("{s:[^,i:1}"), R"({"s":"[^,i:1"})") << "an unclosed bracket ends with the call";
  EXPECT_EQ(typed("{s:[1, 2", false).json, R"({"s":"[1, 2"})");
  EXPECT_EQ(typed("{s:{a:~x", false).json, R"({"s":"{\"a\":\"x\"}"})");
}

TEST(CallTypes, QuotedNumbersBooleansAndNullsAreWhatIsDeclared) {
  EXPECT_EQ(clean("{n:~5.5~,i:\"7\"}"), R"({"n":5.5,"i":7})");
  EXPECT_EQ(clean("{n:' -1e3 ',i:~12345678901234567890123~}"), R"({"n":-1e3,"i":12345678901234567890123})");
  EXPECT_EQ(clean("{b:~true~}"), R"({"b":true})");
  EXPECT_EQ(clean("{b:~True~}"), R"({"b":true})");
  EXPECT_EQ(clean("{b:FALSE}"), R"({"b":false})");
  EXPECT_EQ(clean("{n:+5,i:~+5~}"), R"({"n":5,"i":5})");
  EXPECT_EQ(clean("{ni:~null~,nu:~None~}"), R"({"ni":null,"nu":null})");
  EXPECT_EQ(clean("{ni:~3~,nu:None}"), R"({"ni":3,"nu":null})");
  EXPECT_EQ(clean("{u:~3~}"), R"({"u":3})");
  EXPECT_EQ(clean("{si:~3~}"), R"({"si":"3"})") << "text is declared: as spelled";
  EXPECT_EQ(clean("{si:3}"), R"({"si":3})");
  EXPECT_EQ(clean("{any:~3~}"), R"({"any":"3"})");
  EXPECT_EQ(clean("{any:+3,other:TRUE}"), R"({"any":"+3","other":"TRUE"})") << "as without a schema";
  EXPECT_EQ(clean("{l:[~1~,'2',3]}"), R"({"l":[1,2,3]})");
}

TEST(CallTypes, ContainersInTextAreRead) {
  EXPECT_EQ(clean(R"({o:~{"n": 1, "s": "x"}~,i:1})"), R"({"o":{"n":1,"s":"x"},"i":1})") << "JSON";
  EXPECT_EQ(clean(R"({o:~{'n': 1, 's': 'x', 'b': True, 'z': None}~})"),
            R"({"o":{"n":1,"s":"x","b":true,"z":null}})")
      << "Python";
  EXPECT_EQ(clean("{o:\"{n:1,s:x}\"}"), R"({"o":{"n":1,"s":"x"}})") << "native";
  EXPECT_EQ(clean(R"({o:"{\"n\": \"1\", \"s\": 2}"})"), R"({"o":{"n":1,"s":"2"}})") << "typed inside";
  EXPECT_EQ(clean("{l:~[1, 2]~}"), R"({"l":[1,2]})");
  EXPECT_EQ(clean("{u:~['a']~}"), R"({"u":["a"]})");
  EXPECT_EQ(clean("{ls:~ [] ~}"), R"({"ls":[]})");
}

TEST(CallTypes, EqualsForColonAfterADeclaredName) {
  EXPECT_EQ(clean("{s=hello: world, i=2}"), R"({"s":"hello: world","i":2})");
  EXPECT_EQ(clean("{s=~x~,o={n=1}}"), R"({"s":"x","o":{"n":1}})");
  EXPECT_EQ(clean("{s:a=b,t:http://h/?q=1}"), R"({"s":"a=b","t":"http://h/?q=1"})");
}

TEST(CallTypes, StringsHoldingTheFormatsOwnMarks) {
  EXPECT_EQ(clean("{s:~\"\"\" ``` {} ,t: ' \\ ~,i:1}"), R"({"s":"\"\"\" ``` {} ,t: ' \\ ","i":1})");
  EXPECT_EQ(clean("{s:\"a ~ b\",i:1}"), R"({"s":"a <|\"|> b","i":1})");
  EXPECT_EQ(clean("{s:~{\"not\": \"read\"}~,i:1}"), R"({"s":"{\"not\": \"read\"}","i":1})");
}

// What fits no declared type is passed on as it came, and said.
TEST(CallTypes, WhatDoesNotFitIsPassedOnWithADiagnostic) {
  const auto odd = [](const std::string& braces, const std::string& json, const std::string& argument) {
    const Typed result = typed(braces);
    EXPECT_EQ(result.json, json);
    ASSERT_EQ(result.diagnostics.size(), 1u) << braces;
    EXPECT_EQ(result.diagnostics[0],
              "call 0, tool \"f\": argument \"" + argument + "\": does not fit its declared type");
  };
  odd("{i:~five~,s:x}", R"({"i":"five","s":"x"})", "i");
  odd("{i:five,s:x}", R"({"i":"five","s":"x"})", "i");
  odd("{i:5.5,s:x}", R"({"i":5.5,"s":"x"})", "i");
  odd("{b:1,s:x}", R"({"b":1,"s":"x"})", "b");
  odd("{n:true,s:x}", R"({"n":true,"s":"x"})", "n");
  odd("{n:{a:1},s:x}", R"({"n":{"a":1},"s":"x"})", "n");
  odd("{o:[1],s:x}", R"({"o":[1],"s":"x"})", "o");
  odd("{o:~{broken~,s:x}", R"({"o":"{broken","s":"x"})", "o");
  odd("{o:~{\"n\": 1} and more~,s:x}", R"({"o":"{\"n\": 1} and more","s":"x"})", "o");
  odd("{l:~ see above ~,s:x}", R"({"l":" see above ","s":"x"})", "l");
  odd("{b:~" + std::string(600, ' ') + "true~,s:x}",
      R"({"b":")" + std::string(600, ' ') + R"(true","s":"x"})", "b");
  odd("{i:~" + std::string(600, '7') + "~,s:x}", R"({"i":")" + std::string(600, '7') + R"(","s":"x"})", "i");
}

TEST(CallTypes, DroppedKeysAreSaid) {
  const Typed result = typed("{s:x,stray,i:1}");
  EXPECT_EQ(result.json, R"({"s":"x","i":1})");
  ASSERT_EQ(result.diagnostics.size(), 1u);
  EXPECT_EQ(result.diagnostics[0], "call 0, tool \"f\": argument \"s\": a key without a value was dropped");
}

TEST(CallTypes, CutOffValuesAreStillTyped) {
  EXPECT_EQ(typed("{i:~12", false).json, R"({"i":12})");
  EXPECT_EQ(typed("{s:12", false).json, R"({"s":"12"})");
  EXPECT_EQ(typed("{o:~{\"n\": 1", false).json, R"({"o":"{\"n\": 1"})");
  EXPECT_EQ(typed("{l:[~1", false).json, R"({"l":[1]})");
}

TEST(CallTypes, UndeclaredToolsArePassedOn) {
  const auto tools = declared(kEverything);
  const Fed fed = feed("<|tool_call>call:g{i:<|\"|>5<|\"|>}<tool_call|>", {.tools = tools});
  ASSERT_EQ(fed.reply.tool_calls.size(), 1u);
  EXPECT_EQ(fed.reply.tool_calls[0], (ReplyCall{"g", R"({"i":"5"})"})) << "typed by its spelling alone";
  EXPECT_EQ(fed.reply.finish_reason, "tool_calls");
  EXPECT_EQ(fed.reply.diagnostics, std::vector<std::string>{"call 0, tool \"g\": is not declared"});
}

TEST(CallTypes, CallsWithoutANameBecomeContent) {
  const Fed fed = feed("<|tool_call>call:{i:5}<tool_call|>", {.tools = declared(kEverything)});
  EXPECT_EQ(fed.reply.content, "<|tool_call>call:{i:5}<tool_call|>");
  EXPECT_EQ(fed.reply.diagnostics, std::vector<std::string>{"a call without a name became content"});
}

// ---- streaming

TEST(CallTypes, DeclaredTextStreamsAndTheRestWaits) {
  ReplyParser parser({.tools = declared(kEverything)});
  const auto fed = [&](std::string_view text) {
    feed_marked_text(parser, text);
    std::string sent;
    for (const ReplyEvent& event : parser.take_events()) sent += event.text;
    return sent;
  };
  EXPECT_EQ(fed("<|tool_call>call:f{s:<|\"|>12"), R"(f{"s":"12)");
  EXPECT_EQ(fed("3<|\"|>,i:<|\"|>45"), R"(3","i":)");
  EXPECT_EQ(fed("6<|\"|>"), "456");
  EXPECT_EQ(fed(",l:<|\"|>no list"), R"(,"l":"no list)") << "text that can be nothing else leaves at once";
}

// ---- schemas

TEST(ArgumentTypes, UnreadableSchemasAllowAnything) {
  for (const char* schema :
       {"true", "null", "3", "[]", "{}", R"({"type":5})", R"({"type":[]})", R"({"type":"text"})",
        R"({"$ref":"#/nowhere"})", R"({"$ref":"#"})", R"({"$ref":"http://x/y"})", R"({"enum":[]})",
        R"({"anyOf":[]})", R"({"type":"string","enum":[1]})",
        R"({"allOf":[{"type":"string"},{"type":"null"}]})"}) {
    EXPECT_EQ(read_argument_type(parse_json(schema)).accepts, ArgumentType::kAny) << schema;
  }
}

TEST(ArgumentTypes, Alternatives) {
  const auto accepts = [](const char* schema) { return int{read_argument_type(parse_json(schema)).accepts}; };
  EXPECT_EQ(accepts(R"({"type":"STRING"})"), ArgumentType::kString) << "as Google spells types";
  EXPECT_EQ(accepts(R"({"oneOf":[{"type":"string"},{"type":"null"}]})"),
            ArgumentType::kString | ArgumentType::kNull);
  EXPECT_EQ(accepts(R"({"allOf":[{"type":["string","integer"]},{"type":"string"}]})"), ArgumentType::kString);
  EXPECT_EQ(accepts(R"({"const":true})"), ArgumentType::kBoolean);
  EXPECT_EQ(accepts(R"({"type":"number","enum":[1.5,2]})"), ArgumentType::kNumber | ArgumentType::kInteger);
  EXPECT_EQ(accepts(R"({"type":["string",null]})"), ArgumentType::kString | ArgumentType::kNull);
}

// A schema that contains itself twice over would be endless.
TEST(ArgumentTypes, SelfContainingSchemasEnd) {
  const JsonValue schema = parse_json(
      R"({"type":"object","properties":{"a":{"$ref":"#"},"b":{"$ref":"#"},"n":{"type":"integer"}}})");
  const ArgumentType type = read_argument_type(schema);
  ASSERT_NE(type.property("a"), nullptr);
  ASSERT_NE(type.property("a")->property("n"), nullptr);
  EXPECT_EQ(type.property("a")->property("n")->accepts, ArgumentType::kInteger);
}

// ---- any reply

TEST(CallTypes, RandomCallsDoNotDependOnTheCuts) {
  const std::vector<std::string> atoms = {
      "<|\"|>", "{",  "}",    "[",    "]",    ",",  ":",    "=",  "\"", "'",    "\\",     "\\u",
      "d83e",   "1",  "-2.5", "true", "None", "x",  " ",    "s",  "n",  "i",    "b",      "o",
      "l",      "s:", "i:",   "o:",   "l:",   "b:", "any:", "u:", "é",  "\xff", "<|turn>"};
  const auto tools = declared(kEverything);
  std::mt19937 random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = "<|tool_call>call:f{";
    for (auto n = random() % 30; n > 0; --n) text += atoms[random() % atoms.size()];
    if (i % 3 != 0) text += "<tool_call|>";
    const ReplyOptions options{.tools = tools};
    const Fed whole = feed(text, options);
    ASSERT_EQ(whole.joined.tool_calls, whole.reply.tool_calls) << text;
    ASSERT_EQ(feed(text, options, ReplyEnd::kStop, 1).reply, whole.reply) << text;
    ASSERT_EQ(feed(text, options, ReplyEnd::kStop, 3).joined.tool_calls, whole.reply.tool_calls) << text;
    for (const ReplyCall& call : whole.reply.tool_calls) {
      ASSERT_TRUE(nlohmann::json::parse(call.arguments, nullptr, false).is_object()) << text << "\n"
                                                                                     << call.arguments;
    }
  }
}

// Held and captured values in single characters: linear, or this does not end.
TEST(CallTypes, LongValuesTakeLinearTime) {
  const auto tools = declared(kEverything);
  for (const std::string_view opening :
       {"{o:<|\"|>{k:", "{s:[", "{s:{", "{i:<|\"|>", "{l:<|\"|>[", "{i:<|\"|> "}) {
    ReplyParser parser({.tools = tools});
    feed_marked_text(parser, "<|tool_call>call:f" + std::string(opening));
    for (int i = 0; i < 1'000'000; ++i) parser.text(i % 7 == 0 ? " " : "x");
    EXPECT_EQ(parser.finish(ReplyEnd::kLength).tool_calls.size(), 1u) << opening;
  }
}

}  // namespace
}  // namespace gem
