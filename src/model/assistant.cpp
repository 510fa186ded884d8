#include "model/assistant.h"

#include <optional>

#include "base/error.h"
#include "model/manifest.h"
#include "model/weights.h"

namespace gem {
namespace {

// The target's last layer of a kind.
std::optional<std::uint32_t> last_layer(const Geometry& g, LayerKind kind) {
  std::optional<std::uint32_t> last;
  for (std::uint32_t i = 0; i < g.layers.size(); ++i) {
    if (g.layers[i].kind == kind) last = i;
  }
  return last;
}

const char* kind_name(LayerKind kind) {
  return kind == LayerKind::kSliding ? "sliding" : "full";
}

}  // namespace

void pair_with_target(Profile& assistant, const Profile& target) {
  Geometry& a = assistant.geometry;
  const Geometry& t = target.geometry;
  const auto equal = [&](const std::string& what, auto of_assistant, auto of_target) {
    if (of_assistant != of_target) {
      fail(ErrorCode::kRefused, "this assistant is not for {}: {} is {}, the target's {}", target.title, what,
           of_assistant, of_target);
    }
  };
  equal("the target's hidden width", assistant.backbone, t.hidden);
  equal("the vocabulary", a.vocab, t.vocab);
  equal("the sliding window", a.window, t.window);
  equal("the RoPE base of sliding layers", a.rope_base_sliding, t.rope_base_sliding);
  equal("the RoPE base of full layers", a.rope_base_full, t.rope_base_full);
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    LayerGeometry& l = a.layers[i];
    const auto source = last_layer(t, l.kind);
    if (!source) {
      fail(ErrorCode::kRefused,
           "this assistant is not for {}: its layer {} reads a {} layer, the target has none", target.title,
           i, kind_name(l.kind));
    }
    equal(fmt::format("layer {}: the head width", i), l.head_dim, t.layers[*source].head_dim);
    equal(fmt::format("layer {}: the number of KV heads", i), l.kv_heads, t.layers[*source].kv_heads);
    l.kv_source = source;
  }
  a.backbone = assistant.backbone;
}

std::unique_ptr<Assistant> Assistant::load(const std::string& path, const Model& target,
                                           const AdmissionOptions& options) {
  std::unique_ptr<Assistant> assistant(new Assistant());
  assistant->path_ = path;
  assistant->checkpoint_ = open_checkpoint(path);
  try {
    assistant->profile_ = read_profile(assistant->checkpoint_, options);
    if (assistant->profile_.role != ModelRole::kAssistant) {
      fail(ErrorCode::kRefused,
           "this is {}, a model of its own: a drafter is an MTP assistant (gemma4-assistant)",
           assistant->profile_.title);
    }
    pair_with_target(assistant->profile_, target.profile());
    check_manifest(assistant->checkpoint_, assistant->profile_);
    assistant->weights_ = bind_weights(assistant->checkpoint_, assistant->profile_);
  } catch (const Error& e) {
    throw Error(e.code(), path + ": " + e.what());
  }
  assistant->weights_.target_embd = target.weights().token_embd;
  assistant->weights_.target_multiplier = target.geometry().embedding_multiplier;
  return assistant;
}

std::unique_ptr<Backend> make_assistant_backend(Backend& target, const Assistant& assistant) {
  return target.new_assistant(
      assistant.geometry(), assistant.weights(),
      [&assistant](std::span<const std::byte> bytes) { assistant.checkpoint().release(bytes); });
}

namespace {

// A step's rows, which a backend may look at until the round has ended.
struct StepRows {
  std::vector<RowSpan> spans;
  std::vector<std::int32_t> tokens;
  std::vector<float> hidden;
  std::vector<std::uint32_t> all;

  explicit StepRows(std::span<const ChainRow> rows) {
    for (const ChainRow& row : rows) {
      all.push_back(static_cast<std::uint32_t>(spans.size()));
      spans.push_back({row.cache, row.position, 1, false});
      tokens.push_back(row.token);
      hidden.insert(hidden.end(), row.hidden.begin(), row.hidden.end());
    }
  }
  RoundRows round() const { return {spans, tokens, {}, all, all, hidden}; }
};

}  // namespace

std::vector<float> run_chain_step(Backend& backend, const Geometry& geometry,
                                  std::span<const ChainRow> rows) {
  const StepRows step(rows);
  backend.begin(step.round());
  if (!backend.run_all()) {
    backend.embed();
    for (std::uint32_t l = 0; l < geometry.layers.size(); ++l) {
      backend.attn_input(l);
      backend.qk_prep(l);
      backend.attention(l);
      backend.attn_output(l);
      backend.ffn_input(l);
      backend.ffn_output(l);
    }
    backend.final_norm();
    backend.head();
    backend.post_project();
  }
  return backend.read(Activation::kNext);
}

bool run_chain(Backend& backend, std::span<const ChainRow> rows, std::uint32_t steps,
               std::span<const KeyedDraw> draws, std::span<std::int32_t> tokens) {
  const StepRows step(rows);
  backend.begin(step.round());
  return backend.run_chain(steps, draws, tokens);
}

}  // namespace gem
