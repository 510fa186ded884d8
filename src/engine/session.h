// Everything that serving one model needs: the admitted model, its backend, its tokenizer, the engine, the
// memory plan.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/assistant.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace gem {

// Who drafts (engine/draft). Without `on` nothing does.
struct SessionDrafts {
  bool on = false;
  std::string assistant = {};  // of the model; empty: one that lies beside it, where `find` says so
  bool find = true;
  bool copy = true;                        // from earlier text
  std::optional<std::uint32_t> most = {};  // tokens a stream drafts in one round; 0: none
  SpecSampling sampling = SpecSampling::kKeyed;
  bool adaptive = true;  // false: always as many as can be
  std::function<void(const std::string&)> warn = {};
};

struct SessionOptions {
  std::string model;
  BackendKind backend = BackendKind::kCpu;
  // Nobody asked for this backend: where its device's memory does not hold the model the cpu is taken.
  bool backend_is_default = false;
  unsigned threads = 0;            // 0: one a physical core
  std::uint32_t context = 0;       // 0: the smaller of what the model was trained for and kDefaultContext
  std::uint32_t chunk = 0;         // 0: the backend's
  std::optional<int> device = {};  // of the cuda backend; nothing: the first
  std::uint32_t streams = 1;       // 0: default_streams()
  bool any_geometry = false;
  std::optional<KvType> kv_type = {};  // nothing: the backend's first
  // Bytes for states of prompts beside those of the streams; nothing: as much as fits,
  // default_prompt_cache().
  std::optional<std::uint64_t> prompt_cache = 0;
  // A folder where these states are kept beyond memory and restarts (engine/cache_store.h); empty: none.
  std::string cache_folder = {};
  std::optional<std::uint64_t> cache_disk = {};            // bytes of it; nothing: CacheStoreOptions::budget
  std::function<void(const std::string&)> cache_log = {};  // what is to be told of it, from any thread
  std::function<void(const std::string&)> notice = {};     // what was chosen that one may not have expected
  Backend::Progress load_progress = {};                    // while the weights are packed
  SessionDrafts drafts = {};
  // Puts something between the engine and its backend (tests: rounds that fail or wait).
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> wrap_backend = {};
  std::function<void()> before_cache_load = {};  // CacheStoreOptions::before_load
};

// A context that leaves room for other programs; a longer one is asked for. Where the memory does not hold
// it, half of it, or a quarter.
inline constexpr std::uint32_t kDefaultContext = 32768;
inline constexpr std::uint32_t kLeastDefaultContext = 8192;

inline constexpr std::uint32_t kMostDefaultStreams = 4;

// The most streams, up to `most` and at least one, whose memory plan fits `room` bytes; `most` where the room
// is not known. `options.streams` is not read.
std::uint32_t default_streams(const Model& model, const Backend& backend, MemoryOptions options,
                              std::optional<std::uint64_t> room, std::uint32_t most = kMostDefaultStreams);

// Half of what the plan leaves of `room`, at most 8 GiB (also where the room is not known).
std::uint64_t default_prompt_cache(const MemoryPlan& plan, std::optional<std::uint64_t> room);

class Session {
 public:
  // Error(kRefused) also when the memory plan does not fit what the system has left, in any of the ways that
  // the options leave open. Where only the checkpoints do not fit, the session goes without them
  // (EngineOptions::checkpoints). Error(kUsage) for a
  // KV cache type that the backend does not have, and for a cache folder that cannot be used. An assistant
  // that was named must fit (Error(kRefused)), one that was found need not.
  static std::unique_ptr<Session> open(const SessionOptions& options);

  const Model& model() const { return *model_; }
  Backend& backend() { return *backend_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  const MemoryPlan& memory() const { return memory_; }
  const PromptCache* prompt_cache() const { return prompt_cache_.get(); }  // null: none
  // The end is near and nobody wants to wait: what is not on disk yet does not get there.
  void abandon_cache_writes();
  // Who drafts, or why nobody does: "the MTP assistant mtp-x.gguf and copies of earlier text".
  const std::string& drafting() const { return drafting_; }

  // general.sampling.* of the checkpoint, else temperature 1.0, top-k 64, top-p 0.95.
  SamplingParams default_sampling() const;
  // End tokens and suppressed ids set; `prompt` encoded by the caller.
  GenerationRequest request(std::vector<std::int32_t> prompt, SamplingParams sampling) const;

 private:
  Session() = default;
  std::unique_ptr<Drafter> make_drafter(const SessionOptions& options);
  bool fit(const SessionOptions& options, MemoryOptions& plan);
  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Assistant> assistant_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<PromptCache> prompt_cache_;
  std::unique_ptr<Engine> engine_;
  MemoryPlan memory_;
  std::string drafting_;
};

}  // namespace gem
