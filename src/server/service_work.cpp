#include "server/service_work.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace gem::server {
namespace {

// Prompts of that many tokens, and every so many of their tokens, are worth a line in the log.
constexpr std::uint32_t kLogTokens = 4096;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

ReplyStreamOptions reply_options(const GenerationJob& job) {
  return {.parse = job.parse,
          .render_special = job.render_special,
          .reply = job.reply,
          .stops = job.stops,
          .thinking_budget = job.thinking_budget,
          .one_call = job.one_call};
}

bool joins(const std::vector<ReplyEvent>& events, const ReplyEvent& next) {
  return !events.empty() && events.back().kind == next.kind && events.back().call == next.call &&
         next.kind != ReplyEvent::Kind::kCallStart;
}

}  // namespace

std::size_t join(GenerationUpdate& to, GenerationUpdate&& more) {
  std::size_t bytes = 0;
  for (ReplyEvent& event : more.events) {
    bytes += event.text.size();
    if (joins(to.events, event)) {
      to.events.back().text += event.text;
    } else {
      bytes += sizeof event;
      to.events.push_back(std::move(event));
    }
  }
  for (TokenDetail& token : more.tokens) {
    bytes += sizeof token + token.bytes.size() + token.top.size() * sizeof(TokenDetail::Alternative);
    to.tokens.push_back(std::move(token));
  }
  to.rounds += more.rounds;
  if (more.prompt) to.prompt = more.prompt;
  to.times = more.times;
  if (more.result) to.result = std::move(more.result);
  return bytes;
}

std::optional<std::string> PromptProgress::line(std::uint32_t done, std::uint32_t total,
                                                const StreamTimes& times) {
  if (total < kLogTokens || times.prompt_tokens / kLogTokens == logged_ / kLogTokens) return std::nullopt;
  logged_ = times.prompt_tokens;
  const double rate = times.prompt_seconds > 0 ? times.prompt_tokens / times.prompt_seconds : 0;
  const double left = rate > 0 ? (total - done) / rate : 0;
  return fmt::format("prompt {} of {} tokens ({} from the cache), {:.1f} tokens/s, {:.0f} s left", done,
                     total, times.reused, rate, left);
}

std::string diagnostics_line(std::span<const std::string> diagnostics) {
  constexpr std::size_t kMost = 8;
  constexpr std::size_t kLongest = 200;  // names in it are the model's, and may be of any length
  std::string line;
  for (const std::string& what : diagnostics.first(std::min(kMost, diagnostics.size()))) {
    if (!line.empty()) line += "; ";
    if (what.size() <= kLongest) {
      line += what;
    } else {
      std::size_t end = kLongest;
      while (end > 0 && (static_cast<unsigned char>(what[end]) & 0xC0u) == 0x80) --end;  // whole characters
      line.append(what, 0, end).append("...");
    }
  }
  if (diagnostics.size() > kMost) line += fmt::format("; and {} more", diagnostics.size() - kMost);
  return line;
}

Work::Work(GenerationJob job, const Tokenizer& tokenizer, ServiceObserver* observer)
    : job_(std::move(job)),
      tokenizer_(tokenizer),
      observer_(observer),
      prompt_tokens_(static_cast<std::uint32_t>(job_.request.prompt.size())),
      reply_(tokenizer, reply_options(job_), [this](const ReplyEvent& event) { add_event(event); }) {}

void Work::on_ready(std::function<void()> wake) {
  auto shared = std::make_shared<std::function<void()>>(std::move(wake));
  {
    const std::lock_guard lock(mutex_);
    wake_ = shared;
    if (!news_) return;
    notified_ = true;
  }
  (*shared)();
}

GenerationUpdate Work::take() {
  const std::lock_guard lock(mutex_);
  outbox_bytes_ = 0;
  news_ = false;
  notified_ = false;
  GenerationUpdate taken = std::exchange(outbox_, {});
  outbox_.times = taken.times;  // the latest, also when nothing is added until the next take()
  return taken;
}

void Work::forget_client() {
  const std::lock_guard lock(mutex_);
  wake_.reset();
}

void Work::publish() {
  next_.rounds = took_part_ ? 1 : 0;
  took_part_ = false;
  const bool news = next_.rounds != 0 || !next_.events.empty() || next_.prompt || next_.result;
  if (!news) return;
  if (stream_ != nullptr) next_.times = stream_->times();
  std::shared_ptr<std::function<void()>> wake;
  {
    const std::lock_guard lock(mutex_);
    outbox_bytes_ += join(outbox_, std::exchange(next_, {}));
    if (outbox_bytes_ > job_.outbox) {
      outbox_.events = {};
      outbox_.tokens = {};
      outbox_bytes_ = 0;
      overflowed_ = true;
    }
    news_ = true;
    if (!notified_) wake = wake_;
    notified_ = wake_ != nullptr;
  }
  // Outside the lock: it may take() at once, or destroy what holds this work.
  if (wake != nullptr) (*wake)();
}

std::string Work::log_name() const {
  return fmt::format("reply {}in slot {}", job_.id.empty() ? "" : job_.id + " ", slot_);
}

double Work::seconds_since_queued() const {
  return seconds_between(queued_at_, Clock::now());
}

void Work::started(std::shared_ptr<Stream> stream) {
  stream_ = std::move(stream);
  queue_seconds_ = seconds_since_queued();
  const std::uint32_t cached = stream_->times().reused;
  next_.prompt = GenerationUpdate::Progress{cached, prompt_tokens_, cached, 0};
  if (observer_ != nullptr) observer_->on_started(queue_seconds_, prompt_tokens_, cached);
  publish();
}

void Work::conclude(FinishReason reason, std::string error) {
  GenerationResult result;
  const bool by_stream = stream_ != nullptr && reply_.finished() && error.empty();
  result.reason = by_stream ? reply_.reason() : reason;
  if (result.reason == FinishReason::kFailed && error.empty())
    error = "the model's logits are not finite: the checkpoint may be damaged";
  if (overflowed_) error = "the reply was not taken by the client";
  result.reply = reply_.reply();
  if (const auto& odd = result.reply.diagnostics; !odd.empty())
    spdlog::warn("{}: odd tool calls: {}", log_name(), diagnostics_line(odd));
  result.matched = reply_.matched();
  result.reasoning_tokens = reply_.reasoning_tokens();
  result.queue_seconds = stream_ != nullptr ? queue_seconds_ : seconds_since_queued();
  result.error = std::move(error);
  if (stream_ != nullptr) result.times = stream_->times();
  if (observer_ != nullptr) observer_->on_finished(result, seconds_since_queued());
  next_.result = std::move(result);
  finished_ = true;
  publish();
}

void Work::add_event(const ReplyEvent& event) {
  if (overflowed_) return;
  if (joins(next_.events, event)) {
    next_.events.back().text += event.text;
  } else {
    next_.events.push_back(event);
  }
}

void Work::on_prompt(std::uint32_t done, std::uint32_t total) {
  took_part_ = true;
  const StreamTimes& times = stream_->times();
  next_.prompt = GenerationUpdate::Progress{done, total, times.reused, times.prompt_seconds};
  if (const auto line = progress_.line(done, total, times)) spdlog::info("{}: {}", log_name(), *line);
}

TokenDetail Work::detail(const DrawnToken& drawn) const {
  TokenDetail d{drawn.token, std::string(tokenizer_.decode_bytes(drawn.token)), drawn.logprob, {}};
  for (const TokenLogprob& t : drawn.top)
    d.top.push_back({t.token, std::string(tokenizer_.decode_bytes(t.token)), t.logprob});
  return d;
}

bool Work::on_token(const DrawnToken& drawn) {
  took_part_ = true;
  const Clock::time_point now = Clock::now();
  if (!first_token_) {
    first_token_ = now;
    if (observer_ != nullptr) observer_->on_first_token(seconds_between(queued_at_, now));
  } else if (observer_ != nullptr) {
    observer_->on_token(seconds_between(*last_token_, now));
  }
  last_token_ = now;
  if (job_.token_details && !overflowed_) next_.tokens.push_back(detail(drawn));
  if (!reply_.on_token(drawn)) return false;
  // An end that comes with the end of the time is still an end.
  timed_out_ =
      job_.time_limit && now - *first_token_ >= *job_.time_limit && !tokenizer_.ends_generation(drawn.token);
  return !timed_out_;
}

void Work::on_finish(FinishReason reason) {
  const bool late = timed_out_ && reason == FinishReason::kStop;
  reply_.on_finish(late ? FinishReason::kLength : reason);
}

}  // namespace gem::server
