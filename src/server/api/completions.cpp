// POST /v1/completions: text goes on, without the chat format.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <iterator>
#include <limits>
#include <utility>

#include "server/api/api.h"
#include "server/api/json_echo.h"
#include "server/api/json_fields.h"
#include "server/api/openai_shapes.h"
#include "server/api/openai_writers.h"

namespace gem::server {
namespace {

using Json = nlohmann::ordered_json;

// "length" or "stop": there are no calls in plain text.
const char* finish_reason(const GenerationResult& result) {
  return result.reason == FinishReason::kStop ? "stop" : "length";
}

class CompletionWriter : public ReplyWriter {
 public:
  explicit CompletionWriter(OpenAiReply reply)
      : reply_(std::move(reply)), choices_(reply_.choices), unfinished_(reply_.choices) {}

  void begin(std::string&) override {}

  void update(std::size_t index, const GenerationUpdate& update, std::string& out) override {
    Choice& choice = choices_[index];
    keep_tokens(choice, update.tokens);
    Json extra = Json::object();
    if (reply_.stream.timings_per_token) extra["timings"] = timings_json(update.times);
    if (update.prompt && reply_.stream.return_progress) {
      Json progress = extra;
      progress["prompt_progress"] = progress_json(*update.prompt);
      write({{"text", ""}, {"index", index}, {"logprobs", nullptr}, {"finish_reason", nullptr}}, progress,
            out);
    }
    for (const ReplyEvent& event : update.events) {
      if (event.kind == ReplyEvent::Kind::kContent)
        write(choice_json(index, event.text, choice, nullptr), extra, out);
    }
    if (!update.result) return;
    const GenerationResult& result = *update.result;
    usage_.add(result, index % reply_.choices_per_prompt == 0);
    extra["timings"] = timings_json(result.times);
    // Where no usage chunk was asked for, the last chunk carries it.
    if (--unfinished_ == 0 && !reply_.stream.include_usage) extra["usage"] = usage_.json();
    write(choice_json(index, "", choice, finish_reason(result)), extra, out);
  }

  void end(std::string& out) override {
    if (reply_.stream.include_usage) {
      Json chunk = openai_head(reply_.identity, "text_completion");
      chunk["choices"] = Json::array();
      chunk["usage"] = usage_.json();
      append_event(out, {}, dump(chunk));
    }
    append_event(out, {}, "[DONE]");
  }

  void fail(const std::string& message, std::string& out) override {
    append_event(out, {}, error_body(ApiError::internal(message), ErrorShape::kOpenAi));
  }

  HttpResponse whole(const std::vector<GenerationUpdate>& updates) override {
    Json body = openai_head(reply_.identity, "text_completion");
    Json& choices = body["choices"] = Json::array();
    UsageSum usage;
    for (std::size_t i = 0; i < updates.size(); ++i) {
      const GenerationResult& result = *updates[i].result;
      Choice kept;
      keep_tokens(kept, updates[i].tokens);
      Json choice = choice_json(i, result.reply.content, kept, finish_reason(result));
      if (updates.size() > 1) choice["timings"] = timings_json(result.times);
      choices.push_back(std::move(choice));
      usage.add(result, i % reply_.choices_per_prompt == 0);
    }
    body["usage"] = usage.json();
    if (updates.size() == 1) body["timings"] = timings_json(updates.front().result->times);
    return json_response(body);
  }

 private:
  struct Choice {
    LegacyLogprobs logprobs;  // of tokens that no chunk has carried yet
    Json tokens = Json::array();
  };

  // Takes the choice's tokens.
  static Json choice_json(std::size_t index, const std::string& text, Choice& choice, Json finish) {
    Json json = {{"text", text}, {"index", index}};
    json["logprobs"] = choice.logprobs.empty() ? Json() : choice.logprobs.take();
    if (!choice.tokens.empty()) json["tokens"] = std::exchange(choice.tokens, Json::array());
    json["finish_reason"] = std::move(finish);
    return json;
  }

  void keep_tokens(Choice& choice, const std::vector<TokenDetail>& tokens) const {
    for (const TokenDetail& token : tokens) {
      if (reply_.logprobs) choice.logprobs.add(token);
      if (reply_.return_tokens) choice.tokens.push_back(token.token);
    }
  }

  void write(Json choice, const Json& extra, std::string& out) {
    Json chunk = openai_head(reply_.identity, "text_completion");
    chunk["choices"] = Json::array();
    chunk["choices"].push_back(std::move(choice));
    if (!extra.empty()) chunk.update(extra);
    append_event(out, {}, dump(chunk));
  }

  OpenAiReply reply_;
  std::vector<Choice> choices_;
  std::size_t unfinished_;
  UsageSum usage_;
};

// Replies that are thrown away would change nothing but the cost; choosing the best of more is not done here.
void check_best_of(const FieldReader& fields, std::uint32_t n) {
  const auto best_of = fields.integer("best_of", 1, std::numeric_limits<std::int32_t>::max());
  if (best_of && *best_of != n)
    fields.refuse("best_of", fmt::format("not supported; leave it out or equal to n ({})", n));
}

}  // namespace

std::unique_ptr<ReplyWriter> completion_writer(OpenAiReply reply) {
  return std::make_unique<CompletionWriter>(std::move(reply));
}

Reply completions(const ApiContext& context, const HttpRequest& request) {
  const JsonValue body = parse_body(request);
  const Tokenizer& tokenizer = context.session.tokenizer();
  const FieldReader fields(body);
  fields.text("model");
  fields.integer("logprobs", 0, 20);
  const GenerationFields generation = parse_generation_fields(body, context.defaults, tokenizer);
  check_best_of(fields, generation.n);

  OpenAiReply reply;
  reply.stream = parse_stream_fields(body);
  std::vector<GenerationJob> jobs;
  for (std::vector<std::int32_t>& prompt : parse_prompts(body, tokenizer)) {
    std::vector<GenerationJob> more = prepare_completion(std::move(prompt), generation, context.session);
    std::move(more.begin(), more.end(), std::back_inserter(jobs));
  }
  reply.identity = {context.new_id("cmpl-"), context.now(), context.card.id, context.card.fingerprint};
  name_jobs(jobs, reply.identity.id);
  reply.choices = jobs.size();
  reply.choices_per_prompt = generation.n;
  reply.logprobs = generation.logprobs.has_value();
  reply.return_tokens = generation.return_tokens;
  reply.new_id = context.new_id;
  const bool stream = reply.stream.stream;
  auto writer = completion_writer(std::move(reply));
  auto generations = context.service.submit(std::move(jobs));
  return stream ? stream_reply(std::move(generations), std::move(writer))
                : plain_reply(std::move(generations), std::move(writer));
}

}  // namespace gem::server
