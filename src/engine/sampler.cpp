#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace gem {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

std::uint64_t purpose_seed(std::uint64_t seed, DrawPurpose purpose) {
  return purpose == DrawPurpose::kReply ? seed
                                        : mixed(seed ^ (static_cast<std::uint64_t>(purpose) * kGolden));
}

void check(bool good, const char* field, double value, const char* expected) {
  if (!good) fail(ErrorCode::kUsage, "{} is {}, expected {}", field, value, expected);
}

}  // namespace

void SamplingParams::validate(std::uint32_t vocab) const {
  const auto between = [](double x, double low, double high) { return x >= low && x <= high; };
  check(between(temperature, 0, 100), "temperature", temperature, "0 to 100");
  check(between(top_p, 0, 1), "top_p", top_p, "0 to 1");
  check(between(min_p, 0, 1), "min_p", min_p, "0 to 1");
  check(between(repetition_penalty, 0.01, 100), "repetition_penalty", repetition_penalty, "0.01 to 100");
  check(between(presence_penalty, -100, 100), "presence_penalty", presence_penalty, "-100 to 100");
  check(between(frequency_penalty, -100, 100), "frequency_penalty", frequency_penalty, "-100 to 100");
  check(penalty_window <= 1u << 24, "penalty_window", penalty_window, "0 to 16777216");
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0 || static_cast<std::uint32_t>(token) >= vocab) {
      fail(ErrorCode::kUsage, "logit_bias names token {}, expected 0 to {}", token, vocab - 1);
    }
    if (std::isnan(bias)) fail(ErrorCode::kUsage, "logit_bias of token {} is not a number", token);
  }
}

Logprobs log_probabilities(std::span<const float> logits, std::int32_t token, std::uint32_t top) {
  const double peak = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - peak);
  const double normaliser = peak + std::log(sum);
  const auto logprob = [&](std::int32_t t) {
    return static_cast<double>(logits[static_cast<std::size_t>(t)]) - normaliser;
  };
  Logprobs result;
  result.token = logprob(token);
  if (std::isnan(normaliser)) return result;  // no order among them
  std::vector<std::int32_t> ids(top == 0 ? 0 : logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(top, ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (auto id = ids.begin(); id != end; ++id) result.top.push_back({*id, logprob(*id)});
  return result;
}

double gumbel(std::uint64_t seed, std::uint64_t position, std::int32_t token) {
  return -std::log(-std::log(keyed_uniform(seed, position, static_cast<std::uint32_t>(token))));
}

double Distribution::of(std::int32_t token) const {
  for (const auto& [t, p] : tokens) {
    if (t == token) return p;
  }
  return 0;
}

std::int32_t draw(const Distribution& distribution, std::uint64_t seed, std::uint64_t position,
                  DrawPurpose purpose) {
  std::int32_t chosen = distribution.tokens.front().first;
  double best = -std::numeric_limits<double>::infinity();
  for (const auto& [token, p] : distribution.tokens) {
    const double score = std::log(p) + gumbel(purpose_seed(seed, purpose), position, token);
    if (score > best) {
      best = score;
      chosen = token;
    }
  }
  return chosen;
}

double uniform(std::uint64_t seed, std::uint64_t position, DrawPurpose purpose) {
  return keyed_uniform(purpose_seed(seed, purpose), position, 0);
}

Sampler::Sampler(SamplingParams params, std::span<const std::int32_t> suppressed)
    : params_(std::move(params)), suppressed_(suppressed.begin(), suppressed.end()) {}

bool Sampler::penalises() const {
  return params_.repetition_penalty != 1.0 || params_.presence_penalty != 0.0 ||
         params_.frequency_penalty != 0.0;
}

std::optional<KeyedDraw> Sampler::draw_of_best(std::uint64_t position, std::uint32_t most) const {
  if (penalises() || !params_.logit_bias.empty()) return std::nullopt;
  if (params_.temperature != 0.0 && (params_.top_k == 0 || params_.top_k > most)) return std::nullopt;
  return KeyedDraw{.temperature = params_.temperature,
                   .top_k = params_.top_k,
                   .top_p = params_.top_p,
                   .min_p = params_.min_p,
                   .seed = params_.seed,
                   .position = position};
}

// Counts a token of the window and forgets the one that leaves it.
void Sampler::look_at(std::int32_t token) {
  window_.push_back(token);
  ++seen_[token].reply;
  if (window_.size() <= params_.penalty_window) return;
  const auto leaving = seen_.find(window_.front());
  if (--leaving->second.reply == 0) seen_.erase(leaving);
  window_.pop_front();
}

void Sampler::see_prompt(std::span<const std::int32_t> tokens) {
  if (!penalises()) return;
  if (params_.penalty_window != 0) {
    for (const std::int32_t token : tokens.last(std::min<std::size_t>(tokens.size(), params_.penalty_window)))
      look_at(token);
  } else if (params_.repetition_penalty != 1.0) {
    for (const std::int32_t token : tokens) ++seen_[token].prompt;
  }
}

void Sampler::see_reply(std::int32_t token) {
  if (!penalises()) return;
  if (params_.penalty_window != 0) return look_at(token);
  ++seen_[token].reply;
}

// Copies the logits with bias and penalties applied. False when one of them is NaN.
bool Sampler::adjust(std::span<const float> logits) {
  adjusted_.assign(logits.begin(), logits.end());
  bool nan = false;
  for (const float x : logits) nan |= x != x;
  if (nan) return false;
  const auto inside = [&](std::int32_t t) {
    return t >= 0 && static_cast<std::size_t>(t) < adjusted_.size();
  };
  for (const auto& [token, bias] : params_.logit_bias) {
    if (inside(token)) adjusted_[static_cast<std::size_t>(token)] += bias;
  }
  const auto repetition = static_cast<float>(params_.repetition_penalty);
  const auto presence = static_cast<float>(params_.presence_penalty);
  const auto frequency = static_cast<float>(params_.frequency_penalty);
  if (repetition != 1.0f || presence != 0.0f || frequency != 0.0f) {
    for (const auto& [token, seen] : seen_) {
      if (!inside(token)) continue;
      float& x = adjusted_[static_cast<std::size_t>(token)];
      x = x > 0 ? x / repetition : x * repetition;
      if (seen.reply > 0) x -= presence + frequency * static_cast<float>(seen.reply);
    }
  }
  for (const std::int32_t token : suppressed_) {
    if (inside(token)) adjusted_[static_cast<std::size_t>(token)] = kForbidden;
  }
  return true;
}

// The lowest id among equals.
std::optional<std::int32_t> Sampler::argmax() const {
  const auto best = std::max_element(adjusted_.begin(), adjusted_.end());
  if (best == adjusted_.end() || *best == kForbidden) return std::nullopt;
  return static_cast<std::int32_t>(best - adjusted_.begin());
}

// The k best as candidates, best first, the lower id first among equals.
void Sampler::keep_top_k() {
  const auto better = [](const ScoredToken& a, const ScoredToken& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  candidates_.clear();
  const std::size_t k =
      params_.top_k == 0 ? adjusted_.size() : std::min<std::size_t>(params_.top_k, adjusted_.size());
  for (std::size_t i = 0; i < adjusted_.size(); ++i) {
    if (adjusted_[i] == kForbidden) continue;
    const ScoredToken c{adjusted_[i], static_cast<std::int32_t>(i)};
    if (candidates_.size() < k) {
      candidates_.push_back(c);
      if (candidates_.size() == k && k < adjusted_.size())
        std::make_heap(candidates_.begin(), candidates_.end(), better);
    } else if (better(c, candidates_.front())) {  // the heap's front is the worst kept
      std::pop_heap(candidates_.begin(), candidates_.end(), better);
      candidates_.back() = c;
      std::push_heap(candidates_.begin(), candidates_.end(), better);
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), better);
}

// Top-p over the kept candidates' renormalised probabilities, then min-p. The best one always stays.
void Sampler::keep_probable() {
  if (params_.top_p >= 1.0 && params_.min_p <= 0.0) return;
  const double t = params_.temperature;
  const double peak = static_cast<double>(candidates_.front().logit);
  std::vector<double> p;
  double sum = 0;
  for (const ScoredToken& c : candidates_) {
    p.push_back(std::exp((static_cast<double>(c.logit) - peak) / t));
    sum += p.back();
  }
  std::size_t keep = 0;
  double reached = 0;  // a token stays while those before it do not reach top_p
  while (keep < p.size() && (keep == 0 || (reached < params_.top_p * sum && p[keep] >= params_.min_p))) {
    reached += p[keep++];
  }
  candidates_.resize(keep);
}

void Sampler::follow(const Sampler& other) {
  seen_ = other.seen_;
  window_ = other.window_;
}

std::optional<Distribution> Sampler::distribution(std::span<const float> logits) {
  if (!adjust(logits)) return std::nullopt;
  Distribution d;
  if (params_.temperature == 0.0) {
    const std::optional<std::int32_t> best = argmax();
    if (!best) return std::nullopt;
    d.tokens.emplace_back(*best, 1.0);
    return d;
  }
  keep_top_k();
  if (candidates_.empty()) return std::nullopt;
  keep_probable();
  const double peak = static_cast<double>(candidates_.front().logit);
  double sum = 0;
  for (const ScoredToken& c : candidates_) {
    d.tokens.emplace_back(c.token, std::exp((static_cast<double>(c.logit) - peak) / params_.temperature));
    sum += d.tokens.back().second;
  }
  for (auto& [token, p] : d.tokens) p /= sum;
  return d;
}

std::int32_t Sampler::draw_candidate(std::uint64_t position) const {
  std::int32_t chosen = candidates_.front().token;
  double best = -std::numeric_limits<double>::infinity();
  for (const ScoredToken& c : candidates_) {
    const double score =
        static_cast<double>(c.logit) / params_.temperature + gumbel(params_.seed, position, c.token);
    if (score > best) {
      best = score;
      chosen = c.token;
    }
  }
  return chosen;
}

std::optional<std::int32_t> Sampler::draw(std::span<const float> logits, std::uint64_t position) {
  if (!adjust(logits)) return std::nullopt;
  if (params_.temperature == 0.0) return argmax();
  keep_top_k();
  if (candidates_.empty()) return std::nullopt;
  keep_probable();
  return draw_candidate(position);
}

std::optional<std::int32_t> Sampler::draw_from_best(std::span<const ScoredToken> best,
                                                    std::uint64_t position) {
  if (!draw_of_best(position, static_cast<std::uint32_t>(best.size()))) return std::nullopt;
  const std::size_t wanted = params_.temperature == 0.0 ? 1 : params_.top_k;
  candidates_.clear();
  for (const ScoredToken& c : best) {
    if (candidates_.size() == wanted) break;
    if (c.logit == kForbidden) return std::nullopt;
    if (std::find(suppressed_.begin(), suppressed_.end(), c.token) == suppressed_.end())
      candidates_.push_back(c);
  }
  if (candidates_.size() < wanted) return std::nullopt;
  if (params_.temperature == 0.0) return candidates_.front().token;
  keep_probable();
  return draw_candidate(position);
}

std::optional<std::int32_t> draw_row(Sampler& sampler, const Backend& backend, std::uint32_t index,
                                     std::uint64_t position) {
  if (const auto token = sampler.draw_from_best(backend.best_logits(index), position)) return token;
  return sampler.draw(backend.logits(index), position);
}

}  // namespace gem
