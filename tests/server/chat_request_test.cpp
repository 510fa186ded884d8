#include "server/api/chat_request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "server/api/json_fields.h"
#include "server/api_support.h"

namespace gem::server {
namespace {

using testing::demo_defaults;
using testing::demo_session;
using testing::refusal;

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"Hi"}])";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object"}}}])";

ChatRequest parse(const std::string& members, RequestDefaults defaults = demo_defaults()) {
  const std::string body = std::string("{") + kMessages + (members.empty() ? "" : ",") + members + "}";
  return parse_chat_request(parse_object(body), defaults, demo_session().tokenizer());
}

ChatRequest parse_body_text(const std::string& body) {
  return parse_chat_request(parse_object(body), demo_defaults(), demo_session().tokenizer());
}

TEST(ChatRequest, SaysNothingMeansTheDefaults) {
  const ChatRequest r = parse("");
  const SamplingParams d = demo_session().default_sampling();
  EXPECT_EQ(r.generation.sampling.temperature, d.temperature);
  EXPECT_EQ(r.generation.sampling.top_k, d.top_k);
  EXPECT_EQ(r.generation.max_tokens, 0u);  // until the context ends
  EXPECT_EQ(r.generation.n, 1u);
  EXPECT_TRUE(r.generation.reuse_prompt);
  EXPECT_FALSE(r.stream.stream);
  EXPECT_FALSE(r.tools_active);  // there are none
  EXPECT_EQ(r.continue_final, ContinueFinal::kNo);
}

TEST(ChatRequest, NullCountsAsAbsentInEveryField) {
  std::string members;
  for (const char* field : {"temperature",
                            "top_p",
                            "top_k",
                            "min_p",
                            "seed",
                            "stop",
                            "n",
                            "max_tokens",
                            "max_completion_tokens",
                            "logit_bias",
                            "logprobs",
                            "top_logprobs",
                            "tools",
                            "tool_choice",
                            "response_format",
                            "grammar",
                            "stream",
                            "stream_options",
                            "reasoning_effort",
                            "chat_template_kwargs",
                            "reasoning_format",
                            "samplers",
                            "functions",
                            "function_call",
                            "typical_p",
                            "mirostat",
                            "lora",
                            "modalities",
                            "thinking_budget_tokens",
                            "cache_prompt",
                            "draft",
                            "continue_final_message",
                            "add_generation_prompt",
                            "parallel_tool_calls",
                            "echo",
                            "model"}) {
    members += std::string(members.empty() ? "" : ",") + "\"" + field + "\":null";
  }
  EXPECT_EQ(parse(members).generation.n, 1u);
}

TEST(ChatRequest, WhatIsHonouredArrives) {
  const ChatRequest r = parse(
      R"("temperature":0.5,"top_k":7,"top_p":0.8,"min_p":0.1,"seed":11,"presence_penalty":0.5,
         "frequency_penalty":-1,"max_tokens":33,"n":3,"stop":["a","","b"],"logprobs":true,"top_logprobs":4,
         "return_tokens":true,"ignore_eos":true,"cache_prompt":false,"draft":false,"t_max_predict_ms":1500,"stream":true,
         "stream_options":{"include_usage":true},"return_progress":true,"timings_per_token":true,
         "reasoning_control":true,"parallel_tool_calls":false)");
  const GenerationFields& g = r.generation;
  EXPECT_FALSE(g.draft);
  EXPECT_EQ(g.sampling.temperature, 0.5);
  EXPECT_EQ(g.sampling.top_k, 7u);
  EXPECT_EQ(g.sampling.top_p, 0.8);
  EXPECT_EQ(g.sampling.min_p, 0.1);
  EXPECT_EQ(g.sampling.seed, 11u);
  EXPECT_EQ(g.sampling.presence_penalty, 0.5);
  EXPECT_EQ(g.sampling.frequency_penalty, -1);
  EXPECT_EQ(g.sampling.penalty_window, 0u);  // the official fields look at the whole reply
  EXPECT_EQ(g.max_tokens, 33u);
  EXPECT_EQ(g.n, 3u);
  EXPECT_EQ(g.stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(g.logprobs, 4u);
  EXPECT_TRUE(g.return_tokens);
  EXPECT_TRUE(g.ignore_eos);
  EXPECT_FALSE(g.reuse_prompt);
  EXPECT_EQ(g.time_limit, std::chrono::milliseconds(1500));
  EXPECT_TRUE(r.stream.stream && r.stream.include_usage && r.stream.return_progress &&
              r.stream.timings_per_token && r.reasoning_control);
  EXPECT_FALSE(r.parallel_tool_calls);
}

TEST(ChatRequest, EdgesOfRangesHaveTheirMeaning) {
  EXPECT_EQ(parse(R"("temperature":-3)").generation.sampling.temperature, 0);
  EXPECT_EQ(parse(R"("top_k":-5)").generation.sampling.top_k, 0u);
  EXPECT_EQ(parse(R"("top_k":99999999999)").generation.sampling.top_k,
            std::numeric_limits<std::uint32_t>::max());
  EXPECT_EQ(parse(R"("max_tokens":-1)").generation.max_tokens, 0u);
  EXPECT_EQ(parse(R"("max_tokens":99999999999)").generation.max_tokens,
            std::numeric_limits<std::uint32_t>::max());
  // The first one counts, in llama-server's order.
  EXPECT_EQ(parse(R"("max_tokens":1,"max_completion_tokens":2,"n_predict":3)").generation.max_tokens, 3u);
  EXPECT_EQ(parse(R"("max_tokens":1,"max_completion_tokens":2)").generation.max_tokens, 2u);
  EXPECT_EQ(parse(R"("logprobs":true)").generation.logprobs, 0u);
  EXPECT_EQ(parse(R"("logprobs":false,"top_logprobs":0)").generation.logprobs, std::nullopt);
  EXPECT_EQ(parse(R"("seed":-2)").generation.sampling.seed, ~std::uint64_t{0} - 1);
}

TEST(ChatRequest, SeedsAreRandomWhereNoneIsGiven) {
  const auto seed = [](const char* members) { return parse(members).generation.sampling.seed; };
  EXPECT_NE(seed(""), seed(""));
  EXPECT_NE(seed(R"("seed":-1)"), seed(R"("seed":-1)"));
  EXPECT_EQ(seed(R"("seed":7)"), seed(R"("seed":7)"));
}

TEST(ChatRequest, PenaltiesLookWhereTheirFieldSays) {
  const auto sampling = [](const char* members) { return parse(members).generation.sampling; };
  EXPECT_EQ(sampling(R"("repeat_penalty":1.1)").penalty_window, 64u);
  EXPECT_EQ(sampling(R"("repeat_penalty":1.1)").repetition_penalty, 1.1);
  EXPECT_EQ(sampling(R"("repetition_penalty":1.1)").penalty_window, 0u);
  EXPECT_EQ(sampling(R"("repeat_penalty":1.1,"repeat_last_n":5)").penalty_window, 5u);
  EXPECT_EQ(sampling(R"("repeat_penalty":1.1,"repeat_last_n":-1)").penalty_window,
            std::numeric_limits<std::uint32_t>::max());
  const SamplingParams off = sampling(R"("repeat_penalty":1.1,"presence_penalty":1,"repeat_last_n":0)");
  EXPECT_EQ(off.repetition_penalty, 1);
  EXPECT_EQ(off.presence_penalty, 0);
}

TEST(ChatRequest, LogitBiasHasTwoFormsAndThreeKindsOfKeys) {
  const auto bias = [](const std::string& value) {
    return parse("\"logit_bias\":" + value).generation.sampling.logit_bias;
  };
  using Pairs = std::vector<std::pair<std::int32_t, float>>;
  EXPECT_EQ(bias(R"({"15":-100,"7":2.5})"), (Pairs{{7, 2.5f}, {15, -100.0f}}));
  EXPECT_EQ(bias(R"([[15,-100],[7,1],[7,1.5]])"), (Pairs{{7, 2.5f}, {15, -100.0f}}));
  const Pairs banned = bias(R"([[15,false]])");
  ASSERT_EQ(banned.size(), 1u);
  EXPECT_TRUE(std::isinf(banned[0].second) && banned[0].second < 0);
  const auto ids = demo_session().tokenizer().encode("hello there");
  for (const Pairs& pairs : {bias(R"({"hello there":3})"), bias(R"([["hello there",3]])")}) {
    EXPECT_EQ(pairs.size(), std::set<std::int32_t>(ids.begin(), ids.end()).size());
    for (const auto& [id, value] : pairs) EXPECT_NE(std::find(ids.begin(), ids.end(), id), ids.end());
  }
  // A control token's spelling is text here, not the token.
  for (const auto& [id, value] : bias(R"({"<turn|>":3})"))
    EXPECT_FALSE(demo_session().tokenizer().is_special(id));
}

struct Refused {
  const char* members;
  const char* param;
  const char* words;
};

TEST(ChatRequest, WhatCannotBeHonouredIsRefusedByName) {
  const Refused kRefused[] = {
      // types and ranges
      {R"("temperature":"hot")", "temperature", "expected a number"},
      {R"("temperature":1e999)", "temperature", "1e999"},
      {R"("temperature":101)", "temperature", "at most 100"},
      {R"("top_p":1.5)", "top_p", "from 0 to 1"},
      {R"("top_p":-0.1)", "top_p", "from 0 to 1"},
      {R"("min_p":2)", "min_p", "from 0 to 1"},
      {R"("top_k":1.5)", "top_k", "integer"},
      {R"("seed":36893488147419103232)", "seed", "64-bit"},
      {R"("max_tokens":0)", "max_tokens", "at least 1 token"},
      {R"("max_tokens":-2)", "max_tokens", "at least -1"},
      {R"("max_completion_tokens":1,"max_tokens":"x")", "max_tokens", "integer"},
      {R"("n":1000000000)", "n", "from 1 to 4"},
      {R"("n":0)", "n", "from 1 to 4"},
      {R"("presence_penalty":3)", "presence_penalty", "from -2 to 2"},
      {R"("frequency_penalty":-3)", "frequency_penalty", "from -2 to 2"},
      {R"("repeat_penalty":0)", "repeat_penalty", "0.01"},
      {R"("repeat_last_n":-2)", "repeat_last_n", "at least -1"},
      {R"("n_discard":-1)", "n_discard", "at least 0"},
      {R"("id_slot":-2)", "id_slot", "at least -1"},
      {R"("stop":5)", "stop", "a string or an array"},
      {R"("stop":["a",5])", "stop[1]", "a string"},
      {R"("logit_bias":{"99999999":1})", "logit_bias.\"99999999\"", "token id from 0"},
      {R"("logit_bias":{"1":"x"})", "logit_bias.\"1\"", "-100 to 100"},
      {R"("logit_bias":{"1":101})", "logit_bias.\"1\"", "-100 to 100"},
      {R"("logit_bias":{"1":true})", "logit_bias.\"1\"", "-100 to 100"},
      {R"("logit_bias":[[1]])", "logit_bias[0]", "[token, bias]"},
      {R"("logit_bias":[[-1,1]])", "logit_bias[0]", "token id from 0"},
      {R"("logit_bias":[["",1]])", "logit_bias[0]", "text"},
      {R"("logit_bias":5)", "logit_bias", "object"},
      {R"("logprobs":5)", "logprobs", "true or false"},
      {R"("top_logprobs":5)", "top_logprobs", "needs logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "from 0 to 20"},
      {R"("stream":"yes")", "stream", "true or false"},
      {R"("stream_options":true)", "stream_options", "an object"},
      {R"("model":5)", "model", "a string"},
      // samplers of other servers
      {R"("typical_p":0.9)", "typical_p", "would change the output"},
      {R"("top_n_sigma":1)", "top_n_sigma", "would change the output"},
      {R"("xtc_probability":0.5)", "xtc_probability", "would change the output"},
      {R"("dynatemp_range":0.5)", "dynatemp_range", "would change the output"},
      {R"("dry_multiplier":0.8)", "dry_multiplier", "would change the output"},
      {R"("mirostat":2)", "mirostat", "would change the output"},
      {R"("adaptive_target":0.5)", "adaptive_target", "would change the output"},
      {R"("min_keep":3)", "min_keep", "would change the output"},
      {R"("min_tokens":3)", "min_tokens", "would change the output"},
      {R"("mirostat":"on")", "mirostat", "a number"},
      {R"("samplers":["top_k","penalties"],"repeat_penalty":1.2)", "samplers", "the order here"},
      {R"("samplers":["top_k","temperature"],"temperature":0.5)", "samplers", "the order here"},
      {R"("samplers":["penalties","temperature","top_k"],"top_p":0.5)", "samplers", "the order here"},
      {R"("samplers":["magic"])", "samplers", "no sampler is called \"magic\""},
      {R"("samplers":7)", "samplers", "an array"},
      {R"("lora":[{"id":0,"scale":1}])", "lora", "not supported"},
      {R"("post_sampling_probs":true)", "post_sampling_probs", "not supported"},
      {R"("echo":true)", "echo", "not supported"},
      {R"("use_beam_search":true)", "use_beam_search", "not supported"},
      {R"("stop_token_ids":[1])", "stop_token_ids", "not supported"},
      {R"("chat_template":"{{x}}")", "chat_template", "not supported"},
      // constraints
      {R"("grammar":"root ::= \"a\"")", "grammar", "needs constrained decoding"},
      {R"("json_schema":{})", "json_schema", "needs constrained decoding"},
      {R"("guided_json":{})", "guided_json", "needs constrained decoding"},
      {R"("response_format":{"type":"json_object"})", "response_format", "needs constrained decoding"},
      {R"("response_format":{"type":"json_schema","json_schema":{}})", "response_format",
       "needs constrained decoding"},
      {R"("response_format":{"type":"xml"})", "response_format.type", "expected \"text\""},
      {R"("response_format":{})", "response_format.type", "missing"},
      {R"("response_format":"json")", "response_format", "an object"},
      {R"("tool_choice":"required")", "tool_choice", "there are no tools"},
      {R"("tool_choice":"maybe")", "tool_choice", "expected \"auto\""},
      {R"("tool_choice":5)", "tool_choice", "an object"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice.function.name",
       "no tool is called \"f\""},
      {R"("tool_choice":{"type":"allowed_tools"})", "tool_choice", "needs constrained decoding"},
      {R"("tool_choice":{"type":"custom"})", "tool_choice.type", "expected \"function\""},
      {R"("functions":[{"name":"f"}])", "functions", "use tools"},
      {R"("function_call":{"name":"f"})", "function_call", "use tool_choice"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type", "function"},
      {R"("tools":[{"type":"function","function":{"name":"a{b"}}])", "tools[0]", "a{b"},
      {R"("tools":[{"type":"function","function":{"name":" a"}}])", "tools[0]", "blanks"},
      {R"("tools":[{"type":"function","function":{"name":"a\u0001"}}])", "tools[0]", "control"},
      // the rest
      {R"("modalities":["text","audio"])", "modalities", "audio"},
      {R"("reasoning_effort":"utmost")", "reasoning_effort", "utmost"},
      {R"("reasoning_effort":3)", "reasoning_effort", "a string"},
      {R"("chat_template_kwargs":{"enable_thinking":"true"})", "chat_template_kwargs.enable_thinking",
       "true or false"},
      {R"("reasoning_format":"deepseek-legacy")", "reasoning_format", "deepseek-legacy"},
      {R"("reasoning_format":"odd")", "reasoning_format", "odd"},
      {R"("thinking_budget_tokens":-2)", "thinking_budget_tokens", "-1"},
      {R"("continue_final_message":"all")", "continue_final_message", "reasoning_content"},
      {R"("continue_final_message":true,"add_generation_prompt":true)", "continue_final_message", "together"},
  };
  for (const Refused& r : kRefused) {
    const ApiError error = refusal([&] { parse(r.members); });
    EXPECT_EQ(error.status, 400) << r.members;
    EXPECT_EQ(error.param, r.param) << r.members << ": " << error.message;
    EXPECT_NE(error.message.find(r.words), std::string::npos) << r.members << ": " << error.message;
    EXPECT_EQ(error.message.find("Field '" + error.param + "': "), 0u) << error.message;
  }
}

TEST(ChatRequest, NamedToolsAndAnyToolWaitForConstrainedDecoding) {
  const auto with_tools = [](const std::string& choice) {
    return parse(std::string(kTools) + ",\"tool_choice\":" + choice);
  };
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"get_weather"}})"}) {
    const ApiError error = refusal([&] { with_tools(choice); });
    EXPECT_EQ(error.param, "tool_choice");
    EXPECT_NE(error.message.find("not supported yet: needs constrained decoding"), std::string::npos);
  }
  EXPECT_TRUE(with_tools(R"("auto")").tools_active);
  const ChatRequest none = with_tools(R"("none")");
  EXPECT_FALSE(none.tools_active);
  EXPECT_EQ(none.tools.size(), 1u);  // still declared to the model
}

TEST(ChatRequest, WhatTouchesNothingIsIgnored) {
  parse(
      R"("user":"me","metadata":{"a":"b"},"store":true,"service_tier":"auto","prediction":{"type":"content"},
           "verbosity":"low","safety_identifier":"x","prompt_cache_key":"y","modalities":["text"],
           "web_search_options":{},"unheard_of":[1,{"x":2}],"model":"gpt-4o","verbose":true,"n_keep":0,
           "id_slot":3,"sse_ping_interval":-1,"lora":[],"grammar":"","functions":[],"function_call":"auto",
           "response_format":{"type":"text"},"typical_p":1,"top_n_sigma":-1,"xtc_probability":0,
           "xtc_threshold":0.1,"dry_multiplier":0.0,"dry_base":1.75,"mirostat":0,"mirostat_tau":5,
           "dynatemp_range":0,"adaptive_target":-1,"min_keep":0,"post_sampling_probs":false,"echo":false)");
}

TEST(ChatRequest, SamplersAreTakenWhereTheyComeToTheSame) {
  parse(
      R"("samplers":["penalties","dry","temperature","top_k","typ_p","top_p","min_p","xtc"],"temperature":0.5)");
  // llama-server's default order is the same one at temperature 1.
  const char* llama =
      R"("samplers":["penalties","dry","top_n_sigma","top_k","typ_p","top_p","min_p","xtc","temperature"])";
  parse(std::string(llama) + R"(,"temperature":1)");
  parse(std::string(llama) + R"(,"temperature":0.7,"top_k":0,"top_p":1)");
  parse(R"("samplers":"edskypmxt","temperature":1)");
  parse(R"("samplers":[],"temperature":1,"top_k":0,"top_p":1)");
}

TEST(ChatRequest, MessagesAreNamedWhereTheyAreAtFault) {
  const auto refused = [](const std::string& messages) {
    return refusal([&] { parse_body_text("{\"messages\":" + messages + "}"); });
  };
  EXPECT_EQ(refusal([] { parse_body_text("{}"); }).message, "Field 'messages': missing");
  EXPECT_EQ(refused("[]").param, "messages");
  EXPECT_EQ(refused("\"Hi\"").param, "messages");
  EXPECT_EQ(refused(R"([{"role":"user"}])").param, "messages[0].content");
  EXPECT_EQ(refused(R"([{"role":"robot","content":"x"}])").param, "messages[0].role");
  EXPECT_EQ(refused(R"([{"role":"assistant"}])").param, "messages[0].content");
  EXPECT_EQ(refused(R"([{"role":"user","content":[{"type":"input_file"}]}])").param,
            "messages[0].content[0].type");
  EXPECT_EQ(
      refused(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])").param,
      "messages[0].tool_calls[0].function.arguments");
}

TEST(ChatRequest, MediaAreRefusedNamingMessageAndPart) {
  const auto refused = [](const std::string& part) {
    return refusal([&] {
      parse_body_text(R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[
        {"type":"text","text":"see"},)" +
                      part + "]}]}");
    });
  };
  const ApiError image = refused(R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}})");
  EXPECT_EQ(image.param, "messages[1].content[1]");
  EXPECT_NE(image.message.find("an image cannot be read"), std::string::npos);
  EXPECT_NE(refused(R"({"type":"input_audio","input_audio":{"data":"x"}})").message.find("audio"),
            std::string::npos);
}

TEST(ChatRequest, ThinkingFollowsTheMostParticularWord) {
  RequestDefaults on = demo_defaults();
  on.thinking = true;
  on.thinking_budget = 50;
  const auto thinking = [&](const std::string& members) { return parse(members, on).thinking; };
  EXPECT_TRUE(thinking(""));
  EXPECT_FALSE(parse("").thinking);
  EXPECT_FALSE(thinking(R"("chat_template_kwargs":{"enable_thinking":false})"));
  EXPECT_FALSE(thinking(R"("reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true})"));
  EXPECT_FALSE(thinking(R"("reasoning_effort":"high","chat_template_kwargs":{"enable_thinking":false})"));
  for (const char* effort : {"minimal", "low", "medium", "high", "xhigh", "max"})
    EXPECT_TRUE(parse(std::string("\"reasoning_effort\":\"") + effort + "\"").thinking) << effort;
  EXPECT_TRUE(parse(R"("chat_template_kwargs":{"preserve_thinking":true})").preserve_thinking);
  EXPECT_EQ(parse("", on).thinking_budget, 50u);
  EXPECT_EQ(parse(R"("thinking_budget_tokens":-1)", on).thinking_budget, std::nullopt);
  EXPECT_EQ(parse(R"("reasoning_budget_tokens":0)", on).thinking_budget, 0u);
  EXPECT_FALSE(parse(R"("reasoning_format":"none")").extract_reasoning);
  EXPECT_TRUE(parse(R"("reasoning_format":"auto")").extract_reasoning);
}

TEST(ChatRequest, AnAssistantsMessageAtTheEndIsGoneOnWith) {
  const auto continuation = [](const std::string& more) {
    return parse_body_text(
               R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"He"}])" + more +
               "}")
        .continue_final;
  };
  EXPECT_EQ(continuation(""), ContinueFinal::kAuto);
  EXPECT_EQ(continuation(R"(,"add_generation_prompt":false,"continue_final_message":true)"),
            ContinueFinal::kAuto);
  EXPECT_EQ(continuation(R"(,"add_generation_prompt":true)"), ContinueFinal::kNo);
  EXPECT_EQ(continuation(R"(,"continue_final_message":false)"), ContinueFinal::kNo);
  EXPECT_EQ(continuation(R"(,"continue_final_message":"content")"), ContinueFinal::kContent);
  EXPECT_EQ(continuation(R"(,"continue_final_message":"reasoning_content")"), ContinueFinal::kReasoning);
}

// Far below the limits of bodies and still more than a request may cost.
TEST(ChatRequest, FloodsAreRefusedByName) {
  std::string many = "[\"a\"";
  for (int i = 0; i < 900'000; ++i) many += ",\"a\"";
  EXPECT_EQ(refusal([&] { parse("\"stop\":" + many + "]"); }).param, "stop");
  EXPECT_EQ(refusal([&] { parse("\"stop\":\"" + std::string(5000, 'x') + "\""); }).param, "stop");
  std::string tools = "\"tools\":[";
  for (int i = 0; i < 2000; ++i)
    tools += std::string(i == 0 ? "" : ",") + R"({"type":"function","function":{"name":"f"}})";
  EXPECT_EQ(refusal([&] { parse(tools + "]"); }).param, "tools");
  std::string calls = R"({"messages":[{"role":"assistant","tool_calls":[)";
  for (int i = 0; i < 2000; ++i) calls += std::string(i == 0 ? "" : ",") + R"({"function":{"name":"f"}})";
  EXPECT_EQ(refusal([&] { parse_body_text(calls + "]}]}"); }).param, "messages[0].tool_calls");
}

}  // namespace
}  // namespace gem::server
