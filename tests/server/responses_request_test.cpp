#include "server/api/responses_request.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "server/api/api_error.h"
#include "server/api/json_fields.h"
#include "server/api_support.h"
#include "text/chat_format.h"

namespace gem::server {
namespace {

ResponsesRequest parse(std::string_view body) {
  RequestDefaults defaults;
  defaults.thinking = true;
  defaults.max_n = 4;
  defaults.vocab = 4096;
  return parse_responses_request(parse_object(body), defaults, testing::demo_session().tokenizer());
}

// The prompt that a body makes, without thinking.
std::string prompt(std::string_view body) {
  const ResponsesRequest request = parse(body);
  return to_text(render_chat(request.chat.messages, request.chat.tools).pieces);
}

const char* const kReply = "<|turn>model\n<|channel>thought\n<channel|>";

TEST(ResponsesRequest, AStringIsOneUserMessage) {
  EXPECT_EQ(prompt(R"({"input":"Hello"})"), std::string("<bos><|turn>user\nHello<turn|>\n") + kReply);
}

TEST(ResponsesRequest, InstructionsAndLeadingSystemMessagesAreTheOneSystemTurn) {
  EXPECT_EQ(prompt(R"({"instructions":"Be terse.","input":[
    {"role":"developer","content":"Use metres."},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"How"},
                                               {"type":"input_text","text":"far?"}]},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Far."}]},
    {"role":"user","content":"Really?"}]})"),
            std::string("<bos><|turn>system\nBe terse.\n\nUse metres.<turn|>\n"
                        "<|turn>user\nHow\nfar?<turn|>\n<|turn>model\nFar.<turn|>\n"
                        "<|turn>user\nReally?<turn|>\n") +
                kReply);
}

TEST(ResponsesRequest, AToolLoopIsOneModelTurn) {
  // As Codex sends it: reasoning, call and output as items; a second step after the first.
  const std::string text = prompt(R"({"input":[
    {"role":"user","content":"Sum up."},
    {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"First a."}]},
    {"type":"function_call","id":"fc_1","call_id":"c1","name":"get","arguments":"{\"k\":\"a\"}"},
    {"type":"function_call","id":"fc_2","call_id":"c2","name":"get","arguments":""},
    {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]},
    {"type":"function_call_output","call_id":"c1","output":"one"},
    {"type":"reasoning","summary":[{"type":"summary_text","text":"Then b."}]},
    {"type":"function_call","call_id":"c3","name":"put","arguments":"{}"},
    {"type":"function_call_output","call_id":"c3","output":"ok"}]})");
  EXPECT_EQ(
      text,
      "<bos><|turn>user\nSum up.<turn|>\n<|turn>model\n"
      "<|channel>thought\nFirst a.\n<channel|>"
      "<|tool_call>call:get{k:<|\"|>a<|\"|>}<tool_call|><|tool_call>call:get{}<tool_call|>"
      "<|tool_response>response:get{value:<|\"|>two<|\"|>}<tool_response|>"
      "<|tool_response>response:get{value:<|\"|>one<|\"|>}<tool_response|>"
      "<|channel>thought\nThen b.\n<channel|>"
      "<|tool_call>call:put{}<tool_call|><|tool_response>response:put{value:<|\"|>ok<|\"|>}<tool_response|>");
}

TEST(ResponsesRequest, AnOutputThatComesLateStandsBehindItsCall) {
  const std::string text = prompt(R"({"input":[
    {"role":"user","content":"Go."},
    {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
    {"role":"user","content":"Hurry."},
    {"type":"function_call_output","call_id":"c1","output":"done"}]})");
  EXPECT_NE(text.find("<tool_call|><|tool_response>response:f{value:<|\"|>done<|\"|>}<tool_response|>"),
            std::string::npos)
      << text;
}

TEST(ResponsesRequest, CallsOfCustomToolsInAHistoryAreCalls) {
  const std::string text = prompt(R"({"input":[{"role":"user","content":"Patch."},
    {"type":"custom_tool_call","call_id":"c","name":"apply","input":"*** Begin"},
    {"type":"custom_tool_call_output","call_id":"c","output":"ok"}]})");
  EXPECT_NE(text.find("call:apply{input:<|\"|>*** Begin<|\"|>}<tool_call|><|tool_response>response:apply"),
            std::string::npos)
      << text;
}

TEST(ResponsesRequest, FunctionToolsAreFlatAndOthersAreLeftOut) {
  const ResponsesRequest request = parse(R"({"input":"x","tools":[
    {"type":"web_search"},
    {"type":"function","name":"add","description":"Adds.","strict":true,
     "parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}},
    {"type":"custom","name":"patch"}]})");
  ASSERT_EQ(request.chat.tools.size(), 1u);
  EXPECT_EQ(request.chat.tools[0].name, "add");
  EXPECT_EQ(request.chat.tools[0].description, "Adds.");
  EXPECT_NE(request.chat.tools[0].parameters.find("properties"), nullptr);
  EXPECT_TRUE(request.chat.tools_active);
  EXPECT_EQ(request.response["tools"].size(), 3u);  // repeated as they were
  EXPECT_FALSE(parse(R"({"input":"x","tool_choice":"none","tools":[{"type":"function","name":"f"}]})")
                   .chat.tools_active);
}

TEST(ResponsesRequest, FieldsMeanWhatTheyMeanInChat) {
  const ResponsesRequest request =
      parse(R"({"input":"x","max_output_tokens":77,"temperature":0.5,"top_p":0.25,
    "top_k":3,"seed":9,"stream":true,"parallel_tool_calls":false,"stop":["###"],"metadata":{"a":"b"},
    "store":true,"include":["reasoning.encrypted_content"],"truncation":"auto","service_tier":"flex",
    "prompt_cache_key":"k","user":"u"})");
  const GenerationFields& g = request.chat.generation;
  EXPECT_EQ(g.max_tokens, 77u);
  EXPECT_EQ(g.sampling.temperature, 0.5);
  EXPECT_EQ(g.sampling.top_p, 0.25);
  EXPECT_EQ(g.sampling.top_k, 3u);
  EXPECT_EQ(g.sampling.seed, 9u);
  EXPECT_EQ(g.stops, std::vector<std::string>{"###"});
  EXPECT_TRUE(request.chat.stream.stream);
  EXPECT_FALSE(request.chat.parallel_tool_calls);
  EXPECT_EQ(request.response["max_output_tokens"], 77);
  EXPECT_EQ(request.response["metadata"]["a"], "b");
  EXPECT_EQ(request.response["store"], false);
  EXPECT_EQ(request.response["parallel_tool_calls"], false);
}

TEST(ResponsesRequest, TheResponseHasEveryOfficialKey) {
  const ResponsesRequest request = parse(R"({"input":"x"})");
  for (const char* key : {"id",
                          "object",
                          "created_at",
                          "completed_at",
                          "status",
                          "background",
                          "error",
                          "incomplete_details",
                          "instructions",
                          "max_output_tokens",
                          "max_tool_calls",
                          "model",
                          "output",
                          "parallel_tool_calls",
                          "previous_response_id",
                          "prompt_cache_key",
                          "reasoning",
                          "safety_identifier",
                          "service_tier",
                          "store",
                          "temperature",
                          "text",
                          "tool_choice",
                          "tools",
                          "top_logprobs",
                          "top_p",
                          "truncation",
                          "usage",
                          "user",
                          "metadata"}) {
    EXPECT_TRUE(request.response.contains(key)) << key;
  }
}

TEST(ResponsesRequest, EffortSwitchesThinking) {
  EXPECT_TRUE(parse(R"({"input":"x"})").chat.thinking);  // the server's default
  EXPECT_FALSE(parse(R"({"input":"x","reasoning":{"effort":"none","summary":"auto"}})").chat.thinking);
  EXPECT_TRUE(parse(R"({"input":"x","reasoning":{"effort":"high"},
                        "chat_template_kwargs":{"enable_thinking":false}})")
                  .chat.thinking);
  EXPECT_EQ(parse(R"({"input":"x","reasoning":{"effort":"low"}})").response["reasoning"]["effort"], "low");
  EXPECT_EQ(parse(R"({"input":"x","thinking_budget_tokens":40})").chat.thinking_budget, 40u);
}

TEST(ResponsesRequest, ATrailingAssistantMessageIsHistory) {
  const ResponsesRequest request =
      parse(R"({"input":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})");
  EXPECT_EQ(request.chat.continue_final, ContinueFinal::kNo);
}

TEST(ResponsesRequest, RefusalsNameTheField) {
  struct Case {
    const char* body;
    const char* param;
  };
  const Case cases[] = {
      {R"({})", "input"},
      {R"({"input":5})", "input"},
      {R"({"input":[]})", "input"},
      {R"({"input":"x","instructions":5})", "instructions"},
      {R"({"input":["x"]})", "input[0]"},
      {R"({"input":[{"role":"king","content":"x"}]})", "input[0].role"},
      {R"({"input":[{"role":"user"}]})", "input[0].content"},
      {R"({"input":[{"role":"user","content":7}]})", "input[0].content"},
      {R"({"input":[{"role":"user","content":[{"type":"input_text"}]}]})", "input[0].content[0].text"},
      {R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:x"}]}]})",
       "input[0].content[0]"},
      {R"({"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]})",
       "input[0].content[0].type"},
      {R"({"input":[{"type":"item_reference","id":"msg_1"}]})", "input[0].type"},
      {R"({"input":[{"type":"local_shell_call"}]})", "input[0].type"},
      {R"({"input":[{"type":"function_call","name":"f","arguments":"{}"}]})", "input[0].call_id"},
      {R"({"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"[1]"}]})",
       "input[0].arguments"},
      {R"({"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{"}]})",
       "input[0].arguments"},
      {R"({"input":[{"type":"function_call_output","call_id":"c","output":"x"}]})", "input[0].call_id"},
      {R"({"input":"x","previous_response_id":"resp_1"})", "previous_response_id"},
      {R"({"input":"x","conversation":"conv_1"})", "conversation"},
      {R"({"input":"x","background":true})", "background"},
      {R"({"input":"x","prompt":{"id":"p"}})", "prompt"},
      {R"({"input":"x","max_output_tokens":0})", "max_output_tokens"},
      {R"({"input":"x","max_output_tokens":"9"})", "max_output_tokens"},
      {R"({"input":"x","max_output_tokens":-5})", "max_output_tokens"},
      {R"({"input":"x","text":{"format":{"type":"json_object"}}})", "text.format"},
      {R"({"input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{}}}})", "text.format"},
      {R"({"input":"x","text":{"format":{"type":"xml"}}})", "text.format.type"},
      {R"({"input":"x","reasoning":{"effort":"lots"}})", "reasoning.effort"},
      {R"({"input":"x","tool_choice":"required"})", "tool_choice"},
      {R"({"input":"x","tool_choice":"maybe"})", "tool_choice"},
      {R"({"input":"x","tool_choice":{"type":"web_search"}})", "tool_choice.type"},
      {R"({"input":"x","tool_choice":{"type":"function","name":"g"}})", "tool_choice.name"},
      {R"({"input":"x","tools":[{"type":"function","name":"g"}],"tool_choice":{"type":"function","name":"g"}})",
       "tool_choice"},
      {R"({"input":"x","tools":[{"type":"function"}]})", "tools[0].name"},
      {R"({"input":"x","tools":[{"name":"f"}]})", "tools[0].type"},
      {R"({"input":"x","tools":[{"type":"function","name":"f","parameters":[]}]})", "tools[0].parameters"},
      {R"({"input":"x","top_logprobs":2})", "top_logprobs"},
      {R"({"input":"x","include":["message.output_text.logprobs"]})", "include[0]"},
      {R"({"input":"x","temperature":"hot"})", "temperature"},
      {R"({"input":"x","grammar":"root ::= x"})", "grammar"},
      {R"({"input":"x","n":2})", "n"},
  };
  for (const Case& c : cases) {
    try {
      parse(c.body);
      ADD_FAILURE() << "was taken: " << c.body;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400) << c.body;
      EXPECT_EQ(error.param, c.param) << c.body;
      EXPECT_NE(error.message.find(c.param), std::string::npos) << error.message;
    }
  }
}

}  // namespace
}  // namespace gem::server
