// The backend interface: the stages of the fixed schedule over the rows of one round.
//
// A backend holds the activations of the round; the schedule (model/schedule.h) calls the stages in order.
// Each stage reads and writes the buffers named in `Activation`, so that any stage can be tested alone: write
// its inputs, run it, read its outputs. A backend may keep its buffers in any layout and fuse work between
// stages as long as that holds.
//
// Row independence (law 1): what a stage computes for a row depends on that row and its own stream's cache
// alone, bit for bit, never on the other rows of the round, their number, or where a prompt was cut into
// spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/geometry.h"
#include "backend/keyed_draw.h"
#include "backend/kv_cache.h"
#include "backend/scored_token.h"
#include "base/error.h"

namespace gem {

// Told of stored weights that are not read again once they are packed.
using ReleaseWeights = std::function<void(std::span<const std::byte>)>;

// A contiguous run of rows of one stream within a round.
struct RowSpan {
  KvCache* cache = nullptr;
  std::uint32_t position = 0;  // of the first row
  std::uint32_t rows = 0;
  bool prompt = false;  // read as prompt: a backend may use other arithmetic than for decode rows (law 2)
};

struct RoundRows {
  std::span<const RowSpan> spans;             // together `tokens.size()` rows, in order
  std::span<const std::int32_t> tokens;       // one a row; < 0: the row's embedding is given instead
  std::span<const float> embeddings;          // [given rows, hidden], already scaled, in row order
  std::span<const std::uint32_t> final_rows;  // rows that go through final_norm (ascending)
  std::span<const std::uint32_t> logit_rows;  // indices into final_rows that go through head (ascending)
  std::span<const float> hidden = {};  // assistants: [rows, backbone], the target's row beside each token
};

enum class Activation : std::uint8_t {
  kResidual,   // [rows, hidden]
  kQuery,      // [rows, heads * head_dim] of the current layer
  kKey,        // [rows, kv_heads * head_dim], before qk_prep
  kValue,      // [rows, kv_heads * head_dim], before qk_prep; equals kKey where V is taken from K
  kAttention,  // [rows, heads * head_dim], after attention
  kFfn,        // [rows, ffn], gelu(gate) * up
  kFinal,      // [final rows, hidden], after final_norm
  kLogits,     // [logit rows, vocab], after the softcap
  kNext,       // assistants: [final rows, backbone], after post_project
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual std::string description() const = 0;  // "cpu (avx2, 2 threads)"

  virtual std::unique_ptr<KvCache> new_cache(const KvPlan& plan) = 0;
  // The types that its caches can have; the first is what it has where none was asked for.
  virtual std::span<const KvType> kv_types() const;
  // Bytes of an element that a KvPlan stores as `storage`.
  virtual std::uint32_t kv_element_bytes(StorageType storage) const {
    return storage_info(storage).block_bytes;
  }
  // Whether a position gets the same bits in the cache as a row of a prompt and as a decode row. A backend
  // that computes them differently (tiles against vectors) says no: only positions that were read as prompt
  // are resumed then.
  virtual bool decode_equals_prompt() const { return true; }
  // Rows of a prompt in a round that read it fast, where nothing else is asked for.
  virtual std::uint32_t preferred_chunk() const { return 256; }
  // Bytes of activations and work space for rounds of at most `rows` rows and `logit_rows` logits.
  virtual std::uint64_t scratch_bytes(std::uint32_t rows, std::uint32_t logit_rows) const = 0;

  // Gives up, before weights are loaded, what it would hold for speed alone. False: there is nothing.
  virtual bool use_less_memory() { return false; }
  // Bytes of weights in memory while the backend runs; nothing: those of the checkpoint.
  virtual std::optional<std::uint64_t> weight_bytes() const { return std::nullopt; }
  // Bytes free on the device that holds weights, caches and scratch; nothing: they are in the host's memory.
  virtual std::optional<std::uint64_t> device_memory() const { return std::nullopt; }
  // Brings the weights into the backend's own form, where it has one, by all its threads. The first begin()
  // does it where nobody did. `progress` may be empty; it is called by this thread now and then, with bytes.
  // Error(kTooLarge) when there is no room.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  virtual void load_weights(const Progress& progress) { static_cast<void>(progress); }

  // A backend of the same kind for an assistant that reads the caches of this one, with this one's threads:
  // its rows name a cache and the position that their queries take (RoPE and window), the keys are those that
  // the cache holds. Not to be used at the same time as this one. Error(kUsage) where drafts() says no.
  virtual std::unique_ptr<Backend> new_assistant(const Geometry&, const Weights&, ReleaseWeights) {
    fail(ErrorCode::kUsage, "the {} backend does not draft yet", name());
  }
  // Whether rounds may verify drafts: several decode rows of a stream, rolled back afterwards.
  virtual bool drafts() const { return false; }

  // Another backend over the same weights, whose rounds have buffers of their own: a round of prompts may be
  // under way there, layer by layer, while this one runs rounds of replies. It takes this one's caches.
  // Nothing: the backend has no use for that.
  virtual std::unique_ptr<Backend> new_lane() { return nullptr; }
  // Waits for what the stages so far have started.
  virtual void settle() {}

  // All stages of a round that has begun, where a backend has a faster way than one after the other, with the
  // same results. False: nothing was done.
  virtual bool run_all() { return false; }

  // Assistants: all stages of a round that has begun, in which every row has logits, `steps` times without
  // the caller in between, each time with the next hidden row that the row has from the step before, and the
  // token that `draws` (one a row, a position further at every step) take from its best ones. tokens [steps,
  // rows]: what they took; below zero where the row has to be looked at as a whole. Of step k's row i only
  // best_logits(k * rows + i) can be read then. False: nothing was done.
  virtual bool run_chain(std::uint32_t steps, std::span<const KeyedDraw> draws,
                         std::span<std::int32_t> tokens) {
    static_cast<void>(steps);
    static_cast<void>(draws);
    static_cast<void>(tokens);
    return false;
  }
  // How many of a row's best tokens best_logits() has, where it has them.
  virtual std::uint32_t most_best() const { return 0; }

  // Fixes the rows of the round. The caches' lengths are not changed by stages: the schedule advances them.
  virtual void begin(const RoundRows& rows) = 0;
  virtual void embed() = 0;                           // tokens -> residual
  virtual void attn_input(std::uint32_t layer) = 0;   // residual -> query, key, value
  virtual void qk_prep(std::uint32_t layer) = 0;      // head norms, RoPE; key and value rows into the caches
  virtual void attention(std::uint32_t layer) = 0;    // query, caches -> attention
  virtual void attn_output(std::uint32_t layer) = 0;  // attention -> residual (O, post norm, add)
  virtual void ffn_input(std::uint32_t layer) = 0;    // residual -> ffn
  virtual void ffn_output(std::uint32_t layer) = 0;   // ffn -> residual (down, post norm, add, layer scalar)
  virtual void final_norm() = 0;                      // residual of final_rows -> final
  virtual void head() = 0;                            // final of logit_rows -> logits
  virtual void post_project() {}                      // assistants: final -> next

  // Stage borders. `values` is row-major in the shape that Activation names, for the current round.
  virtual std::vector<float> read(Activation which) const = 0;
  virtual void write(Activation which, std::span<const float> values) = 0;
  // One logits row ([vocab]), valid until the next begin(). The cheap way to the sampler.
  virtual std::span<const float> logits(std::uint32_t index) const = 0;
  // The row's best tokens, best first, the lower id first among equals, where the backend has them cheaper
  // than the row (valid as long); empty: look at the row.
  virtual std::span<const ScoredToken> best_logits(std::uint32_t index) const {
    static_cast<void>(index);
    return {};
  }
};

// The type that was asked for, or the backend's first. Error(kUsage) for one that it does not have.
KvType choose_kv_type(const Backend& backend, std::optional<KvType> wanted);

}  // namespace gem
