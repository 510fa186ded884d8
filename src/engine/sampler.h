// Sampling: penalties, temperature, filters, and the keyed draw.
//
// A draw is a pure function of (seed, position, token): the token is the argmax over the allowed set of
// logit / temperature + Gumbel(seed, position, token id), which samples from the softmax exactly
// (Gumbel-max). So a stream's tokens do not depend on what else is served, and a drafter that uses the same
// key guesses the draw.
//
// Order: suppressed ids, logit bias, penalties, temperature, top-k, top-p, min-p, draw. Temperature comes
// before the filters, as in the Hugging Face and vLLM samplers.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/keyed_draw.h"

namespace gem {

struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  std::uint32_t top_k = 64;  // 0: no limit
  double top_p = 0.95;       // 1: no limit
  double min_p = 0.0;        // keeps tokens of at least min_p times the best one's probability
  double repetition_penalty =
      1.0;                        // divides positive, multiplies negative logits of tokens in prompt or reply
  double presence_penalty = 0.0;  // subtracted once from tokens in the reply
  double frequency_penalty = 0.0;  // subtracted once an occurrence in the reply
  // 0: penalties look at all tokens, those of the prompt for repetition_penalty only. Else all three look
  // alike at that many of the last tokens of prompt and reply (llama's repeat_last_n).
  std::uint32_t penalty_window = 0;
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // added; -infinity forbids
  std::uint64_t seed = 0;

  // Error(kUsage) naming the field that is out of range.
  void validate(std::uint32_t vocab) const;
};

struct TokenLogprob {
  std::int32_t token = 0;
  double logprob = 0;  // natural
};

struct Logprobs {
  double token = 0;               // of the token that was asked for
  std::vector<TokenLogprob> top;  // the most probable ones, best first, the lower id first among equals
};

// Log probabilities of the softmax of raw logits ([vocab]) at temperature 1, summed in f64.
Logprobs log_probabilities(std::span<const float> logits, std::int32_t token, std::uint32_t top);

// Uniform noise of a key, as a standard Gumbel variable.
double gumbel(std::uint64_t seed, std::uint64_t position, std::int32_t token);

// Probabilities of the tokens that can be drawn, best first; they sum to 1.
struct Distribution {
  std::vector<std::pair<std::int32_t, double>> tokens;
  double of(std::int32_t token) const;  // 0 for those that cannot be drawn
};

// Keys of their own for draws at one position that must not depend on each other.
enum class DrawPurpose : std::uint8_t { kReply, kDraft, kAccept, kResidual };
// The keyed draw from a distribution that is not empty.
std::int32_t draw(const Distribution& distribution, std::uint64_t seed, std::uint64_t position,
                  DrawPurpose purpose);
// In (0, 1).
double uniform(std::uint64_t seed, std::uint64_t position, DrawPurpose purpose);

class Sampler {
 public:
  // `suppressed` ids are never drawn.
  Sampler(SamplingParams params, std::span<const std::int32_t> suppressed);

  // Tokens that penalties look at.
  void see_prompt(std::span<const std::int32_t> tokens);
  void see_reply(std::int32_t token);

  // The token at `position` of the stream, drawn from one row of logits ([vocab]). Nothing when no logit is
  // usable (NaN, or everything forbidden): the stream cannot go on.
  std::optional<std::int32_t> draw(std::span<const float> logits, std::uint64_t position);

  // The same draw, from the best tokens of a row (best first, the lower id first among equals). Nothing where
  // these do not settle it.
  std::optional<std::int32_t> draw_from_best(std::span<const ScoredToken> best, std::uint64_t position);

  // What draw() draws from: at temperature 0 the best token alone.
  std::optional<Distribution> distribution(std::span<const float> logits);

  const SamplingParams& params() const { return params_; }
  bool penalises() const;
  // What draw_from_best() does at `position` with up to `most` best tokens of a row, where it needs nothing
  // else (but that suppressed tokens are not among them).
  std::optional<KeyedDraw> draw_of_best(std::uint64_t position, std::uint32_t most) const;
  // Takes over what `other`, of the same parameters, has seen.
  void follow(const Sampler& other);

 private:
  void look_at(std::int32_t token);
  struct Seen {
    std::uint32_t prompt = 0;
    std::uint32_t reply = 0;
  };
  bool adjust(std::span<const float> logits);
  std::optional<std::int32_t> argmax() const;
  void keep_top_k();
  void keep_probable();
  std::int32_t draw_candidate(std::uint64_t position) const;

  SamplingParams params_;
  std::vector<std::int32_t> suppressed_;
  std::unordered_map<std::int32_t, Seen> seen_;
  std::deque<std::int32_t> window_;      // penalty_window: what seen_ counts (as reply), oldest first
  std::vector<float> adjusted_;          // logits after bias and penalties
  std::vector<ScoredToken> candidates_;  // best first
};

// A draw from row `index` of the backend's logits, by its best tokens where they settle it.
std::optional<std::int32_t> draw_row(Sampler& sampler, const Backend& backend, std::uint32_t index,
                                     std::uint64_t position);

}  // namespace gem
