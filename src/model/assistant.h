// An MTP assistant: a small network beside its target that guesses the tokens which the target will draw.
//
// It has no keys and values of its own: its sliding layers read the target's last sliding layer, its full
// layers the target's last full layer. A step takes a token and a row of the target's hidden width (after the
// final norm), gives logits and the next such row, and is called again with the token that was chosen:
//
//   x = Wpre [E_target[t] * sqrt(H) ; g]    the embedding first
//   layers as the target's, queries only    position P, keys before the pending token
//   y = rms(x) w;  logits = E y (no cap);  g' = Wpost y
//
// P stays the same through a chain: the position at which the pending token belongs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace gem {

class Assistant {
 public:
  // Opens, admits, pairs and binds. Error(kBadFile) or Error(kRefused), which names what does not fit the
  // target, or what else the file is. The target must outlive it.
  static std::unique_ptr<Assistant> load(const std::string& path, const Model& target,
                                         const AdmissionOptions& options = {});

  const std::string& path() const { return path_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const Profile& profile() const { return profile_; }
  const Geometry& geometry() const { return profile_.geometry; }
  const Weights& weights() const { return weights_; }

 private:
  Assistant() = default;
  std::string path_;
  Checkpoint checkpoint_;
  Profile profile_;  // its geometry names the target's layers (LayerGeometry::kv_source)
  Weights weights_;
};

// Pairs an assistant's profile with a target: sets the geometry's kv_source and backbone. Error(kRefused)
// naming the first size that differs.
void pair_with_target(Profile& assistant, const Profile& target);

// A backend for the assistant, beside the one that runs its target and on that one's threads. Both must
// outlive it. Error(kUsage) where that backend does not draft.
std::unique_ptr<Backend> make_assistant_backend(Backend& target, const Assistant& assistant);

// A step of one chain.
struct ChainRow {
  KvCache* cache = nullptr;       // of the target
  std::uint32_t position = 0;     // of the queries: the same in all steps of a chain
  std::int32_t token = 0;         // the pending token, then what was drafted
  std::span<const float> hidden;  // [backbone]: the target's row, then the step before's
};

// One step of every chain in one pass. Row i's logits are the backend's logits(i); the rows' next hidden
// vectors are returned, [rows, backbone]. The caches are only read; each must hold a position.
std::vector<float> run_chain_step(Backend& backend, const Geometry& geometry, std::span<const ChainRow> rows);

// `steps` steps of every chain, each from the token that the row's draw takes of the step before
// (Backend::run_chain). False where the backend has no faster way for it than step by step.
bool run_chain(Backend& backend, std::span<const ChainRow> rows, std::uint32_t steps,
               std::span<const KeyedDraw> draws, std::span<std::int32_t> tokens);

}  // namespace gem
