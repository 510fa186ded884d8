#include "server/api/anthropic_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

#include "server/api/api_error.h"
#include "server/api/json_fields.h"
#include "server/api_support.h"
#include "text/chat_format.h"

namespace gem::server {
namespace {

AnthropicRequest parse(std::string_view body) {
  RequestDefaults defaults;
  defaults.thinking = true;
  defaults.max_n = 4;
  defaults.vocab = 4096;
  return parse_anthropic_request(parse_object(body), defaults, testing::demo_session().tokenizer());
}

std::string prompt(std::string_view body) {
  const AnthropicRequest request = parse(body);
  ChatOptions options;
  options.continue_final = request.chat.continue_final;
  return to_text(render_chat(request.chat.messages, request.chat.tools, options).pieces);
}

const char* const kReply = "<|turn>model\n<|channel>thought\n<channel|>";

TEST(AnthropicRequest, SystemIsTextOrBlocks) {
  const std::string expected = std::string(
                                   "<bos><|turn>system\nBe terse.\nUse metres.<turn|>\n"
                                   "<|turn>user\nHello<turn|>\n") +
                               kReply;
  EXPECT_EQ(prompt(R"({"system":"Be terse.\nUse metres.","messages":[{"role":"user","content":"Hello"}]})"),
            expected);
  EXPECT_EQ(prompt(R"({"system":[{"type":"text","text":"Be terse.","cache_control":{"type":"ephemeral"}},
                                 {"type":"text","text":"Use metres."}],
                       "messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}]})"),
            expected);
}

TEST(AnthropicRequest, TheBillingHeaderIsTheSameInEveryRequest) {
  const auto with = [](const char* cch) {
    return prompt(
        std::string(R"({"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2; cch=)") +
        cch + R"(;"},{"type":"text","text":"You are Claude Code; cch=abcde;"}],
                  "messages":[{"role":"user","content":"Hi"}]})");
  };
  EXPECT_EQ(with("12ab3"), with("ffe90"));
  EXPECT_NE(with("12ab3").find("cch=00000;"), std::string::npos);
  EXPECT_NE(with("12ab3").find("cch=abcde;"), std::string::npos) << "only the header is touched";
  for (const char* untouched :
       {"x-anthropic-billing-header: cch=1234;", "x-anthropic-billing-header: cch=123456;",
        "x-anthropic-billing-header: none\ncch=12345;", "a x-anthropic-billing-header: cch=12345;",
        "x-anthropic-billing-header: cch=", ""}) {
    std::string text = untouched;
    normalise_billing_header(text);
    EXPECT_EQ(text, untouched);
  }
}

TEST(AnthropicRequest, AToolLoopIsOneModelTurn) {
  // Results come first in the user message, whatever their place in it and their order.
  const std::string text = prompt(R"({"messages":[
    {"role":"user","content":"Sum up."},
    {"role":"assistant","content":[
      {"type":"thinking","thinking":"First a.","signature":"s"},
      {"type":"redacted_thinking","data":"xyz"},
      {"type":"tool_use","id":"t1","name":"get","input":{"k":"a"}},
      {"type":"tool_use","id":"t2","name":"get","input":{}}]},
    {"role":"user","content":[
      {"type":"text","text":"Here you are."},
      {"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"two"}]},
      {"type":"tool_result","tool_use_id":"t1","content":"one"}]}]})");
  EXPECT_EQ(text,
            std::string("<bos><|turn>user\nSum up.<turn|>\n<|turn>model\n"
                        "<|tool_call>call:get{k:<|\"|>a<|\"|>}<tool_call|><|tool_call>call:get{}<tool_call|>"
                        "<|tool_response>response:get{value:<|\"|>two<|\"|>}<tool_response|>"
                        "<|tool_response>response:get{value:<|\"|>one<|\"|>}<tool_response|>"
                        "<turn|>\n<|turn>user\nHere you are.<turn|>\n") +
                kReply);
}

TEST(AnthropicRequest, ThoughtsOfTheRunningTurnAreKept) {
  const std::string text = prompt(R"({"messages":[
    {"role":"user","content":"Go."},
    {"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":""},
                                   {"type":"tool_use","id":"t","name":"f","input":{}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]})");
  EXPECT_NE(text.find("<|channel>thought\nHm.\n<channel|><|tool_call>call:f{}"), std::string::npos) << text;
  EXPECT_NE(text.find("response:f{value:<|\"|><|\"|>}"), std::string::npos) << text;
}

TEST(AnthropicRequest, AFailedToolSaysSo) {
  const auto result = [](const char* content) {
    return prompt(std::string(R"({"messages":[{"role":"user","content":"Go."},
      {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":)") +
                  content + "}]}]}");
  };
  EXPECT_NE(result(R"("no such file")").find("<|\"|>Error: no such file<|\"|>"), std::string::npos);
  EXPECT_NE(result(R"("ERROR 5")").find("<|\"|>ERROR 5<|\"|>"), std::string::npos);
  EXPECT_NE(result(R"([])").find("<|\"|>Error<|\"|>"), std::string::npos);
}

TEST(AnthropicRequest, DocumentsAndSearchResultsAreText) {
  const std::string text = prompt(R"({"messages":[{"role":"user","content":[
    {"type":"document","title":"Log","source":{"type":"text","media_type":"text/plain","data":"line 1"}},
    {"type":"document","source":{"type":"content","content":[{"type":"text","text":"line 2"}]}},
    {"type":"search_result","title":"Web","source":"a.example","content":[{"type":"text","text":"hit"}]},
    {"type":"text","text":"What?"}]}]})");
  EXPECT_NE(text.find("<|turn>user\nLog\nline 1\nline 2\nWeb\na.example\nhit\nWhat?<turn|>"),
            std::string::npos)
      << text;
}

TEST(AnthropicRequest, ATrailingAssistantMessageIsContinued) {
  const std::string text =
      prompt(R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello, my"}]})");
  EXPECT_TRUE(text.ends_with("<channel|>Hello, my")) << text;
  // One that says nothing is none.
  EXPECT_EQ(parse(R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":[]}]})")
                .chat.continue_final,
            ContinueFinal::kNo);
}

TEST(AnthropicRequest, ThinkingIsOffUnlessAskedFor) {
  const auto with = [](const std::string& thinking) {
    return parse(R"({"messages":[{"role":"user","content":"x"}])" + thinking + "}");
  };
  EXPECT_FALSE(with("").chat.thinking);  // whatever the server's default is
  EXPECT_FALSE(with(R"(,"thinking":{"type":"disabled"})").chat.thinking);
  EXPECT_TRUE(with(R"(,"thinking":{"type":"adaptive"})").chat.thinking);
  const AnthropicRequest enabled =
      with(R"(,"thinking":{"type":"enabled","budget_tokens":2000,"display":"omitted"})");
  EXPECT_TRUE(enabled.chat.thinking);
  EXPECT_EQ(enabled.chat.thinking_budget, 2000u);
  EXPECT_TRUE(enabled.omit_thinking);
  EXPECT_FALSE(with(R"(,"thinking":{"type":"adaptive","display":"summarized"})").omit_thinking);
}

TEST(AnthropicRequest, FieldsMeanWhatTheyMeanInChat) {
  const AnthropicRequest request = parse(R"({"model":"claude","max_tokens":64,"temperature":0.5,"top_p":0.25,
    "top_k":3,"stop_sequences":["###","END"],"stop":"no field of this API","stream":true,
    "metadata":{"user_id":"u"},"service_tier":"auto","output_config":{"effort":"high"},
    "messages":[{"role":"user","content":"x"}],
    "tools":[{"type":"web_search_20250305","name":"web_search"},
             {"name":"f","description":"Does.","input_schema":{"type":"object"}},
             {"type":"custom","name":"g","input_schema":{"type":"object"}}],
    "tool_choice":{"type":"auto","disable_parallel_tool_use":true}})");
  const GenerationFields& g = request.chat.generation;
  EXPECT_EQ(g.max_tokens, 64u);
  EXPECT_EQ(g.sampling.temperature, 0.5);
  EXPECT_EQ(g.sampling.top_p, 0.25);
  EXPECT_EQ(g.sampling.top_k, 3u);
  EXPECT_EQ(g.stops, (std::vector<std::string>{"###", "END"}));
  EXPECT_TRUE(request.chat.stream.stream);
  EXPECT_FALSE(request.chat.parallel_tool_calls);
  EXPECT_TRUE(request.chat.tools_active);
  ASSERT_EQ(request.chat.tools.size(), 2u);
  EXPECT_EQ(request.chat.tools[0].name, "f");
  EXPECT_EQ(request.chat.tools[1].name, "g");
  EXPECT_FALSE(parse(R"({"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f"}],
                         "tool_choice":{"type":"none"}})")
                   .chat.tools_active);
}

TEST(AnthropicRequest, ThreadsAreRefusedInTheWayThatClientsFallBackFrom) {
  try {
    parse(R"({"messages":[{"role":"user","content":"x"}],"thread":{"type":"create"}})");
    FAIL() << "was taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.param, "thread");
    const auto body = nlohmann::json::parse(error_body(error, ErrorShape::kAnthropic));
    EXPECT_EQ(body["error"]["type"], "invalid_request_error");
    EXPECT_EQ(body["error"]["details"]["error_code"], "thread_unsupported_request");
  }
  EXPECT_EQ(parse(R"({"messages":[{"role":"user","content":"x"}],"thread":null})").chat.messages.size(), 1u);
}

TEST(AnthropicRequest, RefusalsNameTheField) {
  struct Case {
    const char* fields;  // beside messages
    const char* param;
  };
  const Case cases[] = {
      {R"("system":5)", "system"},
      {R"("system":[{"type":"image","source":{}}])", "system[0]"},
      {R"("max_tokens":"many")", "max_tokens"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("stop_sequences":[5])", "stop_sequences[0]"},
      {R"("stop_sequences":7)", "stop_sequences"},
      {R"("temperature":"hot")", "temperature"},
      {R"("top_p":2)", "top_p"},
      {R"("thinking":{"type":"deep"})", "thinking.type"},
      {R"("thinking":{})", "thinking.type"},
      {R"("thinking":{"type":"enabled","budget_tokens":-1})", "thinking.budget_tokens"},
      {R"("thinking":{"type":"enabled","display":"loud"})", "thinking.display"},
      {R"("tool_choice":{"type":"any"})", "tool_choice"},
      {R"("tool_choice":{"type":"tool","name":"f"},"tools":[{"name":"f"}])", "tool_choice"},
      {R"("tool_choice":{"type":"tool","name":"g"},"tools":[{"name":"f"}])", "tool_choice.name"},
      {R"("tool_choice":{"type":"some"})", "tool_choice.type"},
      {R"("tool_choice":"auto")", "tool_choice"},
      {R"("tools":[{"description":"x"}])", "tools[0].name"},
      {R"("tools":[{"name":"f","input_schema":"x"}])", "tools[0].input_schema"},
      {R"("output_format":{"type":"json_schema"})", "output_format"},
      {R"("output_config":{"format":{"type":"json_schema"}})", "output_config.format"},
      {R"("mcp_servers":[{"url":"u"}])", "mcp_servers"},
      {R"("container":"c")", "container"},
      {R"("n":2)", "n"},
  };
  const auto refused = [](const std::string& body, const std::string& param) {
    try {
      parse(body);
      ADD_FAILURE() << "was taken: " << body;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400) << body;
      EXPECT_EQ(error.param, param) << body;
      EXPECT_NE(error.message.find(param), std::string::npos) << error.message;
    }
  };
  for (const Case& c : cases) {
    refused(std::string(R"({"messages":[{"role":"user","content":"x"}],)") + c.fields + "}", c.param);
  }
  const Case messages[] = {
      {R"(5)", "messages"},
      {R"([])", "messages"},
      {R"(["x"])", "messages[0]"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":"king","content":"x"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"image","source":{"type":"base64"}}]}])",
       "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":[{"type":"document","source":{"type":"base64","data":""}}]}])",
       "messages[0].content[0].source.type"},
      {R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"x"}]}])",
       "messages[0].content[0].tool_use_id"},
      {R"([{"role":"assistant","content":[{"type":"server_tool_use","id":"i","name":"n","input":{}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"n","input":"x"}]}])",
       "messages[0].content[0].input"},
      {R"([{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"n","input":{}}]},
           {"role":"user","content":[{"type":"tool_result","tool_use_id":"t",
                                      "content":[{"type":"text","text":"a"},{"type":"image"}]}]}])",
       "messages[1].content[0].content[1]"},
      {R"([{"role":"assistant","content":""}])", "messages"},
  };
  for (const Case& c : messages) refused(std::string(R"({"messages":)") + c.fields + "}", c.param);
}

}  // namespace
}  // namespace gem::server
