// From requests to jobs for the service: rendering, encoding, the check that the prompt fits.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "server/api/chat_request.h"
#include "server/api/json_fields.h"
#include "text/tokenizer.h"

namespace gem::server {
namespace {

// Batches beyond this are split by the client; each prompt is a reply of its own.
constexpr std::size_t kMaxPrompts = 256;

struct EncodedChat {
  std::vector<std::int32_t> ids;
  std::string text;
  bool open_thought = false;
};

RenderedPrompt render(const ChatRequest& request) {
  ChatOptions options;
  options.add_generation_prompt = request.add_generation_prompt;
  options.enable_thinking = request.thinking;
  options.preserve_thinking = request.preserve_thinking;
  options.continue_final = request.continue_final;
  try {
    return render_chat(request.messages, request.tools, options);
  } catch (const Error& error) {
    const bool tool = std::string_view(error.what()).starts_with("tool ");
    detail::rethrow_naming_field(tool ? "tools" : "messages", error);
  }
}

EncodedChat encode(const ChatRequest& request, const Tokenizer& tokenizer) {
  const RenderedPrompt prompt = render(request);
  EncodedChat result;
  result.ids = naming_field("messages", [&] { return tokenizer.encode_prompt(prompt.pieces); });
  tokenizer.ensure_bos(result.ids);
  result.text = to_text(prompt.pieces);
  result.open_thought = prompt.open_thought;
  return result;
}

void check_fits(std::size_t prompt_tokens, const Session& session) {
  const std::uint32_t context = session.engine().options().context;
  if (prompt_tokens >= context) throw ApiError::context_exceeded(prompt_tokens, context);
}

// The n jobs of one prompt, all but what chat adds.
std::vector<GenerationJob> make_jobs(std::vector<std::int32_t> prompt, const GenerationFields& fields,
                                     const Session& session) {
  check_fits(prompt.size(), session);
  GenerationJob job;
  job.request = session.request(std::move(prompt), fields.sampling);
  job.request.max_tokens = fields.max_tokens;
  job.request.logprobs = fields.logprobs;
  job.request.draft = fields.draft;
  if (fields.ignore_eos) {
    const std::vector<std::int32_t>& ends = job.request.end_tokens;
    job.request.suppressed.insert(job.request.suppressed.end(), ends.begin(), ends.end());
  }
  job.stops = fields.stops;
  job.token_details = fields.logprobs.has_value() || fields.return_tokens;
  job.reuse_prompt = fields.reuse_prompt;
  job.time_limit = fields.time_limit;
  std::vector<GenerationJob> jobs(fields.n, job);
  for (std::uint32_t i = 0; i < fields.n; ++i) jobs[i].request.sampling.seed = fields.sampling.seed + i;
  return jobs;
}

// A prompt that is an array with a number in it: token ids and texts, one after the other.
std::vector<std::int32_t> mixed_prompt(const JsonValue& value, const std::string& place,
                                       const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    const JsonValue& item = value.items[i];
    if (item.is_string()) {
      const std::vector<std::int32_t> more = tokenizer.encode(item.text, true);
      ids.insert(ids.end(), more.begin(), more.end());
      if (i == 0) tokenizer.ensure_bos(ids);
      continue;
    }
    const std::optional<std::int64_t> id = as_integer(item);
    if (!id || *id < 0 || *id >= tokenizer.size()) {
      refuse_field(fmt::format("{}[{}]", place, i), fmt::format("expected a token id from 0 to {}, found {}",
                                                                tokenizer.size() - 1, describe(item)));
    }
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

std::vector<std::int32_t> one_prompt(const JsonValue& value, const std::string& place,
                                     const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  if (value.is_string()) {
    ids = tokenizer.encode(value.text, true);
    tokenizer.ensure_bos(ids);
  } else if (value.is_array()) {
    ids = mixed_prompt(value, place, tokenizer);
  } else {
    refuse_field(place, fmt::format("expected a string or an array of token ids, found {}", describe(value)));
  }
  if (ids.empty()) refuse_field(place, "is empty");
  return ids;
}

bool holds_a_number(const JsonValue& value) {
  return value.is_array() && std::any_of(value.items.begin(), value.items.end(), [](const JsonValue& v) {
           return v.kind == JsonValue::Kind::kNumber;
         });
}

}  // namespace

PreparedChat prepare_chat(const ChatRequest& request, const Session& session) {
  EncodedChat prompt = encode(request, session.tokenizer());
  PreparedChat prepared;
  prepared.prompt_tokens = static_cast<std::uint32_t>(prompt.ids.size());
  prepared.prompt_text = std::move(prompt.text);
  prepared.jobs = make_jobs(std::move(prompt.ids), request.generation, session);
  std::shared_ptr<const ToolTypes> types;
  if (request.tools_active) types = std::make_shared<const ToolTypes>(request.tools);
  for (GenerationJob& job : prepared.jobs) {
    job.parse = true;
    job.reply.tools = types;
    job.reply.start_thinking = prompt.open_thought;
    job.reply.tools_active = request.tools_active;
    job.reply.extract_reasoning = request.extract_reasoning;
    job.thinking_budget = request.thinking_budget;
    job.one_call = request.tools_active && !request.parallel_tool_calls;
  }
  return prepared;
}

std::vector<std::int32_t> encode_chat(const ChatRequest& request, const Session& session) {
  return encode(request, session.tokenizer()).ids;
}

std::vector<std::vector<std::int32_t>> parse_prompts(const JsonValue& body, const Tokenizer& tokenizer) {
  const FieldReader fields(body);
  const JsonValue* value = fields.find("prompt");
  if (value == nullptr) fields.refuse("prompt", "missing");
  const std::string place = fields.path("prompt");
  if (!value->is_array() || holds_a_number(*value)) return {one_prompt(*value, place, tokenizer)};
  if (value->items.empty()) fields.refuse("prompt", "is empty");
  if (value->items.size() > kMaxPrompts) {
    fields.refuse("prompt", fmt::format("{} prompts, at most {} are taken in a request", value->items.size(),
                                        kMaxPrompts));
  }
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::size_t i = 0; i < value->items.size(); ++i)
    prompts.push_back(one_prompt(value->items[i], fmt::format("{}[{}]", place, i), tokenizer));
  return prompts;
}

std::vector<GenerationJob> prepare_completion(std::vector<std::int32_t> prompt,
                                              const GenerationFields& fields, const Session& session) {
  std::vector<GenerationJob> jobs = make_jobs(std::move(prompt), fields, session);
  for (GenerationJob& job : jobs) {
    job.parse = false;
    job.reply.tools_active = false;
  }
  return jobs;
}

void name_jobs(std::vector<GenerationJob>& jobs, const std::string& id) {
  for (GenerationJob& job : jobs) job.id = id;
}

}  // namespace gem::server
