// The rules of the reply parser one by one, damaged replies, and the way back from rendered arguments.
#include "text/reply_parser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"
#include "text/reply_feed.h"

namespace gem {
namespace {

using testing::Fed;
using testing::feed;
using testing::show;

ParsedReply parsed(std::string_view text, const ReplyOptions& options = {}, ReplyEnd end = ReplyEnd::kStop) {
  const Fed fed = feed(text, options, end);
  EXPECT_EQ(fed.joined, fed.reply) << text;
  EXPECT_EQ(feed(text, options, end, 1).reply, fed.reply)
      << text << "\nby bytes: " << show(feed(text, options, end, 1).reply);
  return fed.reply;
}

std::string content(std::string_view text, const ReplyOptions& options = {}) {
  return parsed(text, options).content;
}
std::string reasoning(std::string_view text, const ReplyOptions& options = {}) {
  return parsed(text, options).reasoning;
}

// The arguments of call:f{…} with ~ for the quote token.
std::string arguments(std::string braces, bool closed = true) {
  for (std::size_t at = 0; (at = braces.find('~', at)) != std::string::npos; at += 5)
    braces.replace(at, 1, "<|\"|>");
  const ParsedReply reply = parsed("<|tool_call>call:f" + braces + (closed ? "<tool_call|>" : ""));
  EXPECT_EQ(reply.tool_calls.size(), 1u) << show(reply);
  EXPECT_EQ(reply.content, "") << braces;
  if (reply.tool_calls.empty()) return {};
  const std::string& json = reply.tool_calls[0].arguments;
  EXPECT_TRUE(nlohmann::json::parse(json, nullptr, false).is_object()) << braces << " became " << json;
  return json;
}

// ---- thoughts and content

TEST(ReplyParser, BlanksAtMarkers) {
  EXPECT_EQ(content("<channel|>\n\nAnswer \n"), "Answer \n");
  EXPECT_EQ(content(" \n"), " \n") << "a plain reply is untouched";
  EXPECT_EQ(content("Hi \n<channel|>"), "Hi");
  EXPECT_EQ(content("Hi<channel|> \n"), "Hi");
  EXPECT_EQ(content("Hi \u3000<|turn>\u2003there"), "Hi \u3000\u2003there");
  EXPECT_EQ(content("<|channel>thought\nx<channel|>\u00a0\u2028A"), "A");
}

TEST(ReplyParser, Labels) {
  EXPECT_EQ(reasoning("<|channel>thoughtful\nx<channel|>"), "thoughtful\nx");
  EXPECT_EQ(reasoning("<|channel>thought \n\u00a0x<channel|>"), "x");
  EXPECT_EQ(reasoning("<|channel>thou<channel|>"), "thou");
  EXPECT_EQ(reasoning("<|channel> thought\nx<channel|>"), " thought\nx");
  EXPECT_EQ(reasoning("<|channel>thought<|\"|>x<channel|>"), "thought<|\"|>x");
  EXPECT_EQ(reasoning("<|channel>thought"), "");
  EXPECT_EQ(reasoning("<|channel>"), "");
  EXPECT_EQ(reasoning("<|channel>thought\n<|channel>thought\nx<channel|>"), "x");
  EXPECT_EQ(reasoning("<|channel>thought\na<|channel>thought\nb<channel|>"), "athought\nb")
      << "later openers are dropped";
  EXPECT_EQ(reasoning("<|channel>thou<|channel>ght\nx<channel|>"), "thought\nx");
}

TEST(ReplyParser, TheNewlineBeforeTheCloseGoesBackIn) {
  EXPECT_EQ(reasoning("<|channel>thought\na\n\n<channel|>"), "a\n");
  EXPECT_EQ(reasoning("<|channel>thought\na\n<|channel>\nb<channel|>"), "a\n\nb");
  EXPECT_EQ(reasoning("<|channel>thought\na\n<|tool_call>call:f{}<tool_call|>"), "a");
  const ReplyOptions thinking{.start_thinking = true};
  EXPECT_EQ(reasoning("\n\na\n<channel|>b", thinking), "\n\na");
  EXPECT_EQ(reasoning(" \n<|channel>thought\na<channel|>", thinking), "a");
  EXPECT_EQ(reasoning("", thinking), "");
  EXPECT_EQ(content("<channel|>b", thinking), "b");
}

TEST(ReplyParser, MarkersWithoutTools) {
  const ReplyOptions plain{.tools_active = false};
  EXPECT_EQ(content("<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|> <tool_response|>", plain),
            "<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|> <tool_response|>");
  EXPECT_EQ(reasoning("<|channel>thought\na<|tool_call>b<channel|>", plain), "a<|tool_call>b");
  EXPECT_EQ(content("a<tool_call|><tool_response|><|turn>b<turn|><eos>"), "ab");
  EXPECT_EQ(content("a <|\"|>b"), "a <|\"|>b");
}

TEST(ReplyParser, WithoutExtractionThoughtsAreContent) {
  const ReplyOptions raw{.start_thinking = true, .extract_reasoning = false};
  const ParsedReply reply = parsed("a\n<channel|>b<|channel>thought\nc<|tool_call>call:f{}<tool_call|>", raw);
  EXPECT_EQ(reply.content, "a\n<channel|>b<|channel>thought\nc");
  EXPECT_EQ(reply.reasoning, "");
  EXPECT_EQ(reply.tool_calls.size(), 1u);
}

TEST(ReplyParser, SpelledMarkersInTextStayText) {
  ReplyParser parser(ReplyOptions{});
  parser.text("<|channel>thought\nx<channel|> <|tool_call>call:f{}<tool_call|>");
  EXPECT_EQ(parser.finish(ReplyEnd::kStop).content,
            "<|channel>thought\nx<channel|> <|tool_call>call:f{}<tool_call|>");
  EXPECT_TRUE(parser.reply().tool_calls.empty());
}

TEST(ReplyParser, FinishReason) {
  EXPECT_EQ(parsed("a", {}, ReplyEnd::kLength).finish_reason, "length");
  EXPECT_EQ(parsed("<|tool_call>call:f{", {}, ReplyEnd::kLength).finish_reason, "length");
  EXPECT_EQ(parsed("<|tool_call>call:f{}<tool_call|>").finish_reason, "tool_calls");
  EXPECT_EQ(parsed("a").finish_reason, "stop");
}

TEST(ReplyParser, BytesThatAreNoTextBecomeReplacementCharacters) {
  EXPECT_EQ(content("a\xff"
                    "b\xe4\xbd"),
            "a\ufffdb\ufffd\ufffd");
  EXPECT_EQ(content("\xc3<channel|>\xa9"), "\ufffd\ufffd") << "no character goes across a marker";
  EXPECT_EQ(arguments("{s:~\xed\xa0\x80~}"), "{\"s\":\"\ufffd\ufffd\ufffd\"}");
}

// Hardening S6: replies that break off at a marker, double it or do without, from prompts that open a thought
// and those that do not. Nothing of a marker reaches the message, and no thought its content.
TEST(ReplyParser, MarkersNeverReachTheMessage) {
  struct Item {
    const char* text;
    const char* reasoning;
    const char* content;
    const char* reasoning_if_open;  // when the prompt has opened the thought
    const char* content_if_open;
  };
  for (const Item& item : std::initializer_list<Item>{
           {"", "", "", "", ""},
           {"Hi", "", "Hi", "Hi", ""},
           {"<|channel>", "", "", "", ""},
           {"Hi<|channel>", "", "Hi", "Hi", ""},
           {"Hi <|channel>thought", "", "Hi", "Hi thought", ""},
           {"<|channel>thought", "", "", "", ""},
           {"<|channel>thought\n", "", "", "", ""},
           {"<|channel>thought\nA", "A", "", "A", ""},
           {"<|channel>thought\nA<channel|>", "A", "", "A", ""},
           {"<|channel><|channel>thought\nA<channel|>B", "A", "B", "A", "B"},
           {"<|channel>thought\n<|channel>thought\nA\n<channel|>B", "A", "B", "A", "B"},
           {"<|channel>thought\nA<channel|><channel|>B", "A", "B", "A", "B"},
           {"A\n<channel|>B", "", "A\nB", "A", "B"},
           {"<channel|>B", "", "B", "", "B"},
           {"<|channel>thought\nA<channel|>B<|channel>thought\nC<channel|>D", "AC", "BD", "AC", "BD"},
           {"<|channel>thought\n<channel|>B<turn|><turn|>", "", "B", "", "B"},
       }) {
    for (const ReplyEnd end : {ReplyEnd::kStop, ReplyEnd::kLength}) {
      const ParsedReply plain = parsed(item.text, {}, end);
      EXPECT_EQ(plain.reasoning, item.reasoning) << item.text;
      EXPECT_EQ(plain.content, item.content) << item.text;
      const ParsedReply open = parsed(item.text, {.start_thinking = true}, end);
      EXPECT_EQ(open.reasoning, item.reasoning_if_open) << item.text << ", thought open";
      EXPECT_EQ(open.content, item.content_if_open) << item.text << ", thought open";
    }
  }
}

// ---- calls

TEST(ReplyParser, NamesOfCalls) {
  const auto name = [](const std::string& text) {
    const ParsedReply reply = parsed("<|tool_call>" + text + "<tool_call|>");
    return reply.tool_calls.empty() ? "content: " + reply.content : reply.tool_calls[0].name;
  };
  EXPECT_EQ(name("call:f{}"), "f");
  EXPECT_EQ(name(":f{}"), "f");
  EXPECT_EQ(name("\n call:\tdefault_api:f \n"), "default_api:f");
  EXPECT_EQ(name("caller{}"), "caller");
  EXPECT_EQ(name("call:"), "content: <|tool_call>call:<tool_call|>");
  EXPECT_EQ(name(""), "content: <|tool_call><tool_call|>");
  EXPECT_EQ(name("call: {s:<|\"|>x<|\"|>} "), "content: <|tool_call>call: {s:<|\"|>x<|\"|>} <tool_call|>");
}

TEST(ReplyParser, Values) {
  EXPECT_EQ(arguments("{a:~x~,b:\"y\",c:'z',d:bare word}"), R"({"a":"x","b":"y","c":"z","d":"bare word"})");
  EXPECT_EQ(arguments("{a:True,b:False,c:None,d:nil,e:NULL,f:TRUE}"),
            R"({"a":true,"b":false,"c":null,"d":null,"e":null,"f":"TRUE"})");
  EXPECT_EQ(arguments("{a:-0.50E+10,b:+1,c:.5,d:0x1F,e:NaN,f:-,g:1e}"),
            R"({"a":-0.50E+10,"b":"+1","c":".5","d":"0x1F","e":"NaN","f":"-","g":"1e"})");
  EXPECT_EQ(arguments("{a:,b:\n,c:}"), R"({"a":null,"b":null,"c":null})");
  EXPECT_EQ(arguments("{l:[~a,b]~ , ~}~,],o:{k:{}}}"), R"({"l":["a,b]","}"],"o":{"k":{}}})");
}

TEST(ReplyParser, BlanksAndTrailingCommas) {
  EXPECT_EQ(arguments("{ a : 1 ,\n\tb\u00a0: [ 1 , 2 , ] , }"), R"({"a":1,"b":[1,2]})");
  EXPECT_EQ(arguments("{ }"), "{}");
  EXPECT_EQ(arguments("{,a:[ ]}"), R"({"a":[]})");
}

TEST(ReplyParser, Keys) {
  EXPECT_EQ(arguments("{~a~:1,\"b c\":2,'d' : 3, e.f-g :4}"), R"({"a":1,"b c":2,"d":3,"e.f-g":4})");
  EXPECT_EQ(arguments("{\"k\\\"\\u00e9\":1}"), R"({"k\"é":1})");
  EXPECT_EQ(arguments("{a,b:1,c}"), R"({"b":1})") << "keys without a value are dropped";
}

TEST(ReplyParser, EscapesOfJsonStrings) {
  EXPECT_EQ(arguments(R"({a:"\n\t\"\\\/\u0041\u00e9\ud83e\udd99"})"), "{\"a\":\"\\n\\t\\\"\\\\/Aé🦙\"}");
  EXPECT_EQ(arguments(R"({a:"\ud83e x\udd99\ud83e\ud83e\udd99"})"), "{\"a\":\"\ufffd x\ufffd\ufffd🦙\"}");
  EXPECT_EQ(arguments(R"({a:"\q\u12g"})"), R"({"a":"\\q\\u12g"})") << "unknown escapes stand for themselves";
  EXPECT_EQ(arguments(R"({a:'it\'s',b:2})"), R"({"a":"it's","b":2})");
  EXPECT_EQ(arguments(R"({a:~C:\new\x~})"), R"({"a":"C:\\new\\x"})")
      << "the format's own strings have no escapes";
}

TEST(ReplyParser, ControlCharactersAreEscapedMinimally) {
  EXPECT_EQ(arguments(std::string("{a:~\x01\x1f\b\f\r\x7f/é~}")),
            "{\"a\":\"\\u0001\\u001f\\b\\f\\r\x7f/é\"}");
}

TEST(ReplyParser, StringsHoldingTheFormatsOwnMarks) {
  EXPECT_EQ(arguments("{s:~\"\"\" ``` {} ,key: ' \\ ~,n:1}"), R"({"s":"\"\"\" ``` {} ,key: ' \\ ","n":1})");
  EXPECT_EQ(arguments("{s:\"a ~ b\",n:1}"), R"({"s":"a <|\"|> b","n":1})");
  EXPECT_EQ(arguments("{s:~<|turn>model <|channel>x<channel|>~}"),
            R"({"s":"<|turn>model <|channel>x<channel|>"})");
}

TEST(ReplyParser, ContainersInOtherSpellings) {
  EXPECT_EQ(arguments(R"({"o": {"a": [1, "x", null], "b": {"c": true}}, "n": 1})"),
            R"({"o":{"a":[1,"x",null],"b":{"c":true}},"n":1})");
  EXPECT_EQ(arguments("{o:{'a': [1, 'x', None], 'b': {'c': True}}, n:1}"),
            R"({"o":{"a":[1,"x",null],"b":{"c":true}},"n":1})");
}

// What is damaged never costs its siblings.
TEST(ReplyParser, SiblingsSurvive) {
  EXPECT_EQ(arguments("{a=1,b=~x~,c={d=[1]},e:2}"), R"({"a":1,"b":"x","c":{"d":[1]},"e":2})")
      << "'=' for ':'";
  EXPECT_EQ(arguments("{url:http://h/?q=1,b:2}"), R"({"url":"http://h/?q=1","b":2})");
  EXPECT_EQ(arguments("{a:~x~ b:2}"), R"({"a":"x","b":2})") << "a missing comma";
  EXPECT_EQ(arguments("{a:~x~~,b:2}"), R"({"a":"x","b":2})") << "a doubled quote";
  EXPECT_EQ(arguments("{a:~x~ rest,b:2}"), R"({"a":"x","b":2})");
  EXPECT_EQ(arguments("{a:[~x~ ~y~],b:2}"), R"({"a":["x","y"],"b":2})");
  EXPECT_EQ(arguments("{a:[1,2},b:2}"), R"({"a":[1,2]})") << "the brace closes the object";
  EXPECT_EQ(arguments("{a:1],b:2}"), R"({"a":1,"b":2})");
  EXPECT_EQ(arguments("{a:{x:1],b:2},c:3}"), R"({"a":{"x":1,"b":2},"c":3})");
}

TEST(ReplyParser, CutOffCalls) {
  EXPECT_EQ(arguments("{a:~x", false), R"({"a":"x"})");
  EXPECT_EQ(arguments("{a:[1,{b:~", false), R"({"a":[1,{"b":""}]})");
  EXPECT_EQ(arguments("{a:1,b", false), R"({"a":1})");
  EXPECT_EQ(arguments("{a:1,b:", false), R"({"a":1})");
  EXPECT_EQ(arguments("{a:1,~b~", false), R"({"a":1})");
  EXPECT_EQ(arguments("{a:1,~b", false), R"({"a":1})");
  EXPECT_EQ(arguments("{a:tr", false), R"({"a":"tr"})");
  EXPECT_EQ(arguments("{a:\"x\\", false), R"({"a":"x\\"})");
  EXPECT_EQ(arguments("{a:\"\\ud83e", false), "{\"a\":\"\ufffd\"}");
  EXPECT_EQ(arguments("{", false), "{}");
  const ParsedReply two = parsed("<|tool_call>call:f{s:<|\"|>x<|tool_call>call:g{b:2}<tool_call|>");
  ASSERT_EQ(two.tool_calls.size(), 2u);
  EXPECT_EQ(two.tool_calls[0], (ReplyCall{"f", R"({"s":"x"})"}));
  EXPECT_EQ(two.tool_calls[1], (ReplyCall{"g", R"({"b":2})"}));
}

TEST(ReplyParser, TextAfterTheClosingBraceIsIgnored) {
  EXPECT_EQ(arguments("{a:1} } trailing {b:2}~"), R"({"a":1})");
  const ParsedReply reply = parsed("<|tool_call>call:f{a:1} <|channel>thought\nx<channel|>y");
  EXPECT_EQ(reply.reasoning, "x") << "a missing closing marker";
  EXPECT_EQ(reply.content, "y");
}

TEST(ReplyParser, DeepNestingIsCutToWhatClientsCanRead) {
  std::string deep = "{a:";
  for (int i = 0; i < 100'000; ++i) deep += i % 2 == 0 ? "[" : "{k:";
  const std::string cut = arguments(deep, false);
  EXPECT_LT(cut.size(), 2'000u);
  EXPECT_NO_THROW(parse_json(cut)) << "the renderer takes it back";
  std::string closed = "{a:" + std::string(300, '[') + "\"]\"" + std::string(300, ']') + ",b:1}";
  EXPECT_TRUE(arguments(closed).ends_with("],\"b\":1}"));
}

// ---- streaming

TEST(ReplyStream, StringsLeaveAsTheyCome) {
  ReplyParser parser(ReplyOptions{});
  const auto fed = [&](std::string_view text) {
    feed_marked_text(parser, text);
    std::string sent;
    for (const ReplyEvent& event : parser.take_events()) {
      sent += event.kind == ReplyEvent::Kind::kCallStart ? "[" + event.text + "]" : event.text;
    }
    return sent;
  };
  EXPECT_EQ(fed("<|tool_call>call:write"), "");
  EXPECT_EQ(fed("_file{"), "[write_file]{");
  EXPECT_EQ(fed("path:"), "");
  EXPECT_EQ(fed("<|\"|>"), R"("path":")");
  EXPECT_EQ(fed("a\n"), R"(a\n)");
  EXPECT_EQ(fed("<|\"|>,n:1"), R"(")");
  EXPECT_EQ(fed("2"), "") << "a number waits for its end";
  EXPECT_EQ(fed("}"), R"(,"n":12})");
}

TEST(ReplyStream, ContentLeavesUpToItsTrailingBlanks) {
  ReplyParser parser(ReplyOptions{});
  parser.text("Hello \n");
  ASSERT_EQ(parser.take_events().at(0).text, "Hello");
  parser.text("x");
  ASSERT_EQ(parser.take_events().at(0).text, " \nx");
  EXPECT_FALSE(parser.in_thought());
}

// Long strings and long garbage in single characters: this ends at once or, with a quadratic scan, not at
// all.
TEST(ReplyStream, LongArgumentsTakeLinearTime) {
  for (const std::string_view opening : {"{s:<|\"|>", "{s:\"", "{k", "{s:", "{s:1} ", "name"}) {
    ReplyParser parser(ReplyOptions{});
    feed_marked_text(parser, "<|tool_call>call:f" + std::string(opening));
    for (int i = 0; i < 2'000'000; ++i) parser.text(i % 7 == 0 ? " " : "x");
    EXPECT_EQ(parser.finish(ReplyEnd::kLength).tool_calls.size(), 1u) << opening;
  }
}

// ---- the way back

// Values as they survive the format: its strings cannot hold <|"|>, its keys are bare.
nlohmann::ordered_json random_value(std::mt19937& random, int depth) {
  static const std::vector<std::string> kTexts = {"",
                                                  "x",
                                                  "two words",
                                                  " padded ",
                                                  "true",
                                                  "12",
                                                  "a,b:c}]",
                                                  "\"q\"",
                                                  "'",
                                                  "\\n\\",
                                                  "line\nline\t",
                                                  "größe 日本 🦙",
                                                  "{\"a\": [1]}",
                                                  "<tag>"};
  static const std::vector<std::string> kKeys = {"a", "Key", "k-1", "größe", "x y", "_"};
  switch (random() % (depth > 3 ? 5 : 7)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<std::int64_t>(random()) - (1LL << 31);
    case 3:
      return std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 100);
    case 4:
      return kTexts[random() % kTexts.size()];
    case 5: {
      auto list = nlohmann::ordered_json::array();
      for (auto n = random() % 4; n > 0; --n) list.push_back(random_value(random, depth + 1));
      return list;
    }
    default: {
      auto object = nlohmann::ordered_json::object();
      for (auto n = random() % 4; n > 0; --n) {
        object[kKeys[random() % kKeys.size()]] = random_value(random, depth + 1);
      }
      return object;
    }
  }
}

TEST(ReplyRoundTrip, RenderedArgumentsParseToTheSameValues) {
  std::mt19937 random(7);
  for (int i = 0; i < 2'000; ++i) {
    nlohmann::ordered_json value = {{"v", random_value(random, 0)}, {"w", random_value(random, 0)}};
    Message message;
    message.role = "assistant";
    message.tool_calls.push_back({std::nullopt, "some.tool", to_json_value(value)});
    std::string rendered;
    for (const PromptPiece& piece : render_chat({message}, {}, {}).pieces) rendered += piece.text;
    const std::size_t begin = rendered.find("<|tool_call>");
    const std::string call = rendered.substr(begin, rendered.rfind("<|tool_response>") - begin);
    const ParsedReply reply = parsed(call);
    ASSERT_EQ(reply.tool_calls.size(), 1u) << call;
    EXPECT_EQ(reply.tool_calls[0].name, "some.tool");
    // Keys come back in the order they were rendered in: compare without order.
    EXPECT_EQ(nlohmann::json::parse(reply.tool_calls[0].arguments), nlohmann::json::parse(value.dump()))
        << call;
  }
}

TEST(ReplyRoundTrip, ReRenderedThoughtsAreTheBytesGenerated) {
  const std::string generated = "<|channel>thought\nFirst.\n\n  Then.\n<channel|>Answer";
  const ParsedReply reply = parsed(generated);
  std::vector<Message> messages(2);
  messages[0].role = "user";
  messages[1].role = "assistant";
  messages[1].reasoning = reply.reasoning;
  messages[1].content = {Content::Form::kText, reply.content, {}};
  EXPECT_TRUE(to_text(render_chat(messages, {}, {.add_generation_prompt = false}).pieces)
                  .ends_with("<|turn>model\n" + generated + "<turn|>\n"));
}

// Random strings of marks: nothing breaks, cuts do not matter, arguments are JSON.
TEST(ReplyParser, RandomRepliesDoNotDependOnTheCuts) {
  const std::vector<std::string> atoms = {"<|channel>",
                                          "<channel|>",
                                          "<|tool_call>",
                                          "<tool_call|>",
                                          "<|\"|>",
                                          "<|tool_response>",
                                          "<|turn>",
                                          "thought",
                                          "\n",
                                          " ",
                                          "call:",
                                          "f",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\"",
                                          "'",
                                          "\\",
                                          "u",
                                          "d83e",
                                          "1",
                                          "true",
                                          "é",
                                          "=",
                                          "\xff",
                                          "\xe4\xbd",
                                          "\u3000"};
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (auto n = random() % 24; n > 0; --n) text += atoms[random() % atoms.size()];
    if (i % 2 == 0) text = "<|tool_call>call:f{" + text;
    const ReplyOptions options{random() % 2 == 0, random() % 4 != 0, random() % 4 != 0};
    const Fed whole = feed(text, options);
    ASSERT_EQ(whole.joined, whole.reply) << text;
    ASSERT_EQ(feed(text, options, ReplyEnd::kStop, 1).reply, whole.reply) << text;
    ASSERT_EQ(feed(text, options, ReplyEnd::kStop, 3).joined, whole.reply) << text;
    for (const ReplyCall& call : whole.reply.tool_calls) {
      ASSERT_TRUE(nlohmann::json::parse(call.arguments, nullptr, false).is_object()) << text << "\n"
                                                                                     << call.arguments;
    }
  }
}

}  // namespace
}  // namespace gem
