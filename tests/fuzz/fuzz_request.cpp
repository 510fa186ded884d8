// Any bytes as the body of a request that generates: refused with an ApiError that says something, or read to
// fields that are in range, a prompt that renders or is refused, and ids of the vocabulary.
//
// Byte 0 is the endpoint: c chat, p completions, r responses, m messages; everything else is chat.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/api/anthropic_request.h"
#include "server/api/api_error.h"
#include "server/api/chat_request.h"
#include "server/api/json_fields.h"
#include "server/api/responses_request.h"
#include "text/argument_types.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace gem;
using namespace gem::server;

void require(bool holds) {
  if (!holds) std::abort();
}

// The format's control tokens, the bytes, and nothing else.
Tokenizer make_tokenizer() {
  TokenizerSource source;
  const auto add = [&](const std::string& text, PieceKind kind) {
    source.pieces.add(text);
    source.kinds.push_back(kind);
  };
  for (const char* token : {"<pad>",
                            "<eos>",
                            "<bos>",
                            "<unk>",
                            "<mask>",
                            "<|turn>",
                            "<turn|>",
                            "<|think|>",
                            "<|tool>",
                            "<tool|>",
                            "<|channel>",
                            "<channel|>",
                            "<|tool_call>",
                            "<tool_call|>",
                            "<|tool_response>",
                            "<tool_response|>",
                            "<|\"|>",
                            "<|image|>",
                            "<|audio|>",
                            "<|video|>"}) {
    add(token, PieceKind::kControl);
  }
  for (unsigned byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), PieceKind::kByte);
  return Tokenizer(std::move(source));
}

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = make_tokenizer();
  return tokenizer;
}

RequestDefaults defaults() {
  RequestDefaults d;
  d.max_n = 4;
  d.vocab = static_cast<std::uint32_t>(tokenizer().size());
  return d;
}

void check_ids(const std::vector<std::int32_t>& ids) {
  for (const std::int32_t id : ids) require(id >= 0 && id < tokenizer().size());
}

void check(const GenerationFields& fields) {
  const SamplingParams& s = fields.sampling;
  require(fields.n >= 1 && fields.n <= 4);
  require(std::isfinite(s.temperature) && s.temperature >= 0);
  require(s.top_p >= 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1);
  require(std::isfinite(s.repetition_penalty) && s.repetition_penalty > 0);
  require(std::isfinite(s.presence_penalty) && std::isfinite(s.frequency_penalty));
  for (const auto& [id, bias] : s.logit_bias) {
    require(id >= 0 && id < tokenizer().size() && !std::isnan(bias));
  }
  for (const std::string& stop : fields.stops) require(!stop.empty() && utf8_valid(stop));
}

void check(const ChatRequest& request) {
  check(request.generation);
  require(!request.tools_active || !request.tools.empty());
  const ToolTypes types(request.tools);
  for (const Tool& tool : request.tools) require(types.find(tool.name) != nullptr);
  RenderedPrompt prompt;
  try {
    prompt = render_chat(request.messages, request.tools,
                         {.add_generation_prompt = request.add_generation_prompt,
                          .enable_thinking = request.thinking,
                          .preserve_thinking = request.preserve_thinking,
                          .continue_final = request.continue_final});
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kUsage);
    return;
  }
  require(prompt.media.empty());
  std::vector<std::int32_t> ids = tokenizer().encode_prompt(prompt.pieces);
  check_ids(ids);
  require(!ids.empty() && ids.front() == tokenizer().bos());
  require(std::count(ids.begin(), ids.end(), tokenizer().bos()) == 1);
}

void answer(char endpoint, const JsonValue& body) {
  switch (endpoint) {
    case 'p': {
      for (const auto& prompt : parse_prompts(body, tokenizer())) {
        require(!prompt.empty());
        check_ids(prompt);
      }
      check(parse_generation_fields(body, defaults(), tokenizer()));
      parse_stream_fields(body);
      return;
    }
    case 'r': {
      const ResponsesRequest request = parse_responses_request(body, defaults(), tokenizer());
      require(request.response.is_object());
      require(nlohmann::json::accept(
          request.response.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
      return check(request.chat);
    }
    case 'm':
      return check(parse_anthropic_request(body, defaults(), tokenizer()).chat);
    default:
      return check(parse_chat_request(body, defaults(), tokenizer()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    answer(static_cast<char>(data[0]), parse_object(text));
  } catch (const ApiError& error) {
    require(error.status >= 400 && error.status < 500 && !error.message.empty());
    for (const ErrorShape shape : {ErrorShape::kOpenAi, ErrorShape::kAnthropic}) {
      require(nlohmann::json::accept(error_body(error, shape)));
    }
  }
  return 0;
}
