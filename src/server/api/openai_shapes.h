// Pieces that the OpenAI-shaped and native replies share: usage, timings, log probabilities, settings.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/chat_request.h"
#include "server/service.h"

namespace gem::server {

// {"prompt_tokens","completion_tokens","total_tokens","prompt_tokens_details":{"cached_tokens"},
//  "completion_tokens_details":{"reasoning_tokens"}}, summed over choices.
class UsageSum {
 public:
  // `new_prompt`: false for further choices of a prompt that is counted already.
  void add(const GenerationResult& result, bool new_prompt);
  nlohmann::ordered_json json() const;

 private:
  std::uint64_t prompt_ = 0, cached_ = 0, completion_ = 0, reasoning_ = 0;
};

// llama-server's timings. The first token comes with the prompt's last row, so that the rate of the reply
// counts the steps after it.
nlohmann::ordered_json timings_json(const StreamTimes& times);

// {"total","cache","processed","time_ms"} of a prompt that is being read.
nlohmann::ordered_json progress_json(const GenerationUpdate::Progress& progress);

// {"id","token","bytes","logprob","top_logprobs":[the same without the last]}.
nlohmann::ordered_json logprob_json(const TokenDetail& token);

// The legacy form of /v1/completions: {"tokens","token_logprobs","top_logprobs","text_offset"}, columns.
class LegacyLogprobs {
 public:
  void add(const TokenDetail& token);
  bool empty() const { return tokens_.empty(); }
  // What was added since the last take.
  nlohmann::ordered_json take();

 private:
  nlohmann::ordered_json tokens_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json logprobs_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json top_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json offsets_ = nlohmann::ordered_json::array();
  std::uint64_t characters_ = 0;  // of the text so far
};

// Token text for people: bytes that form no whole character are written out, "bytes:\xe2\x80" (the official
// spelling), so that different tokens have different names.
std::string token_name(std::string_view bytes);

// The settings a reply was made with, under llama-server's names.
nlohmann::ordered_json generation_settings(const GenerationFields& fields, const StreamFields& stream);

}  // namespace gem::server
