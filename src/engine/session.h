// Everything that serving one model needs: the admitted model, its backend, its tokenizer, the engine, the
// memory plan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace gem {

struct SessionOptions {
  std::string model;
  BackendKind backend = BackendKind::kCpu;
  unsigned threads = 0;       // 0: one a physical core
  std::uint32_t context = 0;  // 0: the smaller of what the model was trained for and kDefaultContext
  std::uint32_t chunk = 256;
  std::uint32_t streams = 1;
  bool any_geometry = false;
};

// A context that leaves room for other programs; a longer one is asked for.
inline constexpr std::uint32_t kDefaultContext = 32768;

class Session {
 public:
  // Error(kRefused) also when the memory plan does not fit what the system has left.
  static std::unique_ptr<Session> open(const SessionOptions& options);

  const Model& model() const { return *model_; }
  Backend& backend() { return *backend_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  const MemoryPlan& memory() const { return memory_; }

  // general.sampling.* of the checkpoint, else temperature 1.0, top-k 64, top-p 0.95.
  SamplingParams default_sampling() const;
  // End tokens and suppressed ids set; `prompt` encoded by the caller.
  GenerationRequest request(std::vector<std::int32_t> prompt, SamplingParams sampling) const;

 private:
  Session() = default;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  MemoryPlan memory_;
};

}  // namespace gem
