// An admitted model: checkpoint, profile and bound weights, and the memory that running it takes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "formats/checkpoint.h"
#include "model/profile.h"

namespace gem {

class Model {
 public:
  // Opens, admits and binds. Error(kBadFile) or Error(kRefused); an assistant is refused here, by name.
  static std::unique_ptr<Model> load(const std::string& path, const AdmissionOptions& options = {});

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const Profile& profile() const { return profile_; }
  const Geometry& geometry() const { return profile_.geometry; }
  const Weights& weights() const { return weights_; }
  const std::string& path() const { return path_; }

 private:
  Model() = default;
  std::string path_;
  Checkpoint checkpoint_;
  Profile profile_;
  Weights weights_;
};

enum class BackendKind : std::uint8_t { kOracle, kCpu, kCuda };
// Error(kUsage) for a name that is no backend of this build.
BackendKind parse_backend(const std::string& name);
// Error(kUsage) where a device is named that the backend would not use.
void require_user_of_device(BackendKind kind, std::optional<int> device);
// `model` must outlive the backend.
// `device`: of the cuda backend alone.
std::unique_ptr<Backend> make_backend(BackendKind kind, const Model& model, unsigned threads,
                                      std::optional<int> device = {});

// What a checkpoint holds, by storage type.
struct StorageCount {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};
std::map<std::string, StorageCount> count_storage(const Checkpoint& checkpoint);

// Memory, exact before it is taken.
struct MemoryPlan {
  std::uint32_t context = 0;
  std::uint32_t streams = 1;
  std::uint32_t round_rows = 0;  // most rows of one round
  std::uint64_t weights = 0;     // tensor bytes, as mapped or as the backend packs them
  KvType kv_type = KvType::kF32;
  std::uint64_t kv_stream = 0;  // keys and values of one stream at full context
  std::uint64_t kv_spans = 0;   // of these, what rings have above their window for the rows of a round
  std::uint64_t kv_undo = 0;    // what one stream's checkpoint may keep beside it (KvCache::set_checkpoint)
  std::uint64_t scratch = 0;    // activations
  std::uint64_t drafter = 0;    // weights and scratch of an assistant
  std::uint64_t tables = 0;     // tokenizer tables and what the program itself takes
  std::uint64_t prompt_cache = 0;  // most that kept prompts take (engine/prompt_cache.h)
  std::uint64_t total() const {
    return weights + (kv_stream + kv_undo) * streams + scratch + drafter + tables + prompt_cache;
  }
};

struct MemoryOptions {
  std::uint32_t context = 0;
  std::uint32_t streams = 1;
  std::uint32_t chunk = 256;  // prompt rows in one round
  bool checkpoints = true;
  std::optional<KvType> kv_type = {};  // nothing: the backend's first
  std::uint32_t drafts = 0;            // rows that a decoding stream may bring beside its own
  std::uint64_t drafter = 0;           // bytes of what proposes them
};
// Caches and scratch, which follow from the geometry; weights and tables stay 0. Error(kUsage) when the
// backend has no such KV cache type.
MemoryPlan plan_caches(const Geometry& geometry, const Backend& backend, const MemoryOptions& options);
// Everything. Errors as plan_caches.
MemoryPlan plan_memory(const Model& model, const Backend& backend, const MemoryOptions& options);

}  // namespace gem
