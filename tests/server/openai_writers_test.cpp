// The OpenAI and native writers, fed by hand and by the reply parser: official shapes, and streams that come
// to the plain reply however the reply is cut.
#include "server/api/openai_writers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "server/api/openai_shapes.h"
#include "server/api_support.h"
#include "text/reply_parser.h"

namespace gem::server {
namespace {

using testing::end_update;
using testing::events_of;
using testing::Json;
using testing::text_update;
using Kind = ReplyEvent::Kind;

OpenAiReply reply_form(std::size_t choices = 1) {
  OpenAiReply reply;
  reply.identity = {"chatcmpl-1", 1780000000, "demo", "gem-0"};
  reply.choices = choices;
  reply.choices_per_prompt = choices;
  reply.new_id = [n = 0](const char* prefix) mutable { return prefix + std::to_string(n++); };
  return reply;
}

std::string stream(ReplyWriter& writer,
                   const std::vector<std::pair<std::size_t, GenerationUpdate>>& updates) {
  std::string out;
  writer.begin(out);
  for (const auto& [index, update] : updates) writer.update(index, update, out);
  writer.end(out);
  return out;
}

GenerationUpdate call_update() {
  GenerationUpdate update;
  update.events = {{Kind::kCallStart, 0, "f"}, {Kind::kCallArguments, 0, "{\"a\":"}};
  return update;
}

GenerationUpdate call_end() {
  ParsedReply reply;
  reply.tool_calls = {{"f", "{\"a\":1}"}};
  GenerationUpdate update = end_update(reply);
  update.events = {{Kind::kCallArguments, 0, "1}"}};
  return update;
}

TokenDetail token_detail(std::int32_t id, std::string bytes) {
  TokenDetail detail;
  detail.token = id;
  detail.bytes = std::move(bytes);
  detail.logprob = -0.5;
  detail.top = {{id, detail.bytes, -0.5}, {7, "\xF0\x9F", -1.5}, {8, "x", -INFINITY}};
  return detail;
}

TEST(ChatWriter, StreamsTheOfficialChunksInOrder) {
  const auto writer = chat_writer(reply_form());
  GenerationUpdate call_start = call_update();
  const std::string out = stream(
      *writer,
      {{0, text_update("Let", Kind::kReasoning)}, {0, text_update("Hi")}, {0, call_start}, {0, call_end()}});
  const std::string head =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1780000000,"model":"demo",)"
      R"("system_fingerprint":"gem-0","choices":[{"index":0,"delta":)";
  const std::string expected =
      head + R"({"role":"assistant","content":null},"finish_reason":null}]})" + "\n\n" +  //
      head + R"({"reasoning_content":"Let"},"finish_reason":null}]})" + "\n\n" +          //
      head + R"({"content":"Hi"},"finish_reason":null}]})" + "\n\n" +                     //
      head +
      R"({"tool_calls":[{"index":0,"id":"call_0","type":"function","function":{"name":"f","arguments":""}}]},)"
      R"("finish_reason":null}]})" +
      "\n\n" +  //
      head + R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]},"finish_reason":null}]})" +
      "\n\n" +  //
      head + R"({"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]},"finish_reason":null}]})" +
      "\n\n" + head + R"({},"finish_reason":"tool_calls"}],"timings":)" +
      timings_json(call_end().times).dump() + "}\n\n" + "data: [DONE]\n\n";
  EXPECT_EQ(out, expected);
}

TEST(ChatWriter, TheUsageChunkComesOnlyWhenAskedForAndCarriesTheTimings) {
  OpenAiReply form = reply_form();
  form.stream.include_usage = true;
  const auto writer = chat_writer(form);
  const std::vector<Json> events = events_of(stream(*writer, {{0, end_update({})}}));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_FALSE(events[1].contains("timings"));
  EXPECT_EQ(events[2]["choices"], Json::array());
  EXPECT_EQ(
      events[2]["usage"].dump(),
      R"({"prompt_tokens":12,"completion_tokens":5,"total_tokens":17,)"
      R"("prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":0}})");
  // The first token comes with the prompt: four steps in two seconds.
  EXPECT_EQ(events[2]["timings"]["predicted_per_second"], 2.0);
  EXPECT_EQ(events[2]["timings"]["cache_n"], 4);
  EXPECT_EQ(events[3], "[DONE]");
  for (const Json& event : events_of(stream(*chat_writer(reply_form()), {{0, end_update({})}})))
    EXPECT_FALSE(event.is_object() && event.contains("usage"));
}

TEST(ChatWriter, ProgressAndTimingsAreSentWhenAskedFor) {
  OpenAiReply form = reply_form();
  GenerationUpdate progress;
  progress.prompt = GenerationUpdate::Progress{.done = 6, .total = 12, .cached = 4, .seconds = 0.25};
  // Not asked for: not a byte.
  std::string out;
  chat_writer(form)->update(0, progress, out);
  EXPECT_EQ(out, "");
  form.stream.return_progress = form.stream.timings_per_token = true;
  const auto writer = chat_writer(form);
  writer->update(0, progress, out);
  writer->update(0, text_update("a"), out);
  const std::vector<Json> events = events_of(out);
  EXPECT_EQ(events[0]["prompt_progress"].dump(), R"({"total":12,"cache":4,"processed":6,"time_ms":250.0})");
  EXPECT_EQ(events[0]["choices"][0]["delta"].dump(), R"({"role":"assistant","content":null})");
  EXPECT_TRUE(events[1].contains("timings"));
}

TEST(ChatWriter, LogprobsRideOnTheChunkOfTheirTokensAndNoneIsLost) {
  OpenAiReply form = reply_form();
  form.logprobs = form.return_tokens = true;
  GenerationUpdate held, said = text_update("\xC3\xA9"), last = end_update({});
  held.tokens = {token_detail(5, "\xC3")};
  said.tokens = {token_detail(6, "\xA9")};
  last.tokens = {token_detail(106, "<turn|>")};
  const std::vector<Json> events = events_of(stream(*chat_writer(form), {{0, held}, {0, said}, {0, last}}));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_FALSE(events[0]["choices"][0].contains("logprobs"));
  const Json& content = events[1]["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["id"], 5);
  EXPECT_EQ(content[0]["token"], "\xEF\xBF\xBD");  // half a character for people,
  EXPECT_EQ(content[0]["bytes"].dump(), "[195]");  // exact for programs
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 3u);
  EXPECT_EQ(content[0]["top_logprobs"][2]["logprob"], -9999.0);
  EXPECT_EQ(events[1]["choices"][0]["tokens"].dump(), "[5,6]");
  EXPECT_EQ(events[2]["choices"][0]["logprobs"]["content"][0]["id"], 106);
}

TEST(ChatWriter, PlainRepliesHaveTheOfficialShape) {
  OpenAiReply form = reply_form();
  GenerationUpdate update = call_end();
  const HttpResponse response = chat_writer(form)->whole({update});
  EXPECT_EQ(
      response.body,
      R"({"id":"chatcmpl-1","object":"chat.completion","created":1780000000,"model":"demo",)"
      R"("system_fingerprint":"gem-0","choices":[{"index":0,"message":{"role":"assistant","content":null,)"
      R"("tool_calls":[{"id":"call_0","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},)"
      R"("logprobs":null,"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":12,"completion_tokens":5,)"
      R"("total_tokens":17,"prompt_tokens_details":{"cached_tokens":4},)"
      R"("completion_tokens_details":{"reasoning_tokens":0}},"timings":)" +
          timings_json(update.times).dump() + "}");
  ParsedReply empty;
  const Json nothing = Json::parse(chat_writer(form)->whole({end_update(empty)}).body);
  EXPECT_EQ(nothing["choices"][0]["message"].dump(), R"({"role":"assistant","content":""})");
  ParsedReply cut;
  cut.content = "Hi";
  cut.reasoning = "Let me";
  const Json length = Json::parse(chat_writer(form)->whole({end_update(cut, FinishReason::kContext)}).body);
  EXPECT_EQ(length["choices"][0]["message"]["reasoning_content"], "Let me");
  EXPECT_EQ(length["choices"][0]["finish_reason"], "length");
}

TEST(ChatWriter, ChoicesShareOnePromptInTheUsage) {
  const HttpResponse response = chat_writer(reply_form(2))->whole({end_update({}), end_update({})});
  const Json body = Json::parse(response.body);
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 12);
  EXPECT_EQ(body["usage"]["completion_tokens"], 10);
  OpenAiReply form = reply_form(2);
  form.stream.include_usage = true;
  const std::vector<Json> events =
      events_of(stream(*chat_writer(form), {{1, end_update({})}, {0, end_update({})}}));
  ASSERT_EQ(events.size(), 6u);
  EXPECT_TRUE(events[2].contains("timings") && events[3].contains("timings"));  // each choice has its own
  EXPECT_EQ(events[4]["usage"], body["usage"]);
}

TEST(ChatWriter, InvalidUtf8NeverLeaves) {
  const auto writer = chat_writer(reply_form());
  std::string out;
  writer->update(0, text_update("a\xFF\xC3"), out);
  writer->fail("bad \xFF", out);
  for (const Json& event : events_of(out)) EXPECT_NE(event.dump().find("\xEF\xBF\xBD"), std::string::npos);
  ParsedReply reply;
  reply.content = "\xED\xA0\x80";
  EXPECT_NO_THROW(Json::parse(writer->whole({end_update(reply)}).body));
}

TEST(ChatWriter, AFailureIsAnErrorObjectAndTheLastEvent) {
  std::string out;
  chat_writer(reply_form())->fail("no memory", out);
  EXPECT_EQ(out,
            "data: {\"error\":{\"code\":500,\"message\":\"no "
            "memory\",\"type\":\"server_error\",\"param\":null}}\n\n");
}

TEST(CompletionWriter, StreamsTextAndTheLegacyLogprobs) {
  OpenAiReply form = reply_form();
  form.logprobs = true;
  GenerationUpdate first = text_update("\xC3\xA9"), second = text_update("b");
  first.tokens = {token_detail(5, "\xC3"), token_detail(6, "\xA9")};
  second.tokens = {token_detail(9, "b")};
  const std::vector<Json> events =
      events_of(stream(*completion_writer(form), {{0, first}, {0, second}, {0, end_update({})}}));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["object"], "text_completion");
  const Json& logprobs = events[0]["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].dump(), R"(["bytes:\\xc3","bytes:\\xa9"])");
  EXPECT_EQ(logprobs["token_logprobs"].dump(), "[-0.5,-0.5]");
  EXPECT_EQ(logprobs["top_logprobs"][0]["bytes:\\xf0\\x9f"], -1.5);
  EXPECT_EQ(logprobs["text_offset"].dump(), "[0,1]");
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["text_offset"].dump(), "[1]");
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], nullptr);
  EXPECT_EQ(events[2]["choices"][0]["text"], "");
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events[2]["usage"]["total_tokens"], 17);
  EXPECT_EQ(events[3], "[DONE]");
}

TEST(CompletionWriter, EachPromptCountsOnceInTheUsage) {
  OpenAiReply form = reply_form(4);
  form.choices_per_prompt = 2;
  const Json body = Json::parse(
      completion_writer(form)->whole({end_update({}), end_update({}), end_update({}), end_update({})}).body);
  EXPECT_EQ(body["choices"].size(), 4u);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 24);
  EXPECT_EQ(body["usage"]["completion_tokens"], 20);
  form.stream.include_usage = true;
  const auto writer = completion_writer(form);
  const std::vector<Json> events = events_of(
      stream(*writer, {{1, end_update({})}, {0, end_update({})}, {3, end_update({})}, {2, end_update({})}}));
  ASSERT_EQ(events.size(), 6u);
  EXPECT_FALSE(events[3].contains("usage"));
  EXPECT_EQ(events[4]["choices"], Json::array());
  EXPECT_EQ(events[4]["usage"], body["usage"]);
}

NativeReply native_form() {
  NativeReply reply;
  reply.model = "demo";
  reply.prompts = {"<bos>Hi"};
  reply.fields.sampling.logit_bias = {{3, -INFINITY}, {4, 1.5f}};
  return reply;
}

TEST(NativeWriter, PlainRepliesHoldEveryField) {
  NativeReply form = native_form();
  form.fields.logprobs = 3;
  form.fields.return_tokens = true;
  ParsedReply text;
  text.content = "a\nb";
  GenerationUpdate update = end_update(text);
  update.result->matched = "END";
  update.tokens = {token_detail(5, "a")};
  const Json body = Json::parse(native_writer(form)->whole({update}).body);
  for (const char* field :
       {"index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated",
        "tokens_cached", "generation_settings", "prompt", "has_new_line", "truncated", "stop_type",
        "stopping_word", "timings", "completion_probabilities"}) {
    EXPECT_TRUE(body.contains(field)) << field;
  }
  EXPECT_EQ(body["content"], "a\nb");
  EXPECT_EQ(body["stop_type"], "word");
  EXPECT_EQ(body["stopping_word"], "END");
  EXPECT_EQ(body["has_new_line"], true);
  EXPECT_EQ(body["truncated"], false);
  EXPECT_EQ(body["tokens_evaluated"], 12);
  EXPECT_EQ(body["tokens_predicted"], 5);
  EXPECT_EQ(body["tokens"].dump(), "[5]");
  EXPECT_EQ(body["completion_probabilities"][0]["top_logprobs"].size(), 3u);
  EXPECT_EQ(body["generation_settings"]["logit_bias"].dump(), "[[3,false],[4,1.5]]");
  EXPECT_EQ(body["generation_settings"]["n_predict"], -1);
}

TEST(NativeWriter, TheEndSaysWhy) {
  const auto stop_type = [](FinishReason reason) {
    return Json::parse(native_writer(native_form())->whole({end_update({}, reason)}).body);
  };
  EXPECT_EQ(stop_type(FinishReason::kStop)["stop_type"], "eos");
  EXPECT_EQ(stop_type(FinishReason::kLength)["stop_type"], "limit");
  EXPECT_EQ(stop_type(FinishReason::kLength)["truncated"], false);
  EXPECT_EQ(stop_type(FinishReason::kContext)["truncated"], true);
}

TEST(NativeWriter, StreamsPartsAndThenTheWholeWithoutText) {
  NativeReply form = native_form();
  form.fields.return_tokens = true;
  GenerationUpdate first = text_update("a\n"), last = end_update({});
  first.tokens = {token_detail(5, "a")};
  last.tokens = {token_detail(1, "<eos>")};
  const std::vector<Json> events = events_of(stream(*native_writer(form), {{0, first}, {0, last}}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].dump(),
            R"({"index":0,"content":"a\n","tokens":[5],"stop":false,"id_slot":-1,"tokens_predicted":0,)"
            R"("tokens_evaluated":0})");
  EXPECT_EQ(events[1]["tokens"].dump(), "[1]");
  EXPECT_EQ(events[2]["stop"], true);
  EXPECT_EQ(events[2]["content"], "");
  EXPECT_EQ(events[2]["has_new_line"], true);
}

TEST(NativeWriter, ResponseFieldsSelect) {
  NativeReply form = native_form();
  form.response_fields = {"content", "timings/predicted_n", "nothing/here", "content/deep"};
  ParsedReply text;
  text.content = "a";
  EXPECT_EQ(native_writer(form)->whole({end_update(text)}).body,
            R"({"content":"a","timings/predicted_n":5})");
}

TEST(NativeWriter, SeveralPromptsGiveAnArray) {
  NativeReply form = native_form();
  form.prompts = {"A", "B"};
  const Json body = Json::parse(native_writer(form)->whole({end_update({}), end_update({})}).body);
  ASSERT_EQ(body.size(), 2u);
  EXPECT_EQ(body[1]["prompt"], "B");
  EXPECT_EQ(body[1]["index"], 1);
}

// --- However the reply is cut, the stream comes to the plain reply. ---

// The updates of one reply, its text cut every `chunk` characters and the events joined at random.
std::vector<GenerationUpdate> cut_reply(const std::string& text, bool stopped, std::size_t chunk,
                                        std::mt19937& random) {
  ReplyParser parser(ReplyOptions{});
  std::vector<GenerationUpdate> updates(1);
  std::int32_t id = 0;
  const auto take = [&] {
    for (ReplyEvent& event : parser.take_events()) {
      GenerationUpdate one;
      one.tokens = {token_detail(id++, event.text.substr(0, 1))};
      one.events.push_back(std::move(event));
      if (random() % 2 == 0) updates.emplace_back();
      join_update(updates.back(), std::move(one));
    }
  };
  // feed_marked_text cuts the text itself; a piece at a time, so that events come in between.
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t end = std::min(text.size(), at + chunk);
    // A marker is one token.
    const std::size_t open = text.rfind('<', end - 1);
    if (open != std::string::npos && open >= at) {
      const std::size_t close = text.find('>', open);
      if (close != std::string::npos && close >= end) end = close + 1;
    }
    feed_marked_text(parser, std::string_view(text).substr(at, end - at));
    at = end;
    take();
  }
  const ParsedReply reply = parser.finish(stopped ? ReplyEnd::kStop : ReplyEnd::kLength);
  take();
  updates.push_back(end_update(reply, stopped ? FinishReason::kStop : FinishReason::kLength));
  return updates;
}

// What a client has after a stream.
Json collect(const std::vector<Json>& events, std::size_t index) {
  Json message = {
      {"content", ""}, {"reasoning_content", ""}, {"calls", Json::array()}, {"logprobs", Json::array()}};
  for (const Json& event : events) {
    if (!event.is_object()) continue;
    for (const Json& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      EXPECT_FALSE(message.contains("finish_reason")) << "something came after the end";
      const Json& delta = choice["delta"];
      for (const char* key : {"content", "reasoning_content"}) {
        if (delta.contains(key) && !delta[key].is_null())
          message[key] = message[key].get<std::string>() + delta[key].get<std::string>();
      }
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        const auto number = call["index"].get<std::size_t>();
        if (call.contains("id")) {
          EXPECT_EQ(number, message["calls"].size());
          message["calls"].push_back({{"name", call["function"]["name"]}, {"arguments", ""}});
        } else {
          EXPECT_EQ(number + 1, message["calls"].size());
          EXPECT_FALSE(call["function"].contains("name"));
        }
        Json& arguments = message["calls"][number]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
      if (choice.contains("logprobs")) {
        for (const Json& token : choice["logprobs"]["content"]) message["logprobs"].push_back(token);
      }
      if (!choice["finish_reason"].is_null()) message["finish_reason"] = choice["finish_reason"];
    }
  }
  return message;
}

TEST(ChatWriter, AStreamCutInAnyWayComesToThePlainReply) {
  const std::pair<const char*, bool> kReplies[] = {
      {"Hello, wörld 👋🏽!", true},
      {"<|channel>thought\nLet me see…\n<channel|>The answer is 4.", true},
      {"<|channel>thought\nUnfinished", false},
      {"Sure.\n<|tool_call>call:f{a:<|\"|>x\"y\\z\n<|\"|>,b:[1,2.5,{c:true}],d:null}<tool_call|>"
       "<|tool_call>call:g{}<tool_call|><|tool_response>",
       true},
      {"<|tool_call>call:cut{text:<|\"|>never end", false},
      {"", true},
      {"é", true},
  };
  std::mt19937 random(7);
  for (std::size_t chunk = 1; chunk <= 12; ++chunk) {
    for (const auto& [first_text, first_stops] : kReplies) {
      for (const auto& [second_text, second_stops] : kReplies) {
        std::vector<std::vector<GenerationUpdate>> updates = {
            cut_reply(first_text, first_stops, chunk, random),
            cut_reply(second_text, second_stops, chunk + 2, random)};
        std::vector<GenerationUpdate> joined(2);
        for (std::size_t i = 0; i < 2; ++i) {
          for (const GenerationUpdate& update : updates[i]) join_update(joined[i], GenerationUpdate(update));
        }
        OpenAiReply form = reply_form(2);
        form.logprobs = true;
        const auto writer = chat_writer(form);
        std::string out;
        writer->begin(out);
        // Interleaved in a random order.
        std::size_t next[2] = {0, 0};
        while (next[0] < updates[0].size() || next[1] < updates[1].size()) {
          const std::size_t i = random() % 2;
          if (next[i] < updates[i].size()) writer->update(i, updates[i][next[i]++], out);
        }
        writer->end(out);
        const std::vector<Json> events = events_of(out);
        EXPECT_EQ(events.back(), "[DONE]");
        EXPECT_EQ(std::count(events.begin(), events.end(), Json("[DONE]")), 1);
        const Json plain = Json::parse(chat_writer(form)->whole(joined).body);
        for (std::size_t i = 0; i < 2; ++i) {
          const Json streamed = collect(events, i);
          const Json& choice = plain["choices"][i];
          const Json& message = choice["message"];
          EXPECT_EQ(streamed["finish_reason"], choice["finish_reason"]);
          EXPECT_EQ(streamed["content"], message["content"].is_null() ? Json("") : message["content"]);
          EXPECT_EQ(streamed["reasoning_content"], message.value("reasoning_content", ""));
          const Json calls = message.value("tool_calls", Json::array());
          ASSERT_EQ(streamed["calls"].size(), calls.size());
          for (std::size_t k = 0; k < calls.size(); ++k) {
            EXPECT_EQ(streamed["calls"][k]["name"], calls[k]["function"]["name"]);
            EXPECT_EQ(streamed["calls"][k]["arguments"], calls[k]["function"]["arguments"]);
            EXPECT_TRUE(Json::accept(streamed["calls"][k]["arguments"].get<std::string>()));
          }
          const Json logprobs = choice["logprobs"].is_null() ? Json::array() : choice["logprobs"]["content"];
          EXPECT_EQ(streamed["logprobs"], logprobs);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gem::server
