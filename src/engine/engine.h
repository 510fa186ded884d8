// The engine: streams, and the rounds that serve them.
//
// Each step runs one round: a row of every stream that is decoding, and chunks of the prompts still being
// read, up to a budget of rows (engine/prompt_budget.h). A token is handed to its sink as soon as it is
// drawn, before it is evaluated. By the laws of row independence and keyed sampling, a stream's tokens are
// the same alone and beside others, and however its prompt was cut.
//
// With a drafter (draft_with) a decoding stream brings more rows: the pending token and what was guessed to
// follow it. Every row is drawn from as in a round of its own; the rows after the first wrong guess are
// rolled back. So the reply is the same, in fewer rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/draft/speculation.h"
#include "engine/prompt_budget.h"
#include "engine/prompt_cache.h"
#include "engine/sampler.h"
#include "model/model.h"
#include "model/schedule.h"

namespace gem {

enum class FinishReason : std::uint8_t {
  kStop,       // an end-of-generation token, or the sink asked to stop
  kLength,     // max_tokens reached
  kContext,    // the context is full
  kCancelled,  // cancel() was called
  kFailed,     // the logits were not usable
};

struct EngineOptions {
  std::uint32_t context = 4096;  // positions of one stream
  std::uint32_t chunk = 256;     // prompt rows in one round
  std::uint32_t max_streams = 1;
  // Replies longer than the rings' slack can be undone (KvCache::set_checkpoint); takes
  // MemoryPlan::kv_undo more for each stream.
  bool checkpoints = true;
  KvType kv_type = KvType::kF32;  // one of Backend::kv_types()
  // Where prompts are kept for later requests, or null; must outlive the engine.
  PromptCache* prompt_cache = nullptr;
};

// One token of a reply.
struct DrawnToken {
  std::int32_t token = 0;
  bool forced = false;  // placed by StreamSink::forced_token instead of drawn
  // GenerationRequest::logprobs: natural, of the softmax of the raw logits at temperature 1 (before bias,
  // penalties and filters).
  double logprob = 0;
  std::span<const TokenLogprob> top = {};  // the most probable tokens, best first
};

// Told what happens to a stream, from within Engine::step. Must not throw.
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  virtual void on_prompt(std::uint32_t done, std::uint32_t total) = 0;
  // Asked before every draw: a token to place instead, wherever the model would have gone.
  virtual std::optional<std::int32_t> forced_token() { return std::nullopt; }
  // A drawn token, end tokens included. False ends the stream (kStop).
  virtual bool on_token(const DrawnToken& drawn) = 0;
  virtual void on_finish(FinishReason reason) = 0;
};

struct GenerationRequest {
  std::vector<std::int32_t> prompt;
  SamplingParams sampling;
  std::uint32_t max_tokens = 0;           // 0: until the context is full
  std::vector<std::int32_t> end_tokens;   // end of generation
  std::vector<std::int32_t> suppressed;   // never drawn
  std::optional<std::uint32_t> logprobs;  // log probabilities of drawn tokens, and of that many alternatives
  bool keep_prompt = true;                // in the prompt cache, where there is one
  bool draft = true;                      // false: one row a round, also where the engine has a drafter
};

// A cache and the tokens whose keys and values it holds: what a later prompt may resume.
struct KeptState {
  std::unique_ptr<KvCache> cache;
  std::vector<std::int32_t> tokens;
  std::uint32_t prompt_rows = 0;  // positions below were read as prompt, those above are decode rows
};

struct StreamTimes {
  std::uint32_t reused = 0;         // prompt tokens resumed from a kept state
  std::uint32_t prompt_tokens = 0;  // prompt tokens evaluated
  std::uint32_t reply_tokens = 0;
  double prompt_seconds = 0;
  double decode_seconds = 0;  // from the first drawn token on
  std::uint32_t drafted = 0;  // tokens that a drafter proposed, and those of them that were kept
  std::uint32_t accepted = 0;
};

class Stream {
 public:
  bool finished() const { return finished_; }
  void cancel() { cancelled_ = true; }  // takes effect at the next step, before its round
  // Positions of the cache that are filled; the prompt is read up to there.
  std::uint32_t position() const { return cache_ == nullptr ? 0 : cache_->length(); }
  const StreamTimes& times() const { return times_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }  // prompt and reply
  bool keeps_prompt() const { return request_.keep_prompt; }           // in the prompt cache, when it is read
  // The state after a finished stream, for Engine::open. Empty when it was taken before.
  KeptState take_state();

 private:
  friend class Engine;
  Stream(GenerationRequest request, StreamSink& sink, std::unique_ptr<KvCache> cache);
  std::unique_ptr<KvCache> cache_;
  StreamSink* sink_;
  GenerationRequest request_;
  Sampler sampler_;
  std::unique_ptr<StreamDrafts> drafts_;  // null: it does not draft
  std::vector<std::int32_t> tokens_;
  std::uint32_t generated_ = 0;
  StreamTimes times_;
  bool finished_ = false;
  bool cancelled_ = false;
};

// What the last round did.
struct RoundInfo {
  std::uint32_t rows = 0;
  std::uint32_t streams = 0;
  double seconds = 0;  // drafting included
  DraftCounts drafts;
};

class Engine {
 public:
  // Model and backend must outlive the engine.
  Engine(const Model& model, Backend& backend, EngineOptions options);
  ~Engine();

  // From now on streams that are opened draft (GenerationRequest::draft). Measures what rounds and drafts
  // cost where the options do not say. Before the first step. Error(kUsage) where the backend cannot verify
  // drafts.
  void draft_with(std::unique_ptr<Drafter> drafter, DraftOptions options);
  // Null: nothing drafts.
  const Speculation* speculation() const { return speculation_.get(); }

  // Throws what open() would throw for this request, whatever else is open: Error(kTooLarge) when the prompt
  // does not fit the context, Error(kUsage) for bad parameters. May be called from any thread.
  void check(const GenerationRequest& request) const;

  // The longest prefix of `prompt` that a stream takes from `state` such that all that follows is, bit for
  // bit, what it would be without. At least one prompt token is left: its logits are wanted.
  std::uint32_t resumable(const KeptState& state, std::span<const std::int32_t> prompt) const;

  // Begins to bring a state that resume_from_cache() would take from disk into memory. Null: there is nothing
  // to be read. Ask again when it is done. `state` gets a cache where it has none.
  std::shared_ptr<const CacheStore::Load> fetch_for(KeptState& state, std::span<const std::int32_t> prompt);
  // A state of the prompt cache that gives more of `prompt` than `state` takes its place, with its memory;
  // what `state` held is kept in the prompt cache when little of it would be left. Nothing happens without
  // one. Waits while a state is read from disk, unless fetch_for() has nothing more to do.
  void resume_from_cache(KeptState& state, std::span<const std::int32_t> prompt);

  // Starts a stream. `state` (optional) is resumed as far as resumable() says;
  // Error(kTooLarge) when the prompt does not fit the context, or when max_streams are open; Error(kUsage)
  // for bad parameters; `state` is untouched then. The sink must live until the stream has finished.
  std::shared_ptr<Stream> open(GenerationRequest request, StreamSink& sink, KeptState&& state = {});

  // One round. False when no stream is left to serve. When the round itself throws (no memory), every stream
  // has finished with kFailed and its sink is not called again.
  bool step();
  // Steps until `stream` has finished.
  void run(const Stream& stream);

  // Ends a stream now, between two steps (kCancelled).
  void cancel(Stream& stream);

  const EngineOptions& options() const { return options_; }
  KvPlan cache_plan() const;  // of every stream's cache
  const RoundInfo& last_round() const { return last_round_; }

 private:
  struct Window;
  struct Part {
    std::shared_ptr<Stream> stream;
    std::uint32_t rows = 0;  // of its prompt
  };
  struct Chunk;
  class Finals;
  void finish(Stream& stream, FinishReason reason);
  void drop_cancelled();
  void fail_all();
  void keep_prompt(const Stream& stream, bool read, std::uint32_t rows);
  std::vector<Part> share_prompts(std::uint32_t rows) const;
  Wanted hidden_wanted(const Stream& stream, Wanted rows) const;
  Span span_of(const Part& part) const;
  Finals finals(const Backend& backend, std::span<const SpanResult> results) const;
  void run_spans(const std::vector<Part>& prompts);
  void read_part(const Part& part, const Backend& backend, const SpanResult& result,
                 std::span<const float> hidden, double seconds);
  void step_chunk(bool decoding);
  void run_chunk(std::size_t layers);
  void leave_chunk(const Stream& stream);
  // `logits`: index of the row in the backend.
  std::optional<std::int32_t> choose(Stream& stream, const Backend& backend, std::uint32_t logits,
                                     const Window* window, std::uint32_t row);
  void sample(Stream& stream, const Backend& backend, std::uint32_t logits, const Window* window = nullptr,
              std::uint32_t row = 0);
  std::vector<Window> open_windows(std::uint32_t prompt_rows);
  void verify(Window& window, const SpanResult& result);
  void absorb(Stream& stream, std::uint32_t rows, std::span<const float> hidden);

  const Model& model_;
  Backend& backend_;
  std::unique_ptr<Backend> lane_;  // reads prompts while the backend goes on with replies; may be null
  EngineOptions options_;
  std::vector<std::shared_ptr<Stream>> streams_;  // open ones, oldest first
  PromptBudget prompt_budget_;
  LanePace lane_pace_;
  std::unique_ptr<Chunk> chunk_;  // on the lane
  RoundInfo last_round_;
  std::unique_ptr<Speculation> speculation_;
};

}  // namespace gem
