// POST /v1/chat/completions.
#include <nlohmann/json.hpp>

#include <utility>

#include "server/api/api.h"
#include "server/api/json_echo.h"
#include "server/api/openai_shapes.h"
#include "server/api/openai_writers.h"

namespace gem::server {
namespace {

using Json = nlohmann::ordered_json;

class ChatWriter : public ReplyWriter {
 public:
  explicit ChatWriter(OpenAiReply reply) : reply_(std::move(reply)), choices_(reply_.choices) {}

  void begin(std::string& out) override {
    for (std::size_t i = 0; i < choices_.size(); ++i) send(i, role(), nullptr, {}, out);
  }

  void update(std::size_t index, const GenerationUpdate& update, std::string& out) override {
    Choice& choice = choices_[index];
    keep_tokens(choice, update.tokens);
    Json extra = Json::object();
    if (reply_.stream.timings_per_token) extra["timings"] = timings_json(update.times);
    if (update.prompt && reply_.stream.return_progress) {
      Json progress = extra;
      progress["prompt_progress"] = progress_json(*update.prompt);
      send(index, role(), nullptr, progress, out);
    }
    for (const ReplyEvent& event : update.events) {
      Json delta = delta_of(event);
      send_with_tokens(index, std::move(delta), nullptr, extra, out);
    }
    if (!update.result) return;
    const GenerationResult& result = *update.result;
    // The usage chunk carries the timings of a single choice.
    if (!reply_.stream.include_usage || choices_.size() > 1) extra["timings"] = timings_json(result.times);
    send_with_tokens(index, Json::object(), result.reply.finish_reason, extra, out);
    usage_.add(result, index == 0);
    times_ = result.times;
  }

  void end(std::string& out) override {
    if (reply_.stream.include_usage) {
      Json chunk = openai_head(reply_.identity, "chat.completion.chunk");
      chunk["choices"] = Json::array();
      chunk["usage"] = usage_.json();
      if (choices_.size() == 1) chunk["timings"] = timings_json(times_);
      append_event(out, {}, dump(chunk));
    }
    append_event(out, {}, "[DONE]");
  }

  void fail(const std::string& message, std::string& out) override {
    append_event(out, {}, error_body(ApiError::internal(message), ErrorShape::kOpenAi));
  }

  HttpResponse whole(const std::vector<GenerationUpdate>& updates) override {
    Json body = openai_head(reply_.identity, "chat.completion");
    Json& choices = body["choices"] = Json::array();
    UsageSum usage;
    for (std::size_t i = 0; i < updates.size(); ++i) {
      const GenerationUpdate& update = updates[i];
      const GenerationResult& result = *update.result;
      Json choice = {{"index", i}, {"message", message_of(result.reply)}, {"logprobs", nullptr}};
      Choice kept;
      keep_tokens(kept, update.tokens);
      add_tokens(kept, choice);
      choice["finish_reason"] = result.reply.finish_reason;
      if (updates.size() > 1) choice["timings"] = timings_json(result.times);
      choices.push_back(std::move(choice));
      usage.add(result, i == 0);
    }
    body["usage"] = usage.json();
    if (updates.size() == 1) body["timings"] = timings_json(updates.front().result->times);
    return json_response(body);
  }

 private:
  struct Choice {
    Json logprobs = Json::array();  // of tokens that no chunk has carried yet
    Json tokens = Json::array();
  };

  static Json role() { return {{"role", "assistant"}, {"content", nullptr}}; }

  Json delta_of(const ReplyEvent& event) const {
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        return {{"reasoning_content", event.text}};
      case ReplyEvent::Kind::kContent:
        return {{"content", event.text}};
      case ReplyEvent::Kind::kCallStart:
        return call_delta({{"index", event.call},
                           {"id", reply_.new_id("call_")},
                           {"type", "function"},
                           {"function", {{"name", event.text}, {"arguments", ""}}}});
      case ReplyEvent::Kind::kCallArguments:
        return call_delta({{"index", event.call}, {"function", {{"arguments", event.text}}}});
    }
    return Json::object();
  }
  static Json call_delta(Json call) {
    Json delta;
    delta["tool_calls"] = Json::array();
    delta["tool_calls"].push_back(std::move(call));
    return delta;
  }

  Json message_of(const ParsedReply& reply) const {
    Json message = {{"role", "assistant"}};
    if (reply.content.empty() && !reply.tool_calls.empty()) {
      message["content"] = nullptr;
    } else {
      message["content"] = reply.content;
    }
    if (!reply.reasoning.empty()) message["reasoning_content"] = reply.reasoning;
    for (const ReplyCall& call : reply.tool_calls) {
      message["tool_calls"].push_back({{"id", reply_.new_id("call_")},
                                       {"type", "function"},
                                       {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    return message;
  }

  void keep_tokens(Choice& choice, const std::vector<TokenDetail>& tokens) const {
    for (const TokenDetail& token : tokens) {
      if (reply_.logprobs) choice.logprobs.push_back(logprob_json(token));
      if (reply_.return_tokens) choice.tokens.push_back(token.token);
    }
  }
  // The kept tokens, and none are kept then.
  static void add_tokens(Choice& choice, Json& json) {
    if (!choice.logprobs.empty())
      json["logprobs"] = {{"content", std::exchange(choice.logprobs, Json::array())}};
    if (!choice.tokens.empty()) json["tokens"] = std::exchange(choice.tokens, Json::array());
  }

  void send_with_tokens(std::size_t index, Json delta, Json finish_reason, const Json& extra,
                        std::string& out) {
    Json tokens = Json::object();
    add_tokens(choices_[index], tokens);
    Json choice = {{"index", index}, {"delta", std::move(delta)}};
    choice.update(tokens);
    choice["finish_reason"] = std::move(finish_reason);
    write(std::move(choice), extra, out);
  }
  void send(std::size_t index, Json delta, Json finish_reason, const Json& extra, std::string& out) {
    write({{"index", index}, {"delta", std::move(delta)}, {"finish_reason", std::move(finish_reason)}}, extra,
          out);
  }
  void write(Json choice, const Json& extra, std::string& out) {
    Json chunk = openai_head(reply_.identity, "chat.completion.chunk");
    chunk["choices"] = Json::array();
    chunk["choices"].push_back(std::move(choice));
    if (!extra.empty()) chunk.update(extra);
    append_event(out, {}, dump(chunk));
  }

  OpenAiReply reply_;
  std::vector<Choice> choices_;
  UsageSum usage_;
  StreamTimes times_;
};

}  // namespace

Json openai_head(const ReplyIdentity& identity, const char* object) {
  return {{"id", identity.id},
          {"object", object},
          {"created", identity.created},
          {"model", identity.model},
          {"system_fingerprint", identity.fingerprint}};
}

std::unique_ptr<ReplyWriter> chat_writer(OpenAiReply reply) {
  return std::make_unique<ChatWriter>(std::move(reply));
}

Reply chat_completions(const ApiContext& context, const HttpRequest& request) {
  const JsonValue body = parse_body(request);
  const ChatRequest chat = parse_chat_request(body, context.defaults, context.session.tokenizer());
  PreparedChat prepared = prepare_chat(chat, context.session);
  OpenAiReply reply;
  reply.identity = {context.new_id("chatcmpl-"), context.now(), context.card.id, context.card.fingerprint};
  reply.choices = reply.choices_per_prompt = prepared.jobs.size();
  reply.stream = chat.stream;
  reply.logprobs = chat.generation.logprobs.has_value();
  reply.return_tokens = chat.generation.return_tokens;
  reply.new_id = context.new_id;
  const std::string id = reply.identity.id;
  name_jobs(prepared.jobs, id);
  auto writer = chat_writer(std::move(reply));
  auto generations = context.service.submit(std::move(prepared.jobs));
  if (chat.reasoning_control) generations = context.running->watch(id, std::move(generations));
  if (chat.stream.stream) return stream_reply(std::move(generations), std::move(writer));
  return plain_reply(std::move(generations), std::move(writer));
}

}  // namespace gem::server
