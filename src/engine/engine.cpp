#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "engine/draft/measure.h"

namespace gem {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// A decoding stream's rows of one round: the pending token and its drafts.
struct Engine::Window {
  Stream* stream = nullptr;
  std::vector<std::int32_t> tokens;
  DraftKind kind = DraftKind::kModel;
  std::vector<Distribution> drawn_from;

  std::uint32_t drafts() const { return static_cast<std::uint32_t>(tokens.size()) - 1; }
};

// Prompts' rows that are being read on the lane.
struct Engine::Chunk {
  std::vector<Part> parts;
  Round round;
  double seconds = 0;
};

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

Engine::~Engine() = default;

Engine::Engine(const Model& model, Backend& backend, EngineOptions options)
    : model_(model),
      backend_(backend),
      lane_(backend.new_lane()),
      options_(options),
      prompt_budget_(options.chunk) {
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
  if (state.cache->plan() != cache_plan()) return 0;
  std::size_t most = std::min(state.tokens.size(), prompt.size() - 1);
  // A reply comes back as prompt; where that gives other bits it is read again.
  if (!backend_.decode_equals_prompt()) most = std::min<std::size_t>(most, state.prompt_rows);
  const auto differ = std::mismatch(state.tokens.begin(),
                                    state.tokens.begin() + static_cast<std::ptrdiff_t>(most), prompt.begin());
  return state.cache->longest_roll_back(static_cast<std::uint32_t>(differ.first - state.tokens.begin()));
}

std::shared_ptr<const CacheStore::Load> Engine::fetch_for(KeptState& state,
                                                          std::span<const std::int32_t> prompt) {
  PromptCache* const kept = options_.prompt_cache;
  if (kept == nullptr) return nullptr;
  const std::uint32_t here = resumable(state, prompt);
  if (kept->longest_on_disk(cache_plan(), prompt, here) == 0) return nullptr;
  if (state.cache == nullptr) state.cache = backend_.new_cache(cache_plan());
  return kept->begin_fetch(*state.cache, prompt, here);
}

void Engine::resume_from_cache(KeptState& state, std::span<const std::int32_t> prompt) {
  PromptCache* const kept = options_.prompt_cache;
  if (kept == nullptr) return;
  // Ends: what was read is found in memory then, and a file that cannot be is not found again.
  while (const auto load = fetch_for(state, prompt)) load->wait();
  const std::uint32_t here = resumable(state, prompt);
  const bool better = kept->longest(cache_plan(), prompt) > here;
  // Its prompt was kept when it had been read; what came after it is worth as much where a later prompt may
  // resume it.
  const bool known = state.cache != nullptr && !state.tokens.empty();  // else it is memory, and no more
  if (known && backend_.decode_equals_prompt() && (better || here < state.tokens.size() / 2))
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
  // Where prompts are read fast, keeping one takes as long as reading thousands of its tokens.
  const std::uint32_t interval =
      kept->interval(*stream.cache_, std::max(2048u, 4 * backend_.preferred_chunk()));
  if (read || length / interval != (length - rows) / interval)
    kept->keep(*stream.cache_, std::span(stream.tokens_).first(length));
}

std::shared_ptr<Stream> Engine::open(GenerationRequest request, StreamSink& sink, KeptState&& state) {
  check(request);
  if (streams_.size() >= options_.max_streams)
    fail(ErrorCode::kTooLarge, "all {} streams are in use", options_.max_streams);
  const KvPlan plan = cache_plan();
  std::unique_ptr<KvCache> cache;
  if (state.cache != nullptr && state.cache->plan() == plan) {
    state.cache->roll_back_to(resumable(state, request.prompt));
    cache = std::move(state.cache);
  } else {
    cache = backend_.new_cache(plan);
  }
  std::shared_ptr<Stream> stream(new Stream(std::move(request), sink, std::move(cache)));
  stream->times_.reused = stream->cache_->length();
  if (speculation_ != nullptr && stream->request_.draft)
    stream->drafts_ = speculation_->open(stream->sampler_);
  streams_.push_back(stream);
  return stream;
}

void Engine::cancel(Stream& stream) {
  if (!stream.finished_) leave_chunk(stream);
  finish(stream, FinishReason::kCancelled);
  std::erase_if(streams_, [&](const auto& s) { return s.get() == &stream; });
}

void Engine::finish(Stream& stream, FinishReason reason) {
  if (stream.finished_) return;
  stream.finished_ = true;
  stream.sink_->on_finish(reason);
}

// The token that a row of logits gives: the same whether the row was drafted or not, unless drafts are judged
// by rejection sampling.
std::optional<std::int32_t> Engine::choose(Stream& stream, const Backend& backend, std::uint32_t logits,
                                           const Window* window, std::uint32_t row) {
  const std::size_t position = stream.tokens_.size();
  if (window == nullptr || row >= window->drafts() || window->drawn_from.empty())
    return draw_row(stream.sampler_, backend, logits, position);
  const std::optional<Distribution> wanted = stream.sampler_.distribution(backend.logits(logits));
  if (!wanted) return std::nullopt;
  return accept_or_resample(*wanted, window->drawn_from[row], window->tokens[row + 1],
                            stream.sampler_.params().seed, position);
}

void Engine::sample(Stream& stream, const Backend& backend, std::uint32_t logits, const Window* window,
                    std::uint32_t row) {
  DrawnToken drawn;
  if (const std::optional<std::int32_t> forced = stream.sink_->forced_token()) {
    drawn.token = *forced;
    drawn.forced = true;
  } else {
    const std::optional<std::int32_t> token = choose(stream, backend, logits, window, row);
    if (!token) return finish(stream, FinishReason::kFailed);
    drawn.token = *token;
  }
  Logprobs logprobs;
  if (stream.request_.logprobs) {
    logprobs = log_probabilities(backend.logits(logits), drawn.token, *stream.request_.logprobs);
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

// The rows of all decoding streams: their pending tokens, and drafts where they are worth it.
std::vector<Engine::Window> Engine::open_windows(std::uint32_t prompt_rows) {
  std::vector<Window> windows;
  std::vector<SpeculationTurn> turns;
  for (const auto& stream : streams_) {
    if (stream->generated_ == 0) continue;
    windows.push_back({stream.get(), {stream->tokens_.back()}, DraftKind::kModel, {}});
    SpeculationTurn turn;
    turn.drafts = stream->drafts_.get();
    turn.sampler = &stream->sampler_;
    turn.cache = stream->cache_.get();
    turn.tokens = stream->tokens_;
    turn.end_tokens = stream->request_.end_tokens;
    // A round with k drafts gives k + 1 tokens at most, the last of which is pending.
    const auto tokens = static_cast<std::uint32_t>(stream->tokens_.size());
    turn.room = std::min(options_.context - tokens, options_.chunk) - 1;
    if (stream->request_.max_tokens != 0)
      turn.room = std::min(turn.room, stream->request_.max_tokens - stream->generated_ - 1);
    turns.push_back(std::move(turn));
  }
  if (speculation_ == nullptr) return windows;
  speculation_->propose(turns, prompt_rows);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    windows[i].tokens.insert(windows[i].tokens.end(), turns[i].proposed.begin(), turns[i].proposed.end());
    windows[i].kind = turns[i].kind;
    windows[i].drawn_from = std::move(turns[i].drawn_from);
  }
  return windows;
}

// Draws from the window's rows one after the other, as long as what was drafted for the next row is what was
// drawn, and forgets the rows behind.
void Engine::verify(Window& window, const SpanResult& result) {
  Stream& stream = *window.stream;
  const std::uint32_t before = stream.cache_->length() - static_cast<std::uint32_t>(window.tokens.size());
  std::uint32_t kept = 0;
  for (std::uint32_t row = 0;; ++row) {
    sample(stream, backend_, result.first_logits + row, &window, row);
    const bool came_true = row < window.drafts() && stream.tokens_.size() == before + row + 2u &&
                           stream.tokens_.back() == window.tokens[row + 1];
    if (came_true) ++kept;
    if (stream.finished_ || !came_true) {
      stream.cache_->roll_back_to(before + row + 1);
      // Drafts behind the reply's end are neither right nor wrong.
      const std::uint32_t judged = came_true ? kept : window.drafts();
      if (stream.drafts_ != nullptr) speculation_->settle(*stream.drafts_, window.kind, judged, kept);
      last_round_.drafts.add(judged, kept);
      stream.times_.drafted += judged;
      stream.times_.accepted += kept;
      return;
    }
  }
}

void Engine::absorb(Stream& stream, std::uint32_t rows, std::span<const float> hidden) {
  if (stream.drafts_ == nullptr || stream.finished_ || !speculation_->active()) return;
  // With the token that follows: drawn just now, or the prompt's next.
  const auto tokens = std::span<const std::int32_t>(stream.tokens_).first(stream.cache_->length() + 1);
  speculation_->absorb(*stream.drafts_, {tokens, rows, hidden});
}

void Engine::draft_with(std::unique_ptr<Drafter> drafter, DraftOptions options) {
  if (!backend_.drafts()) fail(ErrorCode::kUsage, "the {} backend does not draft yet", backend_.name());
  if (options.adaptive && !options.costs && options.most != 0u)
    options.costs = measure_costs(model_, backend_, *drafter, cache_plan(), options_.max_streams,
                                  options.most.value_or(DraftLuck::kDepths - 1));
  speculation_ = std::make_unique<Speculation>(std::move(drafter), std::move(options));
}

void Engine::drop_cancelled() {
  for (const auto& stream : streams_) {
    if (!stream->cancelled_) continue;
    leave_chunk(*stream);
    finish(*stream, FinishReason::kCancelled);
  }
  std::erase_if(streams_, [](const auto& s) { return s->finished_; });
}

// The streams that still read their prompts, and how many rows of these a round of `rows` reads.
std::vector<Engine::Part> Engine::share_prompts(std::uint32_t rows) const {
  std::vector<Part> parts;
  std::vector<std::uint32_t> left;
  for (const auto& stream : streams_) {
    if (stream->generated_ > 0) continue;
    parts.push_back({stream, 0});
    left.push_back(static_cast<std::uint32_t>(stream->tokens_.size()) - stream->cache_->length());
  }
  const std::vector<std::uint32_t> shares = share_rows(left, rows);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].rows = shares[i];
  std::erase_if(parts, [](const Part& p) { return p.rows == 0; });
  return parts;
}

// Rows after the final norm that the stream's drafter reads, of those that are asked for.
Wanted Engine::hidden_wanted(const Stream& stream, Wanted rows) const {
  const bool reads = speculation_ != nullptr && speculation_->wants().hidden && stream.drafts_ != nullptr;
  return reads ? rows : Wanted::kNothing;
}

Span Engine::span_of(const Part& part) const {
  Stream& stream = *part.stream;
  const std::uint32_t length = stream.cache_->length();
  const bool last = length + part.rows == stream.tokens_.size();
  return {stream.cache_.get(),
          std::span(stream.tokens_).subspan(length, part.rows),
          {},
          last ? Wanted::kLast : Wanted::kNothing,
          last ? hidden_wanted(stream, Wanted::kLast) : Wanted::kNothing,
          true};
}

// The rows after the final norm that a round left, and which of them are a span's.
class Engine::Finals {
 public:
  Finals(const Backend& backend, std::span<const SpanResult> results, bool read, std::size_t width)
      : width_(width) {
    const bool any =
        std::any_of(results.begin(), results.end(), [](const SpanResult& r) { return r.finals > 0; });
    if (read && any) rows_ = backend.read(Activation::kFinal);
  }
  std::span<const float> of(const SpanResult& result) const {
    if (rows_.empty()) return {};
    return std::span<const float>(rows_).subspan(result.first_final * width_, result.finals * width_);
  }

 private:
  std::size_t width_;
  std::vector<float> rows_;
};

Engine::Finals Engine::finals(const Backend& backend, std::span<const SpanResult> results) const {
  const bool read = speculation_ != nullptr && speculation_->wants().hidden;
  return {backend, results, read, model_.geometry().hidden};
}

void Engine::fail_all() {
  chunk_.reset();
  for (const auto& stream : streams_) finish(*stream, FinishReason::kFailed);
  streams_.clear();
}

bool Engine::step() {
  drop_cancelled();
  if (streams_.empty()) return false;
  const bool decoding =
      std::any_of(streams_.begin(), streams_.end(), [](const auto& s) { return s->generated_ > 0; });
  last_round_ = {};
  try {
    if (lane_ != nullptr) {
      step_chunk(decoding);
      std::erase_if(streams_, [](const auto& s) { return s->finished_; });
      if (decoding) run_spans({});
    } else {
      run_spans(share_prompts(prompt_budget_.rows(decoding)));
    }
  } catch (...) {
    fail_all();
    throw;
  }
  std::erase_if(streams_, [](const auto& s) { return s->finished_; });
  return !streams_.empty();
}

// One round of all decoding streams and of these parts of prompts.
void Engine::run_spans(const std::vector<Part>& prompts) {
  const double start = now();
  std::uint32_t prompt_rows = 0;
  for (const Part& p : prompts) prompt_rows += p.rows;
  std::vector<Window> windows = open_windows(prompt_rows);
  std::vector<Span> spans;
  spans.reserve(windows.size() + prompts.size());
  for (const Window& w : windows)
    spans.push_back(
        {w.stream->cache_.get(), w.tokens, {}, Wanted::kAll, hidden_wanted(*w.stream, Wanted::kAll), false});
  for (const Part& p : prompts) spans.push_back(span_of(p));
  const std::vector<SpanResult> results = run_round(backend_, model_.geometry().layers.size(), spans);
  const Finals hidden = finals(backend_, results);
  const double seconds = now() - start;
  last_round_.streams += static_cast<std::uint32_t>(spans.size());
  last_round_.seconds += seconds;
  for (const Span& span : spans) last_round_.rows += static_cast<std::uint32_t>(span.tokens.size());
  std::uint32_t window_rows = 0;
  for (const Window& w : windows) window_rows += static_cast<std::uint32_t>(w.tokens.size());
  prompt_budget_.observe(window_rows, prompt_rows, seconds);
  for (std::size_t i = 0; i < windows.size(); ++i) {
    Stream& stream = *windows[i].stream;
    const std::uint32_t before =
        stream.cache_->length() - static_cast<std::uint32_t>(windows[i].tokens.size());
    stream.times_.decode_seconds += seconds;
    verify(windows[i], results[i]);
    const std::uint32_t rows = stream.cache_->length() - before;
    const std::span<const float> all = hidden.of(results[i]);
    absorb(stream, rows, all.first(std::min(all.size(), std::size_t{rows} * model_.geometry().hidden)));
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const SpanResult& result = results[windows.size() + i];
    read_part(prompts[i], backend_, result, hidden.of(result), seconds);
  }
}

// After rows of a prompt were read on `backend`.
void Engine::read_part(const Part& part, const Backend& backend, const SpanResult& result,
                       std::span<const float> hidden, double seconds) {
  Stream& stream = *part.stream;
  stream.times_.prompt_seconds += seconds;
  stream.times_.prompt_tokens += part.rows;
  stream.sink_->on_prompt(stream.cache_->length(), static_cast<std::uint32_t>(stream.request_.prompt.size()));
  const bool read = result.logits > 0;
  if (read) {
    // The prompt is read: the next request may want to come back here.
    if (options_.checkpoints) stream.cache_->set_checkpoint();
    sample(stream, backend, result.first_logits);
  }
  keep_prompt(stream, read, part.rows);  // the first token does not wait for the copy
  absorb(stream, part.rows, hidden);
}

// A chunk of prompts on the lane: all of it while nobody waits for tokens, else as many layers as take about
// as long as a round of replies.
void Engine::step_chunk(bool decoding) {
  if (chunk_ == nullptr) {
    std::vector<Part> parts = share_prompts(decoding ? std::max(options_.chunk / 2, 1u) : options_.chunk);
    if (parts.empty()) return;
    std::vector<Span> spans;
    spans.reserve(parts.size());
    for (const Part& p : parts) spans.push_back(span_of(p));
    chunk_ = std::make_unique<Chunk>(
        Chunk{std::move(parts), Round(*lane_, model_.geometry().layers.size(), spans), 0});
  }
  run_chunk(decoding ? lane_pace_.layers(prompt_budget_.decode_seconds()) : chunk_->round.layers_left());
}

void Engine::run_chunk(std::size_t layers) {
  const double start = now();
  layers = std::min(layers, chunk_->round.layers_left());
  if (layers == model_.geometry().layers.size()) {
    chunk_->round.run_all();
  } else {
    chunk_->round.run(layers);
  }
  lane_->settle();
  const double seconds = now() - start;
  lane_pace_.observe(layers, seconds);
  chunk_->seconds += seconds;
  last_round_.seconds += seconds;
  if (!chunk_->round.done()) return;
  const std::unique_ptr<Chunk> done = std::move(chunk_);
  const std::vector<SpanResult>& results = done->round.results();
  const Finals hidden = finals(*lane_, results);
  for (std::size_t i = 0; i < done->parts.size(); ++i) {
    last_round_.rows += done->parts[i].rows;
    ++last_round_.streams;
    read_part(done->parts[i], *lane_, results[i], hidden.of(results[i]), done->seconds);
  }
}

// Before a stream goes whose prompt is being read: its cache is in use until the chunk has been read.
void Engine::leave_chunk(const Stream& stream) {
  if (chunk_ == nullptr) return;
  const auto& parts = chunk_->parts;
  const bool inside =
      std::any_of(parts.begin(), parts.end(), [&](const Part& p) { return p.stream.get() == &stream; });
  if (inside) run_chunk(chunk_->round.layers_left());
}

void Engine::run(const Stream& stream) {
  while (!stream.finished_ && step()) {
  }
}

}  // namespace gem
