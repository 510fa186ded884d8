// The service: the engine on its own thread, a queue before it, and for every reply an outbox that the I/O
// side empties at its own pace.
//
// Law: nothing that a client does or fails to do makes the engine wait. What a reply has produced waits in
// its Generation, joined, until it is taken; when too much waits, the reply is cancelled
// (GenerationJob::outbox).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/session.h"
#include "text/reply_parser.h"

namespace gem::server {

// One reply to make.
struct GenerationJob {
  std::string id = {};          // of the reply, as the client is told it; for the log
  GenerationRequest request;    // prompt, sampling, limits, end tokens
  bool parse = true;            // take thoughts and calls apart; false: text as it comes (completions)
  bool render_special = false;  // parse false: control tokens appear as their text
  ReplyOptions reply;           // parse true
  std::vector<std::string> stops;
  std::optional<std::uint32_t> thinking_budget;  // tokens of the thought, after which it is closed by force
  bool one_call = false;                         // the reply ends after its first tool call
  bool token_details = false;                    // fill GenerationUpdate::tokens (logprobs, token ids)
  bool reuse_prompt = true;                      // false: everything is computed afresh, nothing is kept
  std::optional<std::chrono::milliseconds> time_limit;  // for the tokens after the first (ends with kLength)
  std::size_t outbox = 4 << 20;  // bytes not yet taken before the client counts as gone
};

// One drawn token, end tokens included, for clients that ask for ids or log probabilities.
struct TokenDetail {
  std::int32_t token = 0;
  std::string bytes;   // of the token alone, perhaps a part of a character
  double logprob = 0;  // natural, of the softmax of the raw logits at temperature 1
  struct Alternative {
    std::int32_t token = 0;
    std::string bytes;
    double logprob = 0;
  };
  std::vector<Alternative> top;  // GenerationRequest::logprobs of them, most probable first
};

struct GenerationResult {
  FinishReason reason = FinishReason::kStop;
  ParsedReply reply;    // parse false: only `content`
  std::string matched;  // the stop string that ended it, or empty
  StreamTimes times;    // of this reply; reply_tokens counts every drawn token, thoughts and end included
  std::uint32_t reasoning_tokens = 0;
  double queue_seconds = 0;
  std::string error;  // kFailed: one line for the client
};

// What has happened since the last take().
struct GenerationUpdate {
  std::vector<ReplyEvent> events;  // neighbours of one kind joined
  std::vector<TokenDetail> tokens;
  std::uint32_t rounds = 0;  // rounds of the engine that this reply took part in
  // Set when the prompt was read further; cached: prompt tokens resumed from a kept state. done includes
  // them.
  struct Progress {
    std::uint32_t done = 0, total = 0, cached = 0;
    double seconds = 0;
  };
  std::optional<Progress> prompt;
  StreamTimes times;                       // so far
  std::optional<GenerationResult> result;  // set once, in the last update
};

// One reply being made, as the I/O side holds it. Destroying it before it has finished cancels it: its stream
// is free within one round, its place in the queue at once.
class Generation {
 public:
  virtual ~Generation() = default;
  // Called from the engine's thread whenever there is something to take, once until it is taken; from within
  // on_ready() when something waits already. Set once. A call that has begun may outlast the Generation, so
  // what it captures must too.
  virtual void on_ready(std::function<void()> wake) = 0;
  virtual GenerationUpdate take() = 0;
  virtual void cancel() = 0;
  // Closes a running thought by force at the next token. False when it is not thinking.
  virtual bool end_thought() = 0;
};

struct ServiceOptions {
  std::size_t queue = 64;  // requests waiting beyond the streams that are open
  // The device is lost: every reply has ended, and there will be no other. From the engine's thread, its last
  // act.
  std::function<void(const std::string& why)> on_lost = {};
};

// A look at the service, for /slots, /metrics and the log.
struct ServiceStatus {
  struct Slot {
    std::size_t id = 0;
    bool busy = false;
    std::uint32_t prompt_tokens = 0, prompt_done = 0, cached = 0, generated = 0;
    std::uint32_t kept = 0;  // idle: tokens of the state that a later prompt may resume
  };
  std::vector<Slot> slots;
  std::size_t queued = 0, running = 0;
  std::uint64_t kv_used = 0, kv_total = 0;  // positions
  std::uint64_t rounds = 0;
  PromptCache::Status prompt_cache;  // budget 0: there is none
  bool stopping = false;
};

// Told of what happens, from the engine's thread; must be quick and not throw. (metrics.h implements it.)
class ServiceObserver {
 public:
  virtual ~ServiceObserver() = default;
  virtual void on_queued() {}
  virtual void on_started(double /*queue_seconds*/, std::uint32_t /*prompt_tokens*/,
                          std::uint32_t /*cached*/) {}
  virtual void on_first_token(double /*seconds since it was queued*/) {}
  virtual void on_token(double /*seconds since the last token*/) {}
  virtual void on_finished(const GenerationResult& /*result*/, double /*seconds since it was queued*/) {}
  virtual void on_drafts(const DraftCounts& /*of the round*/) {}
  virtual void on_round(std::uint32_t /*rows*/, std::uint32_t /*streams*/, double /*seconds*/) {}
};

class Service {
 public:
  // Session and observer must outlive it. Starts the engine's thread.
  Service(Session& session, ServiceOptions options, ServiceObserver* observer = nullptr);
  virtual ~Service();  // stop()
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // All or none. Throws ApiError (api/api_error.h): 429 when the queue is full, 503 when stopping, 400
  // exceed_context_size_error when a prompt does not fit, 400 for parameters out of range.
  virtual std::vector<std::unique_ptr<Generation>> submit(std::vector<GenerationJob> jobs);

  virtual ServiceStatus status() const;
  // Forgets the kept state of an idle slot; the number of tokens that were in it. Nothing for a busy slot.
  virtual std::optional<std::uint32_t> erase_slot(std::size_t id);

  // Refuses new work and lets what runs and waits come to its end. Returns at once.
  virtual void drain();
  // Waits until nothing runs or waits, at most that long. False: something does.
  virtual bool wait_idle(std::chrono::milliseconds limit);
  // Cancels everything and joins the engine's thread.
  virtual void stop();

 protected:
  Service();  // for tests that stand in for the engine

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gem::server
