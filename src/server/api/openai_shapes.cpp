#include "server/api/openai_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "text/utf8.h"

namespace gem::server {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no -infinity; the official API writes impossible tokens so.
double finite_logprob(double logprob) {
  return std::isfinite(logprob) ? logprob : -9999.0;
}

Json bytes_json(std::string_view bytes) {
  Json array = Json::array();
  for (const char c : bytes) array.push_back(static_cast<unsigned char>(c));
  return array;
}

Json token_json(std::int32_t token, std::string_view bytes, double logprob) {
  return {{"id", token},
          {"token", std::string(bytes)},  // what is no UTF-8 is replaced when it is written
          {"bytes", bytes_json(bytes)},
          {"logprob", finite_logprob(logprob)}};
}

double ratio(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

}  // namespace

void UsageSum::add(const GenerationResult& result, bool new_prompt) {
  if (new_prompt) {
    prompt_ += std::uint64_t{result.times.reused} + result.times.prompt_tokens;
    cached_ += result.times.reused;
  }
  completion_ += result.times.reply_tokens;
  reasoning_ += result.reasoning_tokens;
}

Json UsageSum::json() const {
  return {{"prompt_tokens", prompt_},
          {"completion_tokens", completion_},
          {"total_tokens", prompt_ + completion_},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning_}}}};
}

Json timings_json(const StreamTimes& t) {
  const double prompt_ms = t.prompt_seconds * 1000;
  const double predicted_ms = t.decode_seconds * 1000;
  const double steps = t.reply_tokens > 0 ? t.reply_tokens - 1.0 : 0.0;
  Json json = {{"cache_n", t.reused},
               {"prompt_n", t.prompt_tokens},
               {"prompt_ms", prompt_ms},
               {"prompt_per_token_ms", ratio(prompt_ms, t.prompt_tokens)},
               {"prompt_per_second", ratio(t.prompt_tokens, t.prompt_seconds)},
               {"predicted_n", t.reply_tokens},
               {"predicted_ms", predicted_ms},
               {"predicted_per_token_ms", ratio(predicted_ms, steps)},
               {"predicted_per_second", ratio(steps, t.decode_seconds)}};
  if (t.drafted > 0) {
    json["draft_n"] = t.drafted;
    json["draft_n_accepted"] = t.accepted;
  }
  return json;
}

Json progress_json(const GenerationUpdate::Progress& p) {
  return {{"total", p.total}, {"cache", p.cached}, {"processed", p.done}, {"time_ms", p.seconds * 1000}};
}

Json logprob_json(const TokenDetail& token) {
  Json json = token_json(token.token, token.bytes, token.logprob);
  Json& top = json["top_logprobs"] = Json::array();
  for (const TokenDetail::Alternative& a : token.top) top.push_back(token_json(a.token, a.bytes, a.logprob));
  return json;
}

std::string token_name(std::string_view bytes) {
  if (utf8_valid(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

void LegacyLogprobs::add(const TokenDetail& token) {
  tokens_.push_back(token_name(token.bytes));
  logprobs_.push_back(finite_logprob(token.logprob));
  Json top = Json::object();
  for (const TokenDetail::Alternative& a : token.top) top[token_name(a.bytes)] = finite_logprob(a.logprob);
  top_.push_back(std::move(top));
  offsets_.push_back(characters_);
  // A character counts where it begins.
  characters_ += static_cast<std::uint64_t>(std::count_if(token.bytes.begin(), token.bytes.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

Json LegacyLogprobs::take() {
  Json json;
  json["tokens"] = std::exchange(tokens_, Json::array());
  json["token_logprobs"] = std::exchange(logprobs_, Json::array());
  json["top_logprobs"] = std::exchange(top_, Json::array());
  json["text_offset"] = std::exchange(offsets_, Json::array());
  return json;
}

Json generation_settings(const GenerationFields& g, const StreamFields& stream) {
  const SamplingParams& p = g.sampling;
  Json bias = Json::array();
  for (const auto& [token, value] : p.logit_bias) {
    Json entry = Json::array({token});
    entry.push_back(std::isfinite(value) ? Json(value) : Json(false));
    bias.push_back(std::move(entry));
  }
  const std::int64_t most = g.max_tokens == 0 ? -1 : std::int64_t{g.max_tokens};
  const bool everything =
      p.penalty_window == 0 || p.penalty_window == std::numeric_limits<std::uint32_t>::max();
  return {{"seed", p.seed},
          {"temperature", p.temperature},
          {"top_k", p.top_k},
          {"top_p", p.top_p},
          {"min_p", p.min_p},
          {"repeat_penalty", p.repetition_penalty},
          {"repeat_last_n", everything ? std::int64_t{-1} : std::int64_t{p.penalty_window}},
          {"presence_penalty", p.presence_penalty},
          {"frequency_penalty", p.frequency_penalty},
          {"logit_bias", std::move(bias)},
          {"samplers", {"penalties", "temperature", "top_k", "top_p", "min_p"}},
          {"stop", g.stops},
          {"n_predict", most},
          {"max_tokens", most},
          {"ignore_eos", g.ignore_eos},
          {"n_probs", g.logprobs.value_or(0)},
          {"stream", stream.stream},
          {"timings_per_token", stream.timings_per_token}};
}

}  // namespace gem::server
