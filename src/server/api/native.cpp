// POST /completion: llama-server's own form.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <iterator>
#include <string_view>
#include <utility>

#include "server/api/api.h"
#include "server/api/json_echo.h"
#include "server/api/json_fields.h"
#include "server/api/openai_shapes.h"
#include "server/api/openai_writers.h"

namespace gem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxResponseFields = 256;
// Which slot served a reply is not told: -1 is what a client sends back for "any".
constexpr int kSlot = -1;

const char* stop_type(const GenerationResult& result) {
  if (result.reason != FinishReason::kStop) return "limit";
  return result.matched.empty() ? "eos" : "word";
}

class NativeWriter : public ReplyWriter {
 public:
  explicit NativeWriter(NativeReply reply)
      : reply_(std::move(reply)), choices_(reply_.prompts.size() * reply_.choices_per_prompt) {}

  void begin(std::string&) override {}

  void update(std::size_t index, const GenerationUpdate& update, std::string& out) override {
    Choice& choice = choices_[index];
    keep_tokens(choice, update.tokens);
    const bool progress = update.prompt && reply_.stream.return_progress;
    if (progress) {
      Json part = partial(index, "", update.times);
      part["prompt_progress"] = progress_json(*update.prompt);
      append_event(out, {}, dump(part));
    }
    for (const ReplyEvent& event : update.events) {
      if (event.kind != ReplyEvent::Kind::kContent) continue;
      choice.new_line = choice.new_line || event.text.find('\n') != std::string::npos;
      send_part(index, event.text, update.times, out);
    }
    if (!update.result) return;
    if (!choice.tokens.empty() || !choice.logprobs.empty()) send_part(index, "", update.times, out);
    append_event(out, {}, dump(final_json(index, *update.result, "", choice.new_line)));
  }

  void end(std::string&) override {}

  void fail(const std::string& message, std::string& out) override {
    append_event(out, {}, error_body(ApiError::internal(message), ErrorShape::kOpenAi));
  }

  HttpResponse whole(const std::vector<GenerationUpdate>& updates) override {
    Json all = Json::array();
    for (std::size_t i = 0; i < updates.size(); ++i) {
      const GenerationResult& result = *updates[i].result;
      Choice kept;
      keep_tokens(kept, updates[i].tokens);
      Json json =
          final_json(i, result, result.reply.content, result.reply.content.find('\n') != std::string::npos);
      json["tokens"] = kept.tokens;
      if (reply_.fields.logprobs) json["completion_probabilities"] = kept.logprobs;
      all.push_back(selected(std::move(json)));
    }
    return json_response(all.size() == 1 ? all.front() : all);
  }

 private:
  struct Choice {
    Json logprobs = Json::array();  // of tokens that no event has carried yet
    Json tokens = Json::array();
    bool new_line = false;
  };

  static std::uint32_t prompt_tokens(const StreamTimes& t) { return t.reused + t.prompt_tokens; }

  Json partial(std::size_t index, const std::string& text, const StreamTimes& times) const {
    Json json = {{"index", index},
                 {"content", text},
                 {"tokens", Json::array()},
                 {"stop", false},
                 {"id_slot", kSlot},
                 {"tokens_predicted", times.reply_tokens},
                 {"tokens_evaluated", prompt_tokens(times)}};
    if (reply_.stream.timings_per_token) json["timings"] = timings_json(times);
    return json;
  }

  void send_part(std::size_t index, const std::string& text, const StreamTimes& times, std::string& out) {
    Choice& choice = choices_[index];
    Json part = partial(index, text, times);
    part["tokens"] = std::exchange(choice.tokens, Json::array());
    if (!choice.logprobs.empty())
      part["completion_probabilities"] = std::exchange(choice.logprobs, Json::array());
    append_event(out, {}, dump(part));
  }

  Json final_json(std::size_t index, const GenerationResult& result, const std::string& text,
                  bool new_line) const {
    const StreamTimes& times = result.times;
    return {{"index", index},
            {"content", text},
            {"tokens", Json::array()},
            {"id_slot", kSlot},
            {"stop", true},
            {"model", reply_.model},
            {"tokens_predicted", times.reply_tokens},
            {"tokens_evaluated", prompt_tokens(times)},
            {"generation_settings", generation_settings(reply_.fields, reply_.stream)},
            {"prompt", reply_.prompts[index / reply_.choices_per_prompt]},
            {"has_new_line", new_line},
            {"truncated", result.reason == FinishReason::kContext},
            {"stop_type", stop_type(result)},
            {"stopping_word", result.matched},
            {"tokens_cached", prompt_tokens(times) + times.reply_tokens},
            {"timings", timings_json(times)}};
  }

  void keep_tokens(Choice& choice, const std::vector<TokenDetail>& tokens) const {
    for (const TokenDetail& token : tokens) {
      if (reply_.fields.logprobs) choice.logprobs.push_back(logprob_json(token));
      if (reply_.fields.return_tokens) choice.tokens.push_back(token.token);
    }
  }

  // The fields that were asked for; "timings/prompt_ms" is one inside another, under that whole name. Those
  // that are not there are left out.
  Json selected(Json json) const {
    if (reply_.response_fields.empty()) return json;
    Json result = Json::object();
    for (const std::string& path : reply_.response_fields) {
      const Json* at = &json;
      std::string_view rest = path;
      for (bool more = true; more && at != nullptr;) {
        const std::size_t slash = rest.find('/');
        more = slash != std::string_view::npos;
        const std::string key(rest.substr(0, slash));
        at = at->is_object() && at->contains(key) ? &(*at)[key] : nullptr;
        if (more) rest.remove_prefix(slash + 1);
      }
      if (at != nullptr) result[path] = *at;
    }
    return result;
  }

  NativeReply reply_;
  std::vector<Choice> choices_;
};

std::vector<std::string> response_fields(const FieldReader& fields) {
  std::vector<std::string> result;
  const JsonValue* value = fields.array("response_fields");
  if (value == nullptr) return result;
  if (value->items.size() > kMaxResponseFields) {
    fields.refuse("response_fields",
                  fmt::format("{} names, at most {} are taken", value->items.size(), kMaxResponseFields));
  }
  for (const JsonValue& item : value->items) {
    if (!item.is_string())
      fields.refuse("response_fields", fmt::format("expected names, found {}", describe(item)));
    result.push_back(item.text);
  }
  return result;
}

}  // namespace

std::unique_ptr<ReplyWriter> native_writer(NativeReply reply) {
  return std::make_unique<NativeWriter>(std::move(reply));
}

Reply native_completion(const ApiContext& context, const HttpRequest& request) {
  const JsonValue body = parse_body(request);
  const Tokenizer& tokenizer = context.session.tokenizer();
  const FieldReader fields(body);
  NativeReply reply;
  reply.model = context.card.id;
  reply.fields = parse_generation_fields(body, context.defaults, tokenizer);
  reply.stream = parse_stream_fields(body);
  reply.response_fields = response_fields(fields);
  reply.choices_per_prompt = reply.fields.n;
  std::vector<GenerationJob> jobs;
  for (std::vector<std::int32_t>& prompt : parse_prompts(body, tokenizer)) {
    reply.prompts.push_back(tokenizer.decode(prompt, true));
    std::vector<GenerationJob> more = prepare_completion(std::move(prompt), reply.fields, context.session);
    std::move(more.begin(), more.end(), std::back_inserter(jobs));
  }
  const bool stream = reply.stream.stream;
  auto writer = native_writer(std::move(reply));
  auto generations = context.service.submit(std::move(jobs));
  return stream ? stream_reply(std::move(generations), std::move(writer))
                : plain_reply(std::move(generations), std::move(writer));
}

}  // namespace gem::server
