#include "model/weights.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace gem {
namespace {

std::vector<float> vector_of(const Checkpoint& c, const std::string& name) {
  const TensorView& t = *c.tensor(name);
  std::vector<float> out(t.elements());
  std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
  for (const float x : out) {
    if (!std::isfinite(x)) fail(ErrorCode::kRefused, "{} holds a value that is not finite", name);
  }
  return out;
}

Matrix matrix_of(const Checkpoint& c, const std::string& name) {
  const TensorView& t = *c.tensor(name);
  return {t.type, static_cast<std::uint32_t>(t.shape[0]), static_cast<std::uint32_t>(t.shape[1]),
          t.bytes.data(), t.affine};
}

// Proportional RoPE: the first quarter of the pairs rotates, int(0.25 * d / 2) of d / 2; the others stand
// still.
void check_rope_divisors(const std::vector<float>& divisors) {
  const std::size_t rotated = divisors.size() / 4;
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    const bool right = i < rotated ? divisors[i] == 1.0f : divisors[i] >= 1e20f;
    if (!right) {
      fail(ErrorCode::kRefused, "rope_freqs.weight[{}] is {}, expected {}", i, divisors[i],
           i < rotated ? "1" : "1e30");
    }
  }
}

}  // namespace

Weights bind_weights(const Checkpoint& c, const Profile& profile) {
  const Geometry& g = profile.geometry;
  Weights w;
  w.token_embd = matrix_of(c, "token_embd.weight");
  w.output_norm = vector_of(c, "output_norm.weight");
  if (c.tensor("rope_freqs.weight") != nullptr) {
    w.rope_divisors = vector_of(c, "rope_freqs.weight");
    check_rope_divisors(w.rope_divisors);
  }
  if (profile.role == ModelRole::kAssistant) {
    w.pre_projection = matrix_of(c, "nextn.pre_projection.weight");
    w.post_projection = matrix_of(c, "nextn.post_projection.weight");
  }
  for (std::size_t i = 0; i < g.layers.size(); ++i) {
    const std::string blk = "blk." + std::to_string(i) + ".";
    LayerWeights l;
    l.attn_norm = vector_of(c, blk + "attn_norm.weight");
    l.q_norm = vector_of(c, blk + "attn_q_norm.weight");
    l.post_attention_norm = vector_of(c, blk + "post_attention_norm.weight");
    l.ffn_norm = vector_of(c, blk + "ffn_norm.weight");
    l.post_ffw_norm = vector_of(c, blk + "post_ffw_norm.weight");
    l.output_scale = vector_of(c, blk + "layer_output_scale.weight").front();
    l.q = matrix_of(c, blk + "attn_q.weight");
    if (profile.role == ModelRole::kTrunk) {
      l.k_norm = vector_of(c, blk + "attn_k_norm.weight");
      l.k = matrix_of(c, blk + "attn_k.weight");
      if (!g.layers[i].value_from_key) l.v = matrix_of(c, blk + "attn_v.weight");
    }
    l.o = matrix_of(c, blk + "attn_output.weight");
    l.gate = matrix_of(c, blk + "ffn_gate.weight");
    l.up = matrix_of(c, blk + "ffn_up.weight");
    l.down = matrix_of(c, blk + "ffn_down.weight");
    w.layers.push_back(std::move(l));
  }
  return w;
}

}  // namespace gem
