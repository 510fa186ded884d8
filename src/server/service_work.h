// One reply of the service: the engine's sink on one side, the outbox that a client empties on the other.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/reply.h"
#include "server/service.h"

namespace gem::server {

using Clock = std::chrono::steady_clock;

// The lines that the log gets about a long prompt: one for every 4,096 tokens evaluated of a prompt of at
// least as many, without any of its contents.
class PromptProgress {
 public:
  // After prompt tokens were evaluated; `done` of `total` are in the cache. The line, when one is due.
  std::optional<std::string> line(std::uint32_t done, std::uint32_t total, const StreamTimes& times);

 private:
  std::uint32_t logged_ = 0;  // tokens evaluated at the last line
};

// The log's line about what was odd in a reply's tool calls (ParsedReply::diagnostics, not empty): the first
// few, none of them long.
std::string diagnostics_line(std::span<const std::string> diagnostics);

// What others are not told of a request while it runs is touched by the engine's thread alone, without a
// lock; publish() hands it over. The members for clients may be called from any thread.
class Work : public StreamSink {
 public:
  // The tokenizer and the observer (or null) must outlive it.
  Work(GenerationJob job, const Tokenizer& tokenizer, ServiceObserver* observer);

  // --- For clients ---
  void on_ready(std::function<void()> wake);
  GenerationUpdate take();
  void ask_to_cancel() { cancel_asked_ = true; }
  bool end_thought() { return reply_.end_thought(); }
  // No call of `wake` begins after this one.
  void forget_client();

  // --- For the engine's thread ---
  bool cancel_asked() const { return cancel_asked_ || overflowed_; }
  GenerationJob& job() { return job_; }
  const GenerationJob& job() const { return job_; }
  std::string log_name() const;  // of the reply: its id, where the client is told one, and its slot
  std::uint32_t prompt_tokens() const { return prompt_tokens_; }
  void take_slot(std::size_t slot) { slot_ = slot; }
  void started(std::shared_ptr<Stream> stream);
  const std::shared_ptr<Stream>& stream() const { return stream_; }
  std::size_t slot() const { return slot_; }
  bool finished() const { return finished_; }
  // Hands over what the last round brought and wakes the client. The client that lets more than
  // GenerationJob::outbox bytes wait is given up: cancel_asked() from then on.
  void publish();
  // Ends it: the result is handed over. Without a stream, or with an error text, the reason is taken as it
  // is; else it is the stream's.
  void conclude(FinishReason reason, std::string error);
  double seconds_since_queued() const;
  double queue_seconds() const { return queue_seconds_; }  // once it has started

  // StreamSink, within Engine::step
  void on_prompt(std::uint32_t done, std::uint32_t total) override;
  std::optional<std::int32_t> forced_token() override { return reply_.forced_token(); }
  bool on_token(const DrawnToken& drawn) override;
  void on_finish(FinishReason reason) override;

 private:
  void add_event(const ReplyEvent& event);
  TokenDetail detail(const DrawnToken& drawn) const;

  GenerationJob job_;
  const Tokenizer& tokenizer_;
  ServiceObserver* observer_;
  const std::uint32_t prompt_tokens_;
  const Clock::time_point queued_at_ = Clock::now();
  std::atomic<bool> cancel_asked_ = false;

  // The engine's thread
  GenerationUpdate next_;  // since the last publish()
  ReplyStream reply_;
  std::shared_ptr<Stream> stream_;
  std::size_t slot_ = 0;
  double queue_seconds_ = 0;
  std::optional<Clock::time_point> first_token_, last_token_;
  PromptProgress progress_;
  bool took_part_ = false;  // in the last round
  bool timed_out_ = false;
  bool overflowed_ = false;
  bool finished_ = false;

  // The outbox
  std::mutex mutex_;
  GenerationUpdate outbox_;
  std::size_t outbox_bytes_ = 0;
  bool news_ = false;      // something to take
  bool notified_ = false;  // wake was called since the last take()
  std::shared_ptr<std::function<void()>> wake_;
};

// Appends `more` to `to`, neighbouring events of one kind joined. The bytes it added.
std::size_t join(GenerationUpdate& to, GenerationUpdate&& more);

}  // namespace gem::server
