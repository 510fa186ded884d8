// Requests to jobs, and the endpoints over the real service and the bundled model.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "server/api/json_fields.h"
#include "server/api_support.h"

namespace gem::server {
namespace {

using testing::demo_defaults;
using testing::demo_session;
using testing::events_of;
using testing::Json;
using testing::refusal;

ChatRequest chat_of(const std::string& body) {
  return parse_chat_request(parse_object(body), demo_defaults(), demo_session().tokenizer());
}

std::string text_of(const GenerationJob& job) {
  return demo_session().tokenizer().decode(job.request.prompt, true);
}

TEST(PrepareChat, RendersEncodesAndSetsEveryLimit) {
  ChatRequest chat = chat_of(
      R"({"messages":[{"role":"user","content":"<turn|>Hi"}],"max_tokens":9,"stop":"x","n":3,"seed":18446744073709551614,
          "ignore_eos":true,"logprobs":true,"cache_prompt":false,"draft":false,"thinking_budget_tokens":5,
          "tools":[{"type":"function","function":{"name":"f"}}],"parallel_tool_calls":false})");
  const PreparedChat prepared = prepare_chat(chat, demo_session());
  ASSERT_EQ(prepared.jobs.size(), 3u);
  const GenerationJob& job = prepared.jobs[0];
  EXPECT_EQ(job.request.prompt.size(), prepared.prompt_tokens);
  EXPECT_EQ(text_of(job), prepared.prompt_text);
  // One <bos>, and the client's spelling of a marker is text: the turn's own end is the only one.
  const auto& ids = job.request.prompt;
  const Tokenizer& tokenizer = demo_session().tokenizer();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.bos()), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer.special_id("<turn|>")), 2);  // system and user turn
  EXPECT_EQ(job.request.max_tokens, 9u);
  EXPECT_EQ(job.request.logprobs, 0u);
  EXPECT_TRUE(job.token_details);
  EXPECT_EQ(job.stops, std::vector<std::string>{"x"});
  EXPECT_FALSE(job.reuse_prompt);
  EXPECT_FALSE(job.request.draft);
  EXPECT_EQ(job.thinking_budget, 5u);
  EXPECT_TRUE(job.one_call);
  EXPECT_TRUE(job.reply.tools_active);
  for (const std::int32_t end : tokenizer.end_of_generation())
    EXPECT_NE(std::find(job.request.suppressed.begin(), job.request.suppressed.end(), end),
              job.request.suppressed.end());
  // Seeds go up by one, around the end.
  EXPECT_EQ(prepared.jobs[1].request.sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(prepared.jobs[2].request.sampling.seed, 0u);
}

TEST(PrepareChat, AnOpenThoughtIsWhereTheReplyBegins) {
  const auto thinking = [](const std::string& more) {
    const PreparedChat prepared = prepare_chat(
        chat_of(R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant",)" + more + "}]}"),
        demo_session());
    return prepared.jobs[0].reply.start_thinking;
  };
  EXPECT_TRUE(thinking(R"("content":"","reasoning_content":"Let me")"));
  EXPECT_FALSE(thinking(R"("content":"He","reasoning_content":"Let me")"));
}

TEST(PrepareChat, WhatDoesNotFitIsRefusedInTheWordsClientsKnow) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "word ";
  const ChatRequest chat = chat_of("{\"messages\":[{\"role\":\"user\",\"content\":\"" + text + "\"}]}");
  const ApiError error = refusal([&] { prepare_chat(chat, demo_session()); });
  EXPECT_EQ(error.type, "exceed_context_size_error");
  EXPECT_EQ(error.context, 2048u);
  EXPECT_GE(*error.prompt_tokens, 2048u);
  EXPECT_EQ(*error.prompt_tokens, encode_chat(chat, demo_session()).size());
}

TEST(PrepareChat, FaultsOfTheFormatNameTheirField) {
  const auto refused = [](const std::string& body) {
    return refusal([&] { prepare_chat(chat_of(body), demo_session()); });
  };
  EXPECT_EQ(refused(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                                    {"role":"assistant","content":"c"}]})")
                .param,
            "messages[2]");
  EXPECT_EQ(refused(R"({"messages":[{"role":"user","content":"a"}],"continue_final_message":true})").param,
            "messages[0]");
  const ApiError tool = refused(R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function",
      "function":{"name":"f","parameters":{"properties":{"x":{"$ref":"http://elsewhere/x"}}}}}]})");
  EXPECT_EQ(tool.param, "tools");
  EXPECT_NE(tool.message.find("\"f\""), std::string::npos) << tool.message;
}

TEST(ParsePrompts, EveryFormOfAPrompt) {
  const Tokenizer& tokenizer = demo_session().tokenizer();
  const auto prompts = [&](const std::string& value) {
    return parse_prompts(parse_object("{\"prompt\":" + value + "}"), tokenizer);
  };
  using Prompts = std::vector<std::vector<std::int32_t>>;
  const std::int32_t bos = tokenizer.bos();
  std::vector<std::int32_t> hello = tokenizer.encode("Hello");
  hello.insert(hello.begin(), bos);
  EXPECT_EQ(prompts(R"("Hello")"), (Prompts{hello}));
  EXPECT_EQ(prompts(R"("<bos>Hello")"), (Prompts{hello}));  // control tokens are meant, <bos> comes once
  EXPECT_EQ(prompts("[5,6]"), (Prompts{{5, 6}}));
  EXPECT_EQ(prompts(R"(["Hello",[5,6]])"), (Prompts{hello, {5, 6}}));
  std::vector<std::int32_t> mixed = hello;
  mixed.push_back(6);
  EXPECT_EQ(prompts(R"(["Hello",6])"), (Prompts{mixed}));
  EXPECT_EQ(prompts(R"("")"), (Prompts{{bos}}));
  const auto refused = [&](const std::string& value) { return refusal([&] { prompts(value); }).param; };
  EXPECT_EQ(refused("null"), "prompt");
  EXPECT_EQ(refused("[]"), "prompt");
  EXPECT_EQ(refused("{}"), "prompt");
  EXPECT_EQ(refused("5"), "prompt");
  EXPECT_EQ(refused("[[]]"), "prompt[0]");
  EXPECT_EQ(refused("[[1,-1]]"), "prompt[0][1]");
  EXPECT_EQ(refused("[1,4294967298]"), "prompt[1]");
  EXPECT_EQ(refused(R"(["a",{}])"), "prompt[1]");
  std::string many = "[\"a\"";
  for (int i = 0; i < 1000; ++i) many += ",\"a\"";
  EXPECT_EQ(refused(many + "]"), "prompt");
}

class Endpoints : public ::testing::Test {
 protected:
  Endpoints() : service_(demo_session(), {}) {}

  ApiContext context() {
    return {.session = demo_session(),
            .service = service_,
            .card = {"gem-demo", 1, "gem-test"},
            .defaults = demo_defaults(),
            .new_id = [](const char* prefix) { return prefix + std::string(32, 'x'); },
            .now = [] { return std::int64_t{1780000000}; }};
  }

  static HttpRequest post(std::string body) {
    HttpRequest request;
    request.method = "POST";
    request.body = std::move(body);
    return request;
  }

  // Waits for the wake of what the transport would wait for.
  class Wait {
   public:
    std::function<void()> wake() {
      return [state = state_] {
        const std::lock_guard lock(state->mutex);
        state->ready = true;
        state->condition.notify_all();
      };
    }
    void wait() {
      std::unique_lock lock(state_->mutex);
      state_->condition.wait(lock, [&] { return std::exchange(state_->ready, false); });
    }

   private:
    struct State {
      std::mutex mutex;
      std::condition_variable condition;
      bool ready = true;
    };
    std::shared_ptr<State> state_ = std::make_shared<State>();
  };

  // The plain reply's JSON.
  static Json plain(Reply reply) {
    const auto& pending = std::get<std::unique_ptr<PendingReply>>(reply);
    Wait wait;
    pending->on_ready(wake_of(wait));
    for (;;) {
      wait.wait();
      if (const auto response = pending->poll()) {
        EXPECT_EQ(response->status, 200) << response->body;
        return Json::parse(response->body);
      }
    }
  }
  static std::vector<Json> streamed(Reply reply) {
    const auto& source = std::get<EventReply>(reply).source;
    Wait wait;
    source->on_ready(wake_of(wait));
    std::string out;
    for (EventSource::State state = EventSource::State::kMore; state != EventSource::State::kDone;) {
      wait.wait();
      state = source->pull(out);
    }
    return events_of(out);
  }
  static std::function<void()> wake_of(Wait& wait) { return wait.wake(); }

  static std::string text_of_stream(const std::vector<Json>& events) {
    std::string text;
    for (const Json& event : events) {
      if (!event.is_object() || event["choices"].empty()) continue;
      const Json& choice = event["choices"][0];
      if (choice.contains("text")) text += choice["text"].get<std::string>();
      const Json delta = choice.value("delta", Json::object());
      if (delta.contains("content") && delta["content"].is_string())
        text += delta["content"].get<std::string>();
    }
    return text;
  }

  Service service_;
};

constexpr const char* kSum = R"("messages":[{"role":"user","content":"What is 12 + 30?"}],"temperature":0)";

TEST_F(Endpoints, ChatAnswersPlainAndStreamedAlike) {
  const Json body = plain(chat_completions(context(), post(std::string("{") + kSum + "}")));
  const std::string content = body["choices"][0]["message"]["content"];
  EXPECT_NE(content.find("42"), std::string::npos) << content;
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["model"], "gem-demo");
  EXPECT_EQ(body["usage"]["total_tokens"].get<int>(),
            body["usage"]["prompt_tokens"].get<int>() + body["usage"]["completion_tokens"].get<int>());
  const std::vector<Json> events = streamed(chat_completions(
      context(), post(std::string("{") + kSum +
                      R"(,"stream":true,"stream_options":{"include_usage":true},"return_progress":true})")));
  EXPECT_EQ(text_of_stream(events), content);
  const Json& usage = events[events.size() - 2]["usage"];
  EXPECT_EQ(usage["completion_tokens"], body["usage"]["completion_tokens"]);
  EXPECT_GT(usage["prompt_tokens_details"]["cached_tokens"], 0);  // the first request's prompt
  const auto progress =
      std::find_if(events.begin(), events.end(), [](const Json& e) { return e.contains("prompt_progress"); });
  ASSERT_NE(progress, events.end());
  EXPECT_EQ((*progress)["prompt_progress"]["total"], usage["prompt_tokens"]);
}

TEST_F(Endpoints, ChatCallsToolsInFragmentsOfJson) {
  const std::string body = R"({"messages":[{"role":"user","content":"What is the weather in Paris?"}],
      "temperature":0,"stream":true,"tools":[{"type":"function","function":{"name":"get_weather",
      "description":"Get the current weather.","parameters":{"type":"object","properties":{"city":
      {"type":"string","description":"City name"}},"required":["city"]}}}]})";
  std::string arguments, name;
  std::string finish;
  for (const Json& event : streamed(chat_completions(context(), post(body)))) {
    if (!event.is_object()) continue;
    const Json& choice = event["choices"][0];
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
    for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
      if (call.contains("id")) name += call["function"]["name"].get<std::string>();
      arguments += call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(name, "get_weather");
  EXPECT_EQ(Json::parse(arguments), Json({{"city", "Paris"}}));
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(Endpoints, ThinkingGoesToItsOwnField) {
  const Json body =
      plain(chat_completions(context(), post(std::string("{") + kSum + R"(,"reasoning_effort":"low"})")));
  const Json& message = body["choices"][0]["message"];
  EXPECT_FALSE(message.value("reasoning_content", "").empty());
  EXPECT_NE(message["content"].get<std::string>().find("42"), std::string::npos);
  EXPECT_GT(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

TEST_F(Endpoints, ARunningThoughtIsWithinReachOnlyWhenTheRequestSaysSo) {
  const ApiContext api = context();
  const std::string id = api.new_id("chatcmpl-");
  const std::string body = std::string("{") + kSum + R"(,"reasoning_effort":"low","stream":true)";
  {
    const Reply plain = chat_completions(api, post(body + "}"));
    EXPECT_EQ(api.running->end_thought(id), RunningReplies::Outcome::kUnknown);
    const Reply watched = chat_completions(api, post(body + R"(,"reasoning_control":true})"));
    EXPECT_NE(api.running->end_thought(id), RunningReplies::Outcome::kUnknown);
  }
  EXPECT_EQ(api.running->end_thought(id), RunningReplies::Outcome::kUnknown);
}

TEST_F(Endpoints, LogprobsAndIdsCoverTheWholeReply) {
  const Json body =
      plain(chat_completions(context(), post(std::string("{") + kSum +
                                             R"(,"logprobs":true,"top_logprobs":2,"return_tokens":true})")));
  const Json& choice = body["choices"][0];
  const auto tokens = choice["tokens"].get<std::vector<std::int32_t>>();
  EXPECT_EQ(tokens.size(), body["usage"]["completion_tokens"].get<std::size_t>());
  EXPECT_EQ(demo_session().tokenizer().decode(tokens), choice["message"]["content"].get<std::string>());
  ASSERT_EQ(choice["logprobs"]["content"].size(), tokens.size());
  for (const Json& token : choice["logprobs"]["content"]) {
    EXPECT_LE(token["logprob"].get<double>(), 0);
    ASSERT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_EQ(token["top_logprobs"][0]["id"], token["id"]);  // greedy: the most probable one
  }
}

TEST_F(Endpoints, ChoicesDifferBySeedAndTheFirstIsTheOneOfTheSeed) {
  const std::string prompt =
      R"({"messages":[{"role":"user","content":"Tell me a story."}],"seed":5,"max_tokens":24)";
  const Json three = plain(chat_completions(context(), post(prompt + R"(,"n":3})")));
  ASSERT_EQ(three["choices"].size(), 3u);
  const Json one = plain(chat_completions(context(), post(prompt + "}")));
  EXPECT_EQ(three["choices"][0]["message"], one["choices"][0]["message"]);
}

TEST_F(Endpoints, CompletionsGoOnWithTheTextAsItStands) {
  const std::string prompt =
      R"("<bos><|turn>user\nWhat is 12 + 30?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>")";
  const Json body = plain(completions(
      context(), post("{\"prompt\":[" + prompt + "," + prompt + R"(],"temperature":0,"logprobs":1})")));
  ASSERT_EQ(body["choices"].size(), 2u);
  EXPECT_NE(body["choices"][0]["text"].get<std::string>().find("42"), std::string::npos);
  EXPECT_EQ(body["choices"][1]["text"], body["choices"][0]["text"]);
  EXPECT_FALSE(body["choices"][0]["logprobs"]["tokens"].empty());
  EXPECT_EQ(body["id"].get<std::string>().substr(0, 5), "cmpl-");
  const std::vector<Json> events =
      streamed(completions(context(), post("{\"prompt\":" + prompt + R"(,"temperature":0,"stream":true})")));
  EXPECT_EQ(text_of_stream(events), body["choices"][0]["text"].get<std::string>());
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(Endpoints, CompletionsRefuseWhatTheyCannotDo) {
  const auto refused = [&](const std::string& more) {
    return refusal([&] { completions(context(), post("{\"prompt\":\"a\"," + more + "}")); }).param;
  };
  EXPECT_EQ(refused(R"("echo":true)"), "echo");
  EXPECT_EQ(refused(R"("suffix":"x")"), "suffix");
  EXPECT_EQ(refused(R"("best_of":2)"), "best_of");
  EXPECT_EQ(refused(R"("logprobs":true)"), "logprobs");
  EXPECT_EQ(refused(R"("grammar":"x")"), "grammar");
}

TEST_F(Endpoints, NativeCompletionsStopAtAWord) {
  const std::string body =
      R"({"prompt":"<bos><|turn>user\nWhat is 12 + 30?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
          "temperature":0,"stop":["42"],"n_probs":1)";
  const Json reply = plain(native_completion(context(), post(body + "}")));
  EXPECT_EQ(reply["stop_type"], "word");
  EXPECT_EQ(reply["stopping_word"], "42");
  EXPECT_EQ(reply["content"].get<std::string>().find("42"), std::string::npos);
  EXPECT_EQ(reply["completion_probabilities"].size(), reply["tokens_predicted"].get<std::size_t>());
  const std::vector<Json> events = streamed(native_completion(context(), post(body + R"(,"stream":true})")));
  std::string text;
  for (const Json& event : events) text += event["content"].get<std::string>();
  EXPECT_EQ(text, reply["content"].get<std::string>());
  EXPECT_EQ(events.back()["stop"], true);
  EXPECT_EQ(events.back()["stop_type"], "word");
}

}  // namespace
}  // namespace gem::server
