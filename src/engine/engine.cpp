#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace gem {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Stream::Stream(GenerationRequest request, StreamSink& sink, std::unique_ptr<KvCache> cache)
    : cache_(std::move(cache)),
      sink_(&sink),
      request_(std::move(request)),
      sampler_(request_.sampling, request_.suppressed),
      tokens_(request_.prompt) {
  sampler_.see_prompt(request_.prompt);
}

KeptState Stream::take_state() {
  KeptState state;
  if (cache_ == nullptr) return state;
  state.tokens.assign(tokens_.begin(), tokens_.begin() + cache_->length());
  state.prompt_rows = std::min(cache_->length(), static_cast<std::uint32_t>(request_.prompt.size()));
  state.cache = std::move(cache_);
  return state;
}

Engine::Engine(const Model& model, Backend& backend, EngineOptions options)
    : model_(model), backend_(backend), options_(options) {
  if (options_.context == 0 || options_.chunk == 0 || options_.max_streams == 0) {
    fail(ErrorCode::kUsage, "context, chunk and the number of streams must be at least 1");
  }
}

KvPlan Engine::cache_plan() const {
  return KvPlan::make(model_.geometry(), options_.context, options_.chunk, options_.kv_type);
}

void Engine::check(const GenerationRequest& request) const {
  const std::size_t prompt_tokens = request.prompt.size();
  if (prompt_tokens == 0) fail(ErrorCode::kUsage, "the prompt is empty");
  if (prompt_tokens >= options_.context) {
    fail(ErrorCode::kTooLarge, "the prompt has {} tokens, the context holds {} including the reply",
         prompt_tokens, options_.context);
  }
  const std::uint32_t vocab = model_.geometry().vocab;
  request.sampling.validate(vocab);
  if (request.logprobs && *request.logprobs > vocab)
    fail(ErrorCode::kUsage, "logprobs is {}, expected 0 to {}", *request.logprobs, vocab);
  for (const std::int32_t token : request.prompt) {
    if (token < 0 || static_cast<std::uint32_t>(token) >= vocab)
      fail(ErrorCode::kUsage, "the prompt holds token {}, expected 0 to {}", token, vocab - 1);
  }
}

std::uint32_t Engine::resumable(const KeptState& state, std::span<const std::int32_t> prompt) const {
  if (state.cache == nullptr || prompt.empty()) return 0;
  const KvPlan& plan = state.cache->plan();
  if (plan.context != options_.context || plan.max_span != options_.chunk || plan.type != options_.kv_type)
    return 0;
  std::size_t most = std::min(state.tokens.size(), prompt.size() - 1);
  // A reply comes back as prompt; where that gives other bits it is read again.
  if (!backend_.decode_equals_prompt()) most = std::min<std::size_t>(most, state.prompt_rows);
  const auto differ = std::mismatch(state.tokens.begin(),
                                    state.tokens.begin() + static_cast<std::ptrdiff_t>(most), prompt.begin());
  return state.cache->longest_roll_back(static_cast<std::uint32_t>(differ.first - state.tokens.begin()));
}

void Engine::resume_from_cache(KeptState& state, std::span<const std::int32_t> prompt) {
  PromptCache* const kept = options_.prompt_cache;
  if (kept == nullptr) return;
  const std::uint32_t here = resumable(state, prompt);
  const bool better = kept->longest(cache_plan(), prompt) > here;
  // Its prompt was kept when it had been read; what came after it is worth as much where a later prompt may
  // resume it.
  if (state.cache != nullptr && backend_.decode_equals_prompt() && (better || here < state.tokens.size() / 2))
    kept->keep(*state.cache, state.tokens);
  if (!better) return;
  if (state.cache == nullptr) state.cache = backend_.new_cache(cache_plan());
  const std::uint32_t length = kept->restore(*state.cache, prompt);
  state.tokens.assign(prompt.begin(), prompt.begin() + length);
  state.prompt_rows = length;
}

// After `rows` more rows of a prompt; `read`: it is complete.
void Engine::keep_prompt(const Stream& stream, bool read, std::uint32_t rows) {
  PromptCache* const kept = options_.prompt_cache;
  if (kept == nullptr || !stream.request_.keep_prompt) return;
  const std::uint32_t length = stream.cache_->length();
  const std::uint32_t interval = kept->interval(*stream.cache_);
  if (read || length / interval != (length - rows) / interval)
    kept->keep(*stream.cache_, std::span(stream.tokens_).first(length));
}

std::shared_ptr<Stream> Engine::open(GenerationRequest request, StreamSink& sink, KeptState&& state) {
  check(request);
  if (streams_.size() >= options_.max_streams)
    fail(ErrorCode::kTooLarge, "all {} streams are in use", options_.max_streams);
  const KvPlan plan = cache_plan();
  std::unique_ptr<KvCache> cache;
  if (state.cache != nullptr && state.cache->plan().context == plan.context &&
      state.cache->plan().max_span == plan.max_span && state.cache->plan().type == plan.type) {
    state.cache->roll_back_to(resumable(state, request.prompt));
    cache = std::move(state.cache);
  } else {
    cache = backend_.new_cache(plan);
  }
  std::shared_ptr<Stream> stream(new Stream(std::move(request), sink, std::move(cache)));
  stream->times_.reused = stream->cache_->length();
  streams_.push_back(stream);
  return stream;
}

void Engine::cancel(Stream& stream) {
  finish(stream, FinishReason::kCancelled);
  std::erase_if(streams_, [&](const auto& s) { return s.get() == &stream; });
}

void Engine::finish(Stream& stream, FinishReason reason) {
  if (stream.finished_) return;
  stream.finished_ = true;
  stream.sink_->on_finish(reason);
}

void Engine::sample(Stream& stream, std::span<const float> logits) {
  DrawnToken drawn;
  if (const std::optional<std::int32_t> forced = stream.sink_->forced_token()) {
    drawn.token = *forced;
    drawn.forced = true;
  } else {
    const std::optional<std::int32_t> token = stream.sampler_.draw(logits, stream.tokens_.size());
    if (!token) return finish(stream, FinishReason::kFailed);
    drawn.token = *token;
  }
  Logprobs logprobs;
  if (stream.request_.logprobs) {
    logprobs = log_probabilities(logits, drawn.token, *stream.request_.logprobs);
    drawn.logprob = logprobs.token;
    drawn.top = logprobs.top;
  }
  stream.tokens_.push_back(drawn.token);
  stream.sampler_.see_reply(drawn.token);
  ++stream.generated_;
  ++stream.times_.reply_tokens;
  const bool go_on = stream.sink_->on_token(drawn);
  const std::vector<std::int32_t>& ends = stream.request_.end_tokens;
  if (!go_on || std::find(ends.begin(), ends.end(), drawn.token) != ends.end()) {
    finish(stream, FinishReason::kStop);
  } else if (stream.request_.max_tokens != 0 && stream.generated_ >= stream.request_.max_tokens) {
    finish(stream, FinishReason::kLength);
  } else if (stream.tokens_.size() >= options_.context) {
    finish(stream, FinishReason::kContext);
  }
}

bool Engine::step() {
  for (const auto& stream : streams_) {
    if (stream->cancelled_) finish(*stream, FinishReason::kCancelled);
  }
  std::erase_if(streams_, [](const auto& s) { return s->finished_; });
  if (streams_.empty()) return false;

  // Decoding streams first, a row each; then prompts, oldest first, share the chunk's rows.
  std::vector<Span> spans;
  std::vector<Stream*> served;
  std::vector<bool> decoding;
  const auto add = [&](Stream& stream, std::uint32_t rows, Wanted logits, bool decode) {
    spans.push_back({stream.cache_.get(),
                     std::span(stream.tokens_).subspan(stream.cache_->length(), rows),
                     {},
                     logits,
                     Wanted::kNothing,
                     !decode});
    served.push_back(&stream);
    decoding.push_back(decode);
  };
  for (const auto& stream : streams_) {
    if (stream->generated_ > 0) add(*stream, 1, Wanted::kLast, true);
  }
  std::uint32_t room = options_.chunk;
  for (const auto& stream : streams_) {
    if (stream->generated_ > 0 || room == 0) continue;
    const auto left = static_cast<std::uint32_t>(stream->tokens_.size()) - stream->cache_->length();
    const std::uint32_t rows = std::min(left, room);
    add(*stream, rows, rows == left ? Wanted::kLast : Wanted::kNothing, false);
    room -= rows;
  }

  const double start = now();
  std::vector<SpanResult> results;
  try {
    results = run_round(backend_, model_.geometry().layers.size(), spans);
  } catch (...) {
    for (const auto& stream : streams_) finish(*stream, FinishReason::kFailed);
    streams_.clear();
    throw;
  }
  const double seconds = now() - start;
  last_round_ = {0, static_cast<std::uint32_t>(served.size()), seconds};
  for (const Span& span : spans) last_round_.rows += static_cast<std::uint32_t>(span.tokens.size());
  for (std::size_t i = 0; i < served.size(); ++i) {
    Stream& stream = *served[i];
    const auto rows = static_cast<std::uint32_t>(spans[i].tokens.size());
    if (decoding[i]) {
      stream.times_.decode_seconds += seconds;
    } else {
      stream.times_.prompt_seconds += seconds;
      stream.times_.prompt_tokens += rows;
      stream.sink_->on_prompt(stream.cache_->length(),
                              static_cast<std::uint32_t>(stream.request_.prompt.size()));
    }
    if (!decoding[i]) keep_prompt(stream, results[i].logits > 0, rows);
    // The prompt is read: the next request may want to come back here.
    if (!decoding[i] && results[i].logits > 0 && options_.checkpoints) stream.cache_->set_checkpoint();
    if (results[i].logits > 0) sample(stream, backend_.logits(results[i].first_logits));
  }
  std::erase_if(streams_, [](const auto& s) { return s->finished_; });
  return !streams_.empty();
}

void Engine::run(const Stream& stream) {
  while (!stream.finished_ && step()) {
  }
}

}  // namespace gem
