// A chat request of any of the three APIs (OpenAI chat, OpenAI responses, Anthropic messages) in one form,
// and the way from there to work for the service.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "server/service.h"
#include "text/chat_format.h"
#include "text/chat_message.h"
#include "text/json_value.h"

namespace gem::server {

// The fields by which a reply is drawn, shared by chat and completions.
struct GenerationFields {
  SamplingParams sampling;       // the model's defaults where the request says nothing
  std::uint32_t max_tokens = 0;  // 0: until the context is full
  std::uint32_t n = 1;           // replies; reply i is drawn with seed + i
  std::vector<std::string> stops;
  std::optional<std::uint32_t> logprobs;  // alternatives wanted beside each token's own
  bool return_tokens = false;
  bool ignore_eos = false;
  bool reuse_prompt = true;
  bool draft = true;
  std::optional<std::chrono::milliseconds> time_limit;
};

// How the stream is to look.
struct StreamFields {
  bool stream = false;
  bool include_usage = false;
  bool return_progress = false;
  bool timings_per_token = false;
};

struct ChatRequest {
  GenerationFields generation;
  StreamFields stream;
  std::vector<Message> messages;
  std::vector<Tool> tools;
  bool tools_active = true;  // tool_choice none: declared, but nothing is parsed as a call
  bool parallel_tool_calls = true;
  bool thinking = false;
  bool preserve_thinking = false;
  bool extract_reasoning = true;  // reasoning_format none: thoughts stay in the content
  std::optional<std::uint32_t> thinking_budget;
  bool add_generation_prompt = true;
  ContinueFinal continue_final = ContinueFinal::kNo;
  bool reasoning_control = false;
};

// A request's values where it says nothing.
struct RequestDefaults {
  SamplingParams sampling;
  bool thinking = true;
  std::uint32_t max_n = 1;  // most replies of one request
  std::uint32_t vocab = 0;
  std::optional<std::uint32_t> thinking_budget;
};

// The body of POST /v1/chat/completions. Throws ApiError naming the field. `tokenizer` for logit_bias given
// as text.
ChatRequest parse_chat_request(const JsonValue& body, const RequestDefaults& defaults,
                               const Tokenizer& tokenizer);
// The sampling and stream fields alone (completions; and the ground for the other APIs).
GenerationFields parse_generation_fields(const JsonValue& body, const RequestDefaults& defaults,
                                         const Tokenizer& tokenizer);
StreamFields parse_stream_fields(const JsonValue& body);

// What every API refuses in messages and tools, at the place in `field` where the client wrote them: media,
// more calls in a message than are matched with their results, tool names that a call could not carry.
void check_messages(const std::vector<Message>& messages, std::string_view field = "messages");
void check_tools(const std::vector<Tool>& tools, std::string_view field = "tools");
// Whether a reasoning effort (none, minimal, low, …) means thinking. The model has one switch: all but none
// turn it on, unless the request has `chosen` it elsewhere. Throws ApiError for other words.
bool thinking_of_effort(std::string_view field, std::string_view effort,
                        std::optional<bool> chosen = std::nullopt);

struct PreparedChat {
  std::vector<GenerationJob> jobs;  // n of them
  std::uint32_t prompt_tokens = 0;
  std::string prompt_text;  // as rendered, for /apply-template
};

// Renders, encodes and checks that the prompt fits the context. Throws ApiError.
PreparedChat prepare_chat(const ChatRequest& request, const Session& session);
// The rendered prompt's ids alone, without the check (token counting).
std::vector<std::int32_t> encode_chat(const ChatRequest& request, const Session& session);

// The prompts of a completion: a text, token ids, a mix of both (one prompt), or an array of such (one prompt
// each). Control tokens that a text spells are meant; a prompt that begins with text gets its <bos>, ids are
// taken as they are. Throws ApiError.
std::vector<std::vector<std::int32_t>> parse_prompts(const JsonValue& body, const Tokenizer& tokenizer);

// Jobs of a prompt given as ids (completions).
std::vector<GenerationJob> prepare_completion(std::vector<std::int32_t> prompt,
                                              const GenerationFields& fields, const Session& session);

// Gives all jobs of a request the id that its reply has.
void name_jobs(std::vector<GenerationJob>& jobs, const std::string& id);

}  // namespace gem::server
