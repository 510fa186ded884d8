// What a backend must know of a model: sizes, and the weights bound to the layer contract.
// The mathematics is in docs/architecture.md ("The schedule"); names follow it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/affine.h"
#include "base/storage.h"

namespace gem {

enum class LayerKind : std::uint8_t { kSliding, kFull };

struct LayerGeometry {
  LayerKind kind = LayerKind::kSliding;
  std::uint32_t head_dim = 0;
  std::uint32_t kv_heads = 0;
  bool value_from_key =
      false;  // full layers of the large models: V is the K projection before its norm and RoPE
  // Assistants: the target's layer whose keys and values this one reads. It has no K and V of its own, and
  // sees the keys before its row's position only.
  std::optional<std::uint32_t> kv_source = std::nullopt;
};

struct Geometry {
  std::uint32_t hidden = 0;
  std::uint32_t ffn = 0;
  std::uint32_t heads = 0;   // query heads, the same in every layer
  std::uint32_t window = 0;  // keys a row of a sliding layer sees, itself included
  std::uint32_t vocab = 0;
  std::uint32_t context = 0;  // longest sequence the model was trained for
  float norm_epsilon = 0;
  float softcap = 0;               // logits = cap * tanh(logits / cap); 0: none
  float embedding_multiplier = 0;  // GGUF: f32 sqrt(hidden)
  double rope_base_sliding = 0;
  double rope_base_full = 0;
  std::uint32_t backbone = 0;  // assistants: hidden width of the target; 0: a trunk
  std::vector<LayerGeometry> layers;

  std::uint32_t query_width(std::size_t layer) const { return heads * layers[layer].head_dim; }
  std::uint32_t kv_width(std::size_t layer) const { return layers[layer].kv_heads * layers[layer].head_dim; }
};

// A matrix [rows, cols] = [out, in] in storage, rows one after the other; y = M x.
struct Matrix {
  StorageType type = StorageType::kF32;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  const std::byte* data = nullptr;
  Affine affine = {};  // kAffine: `data` are the codes

  std::size_t row_bytes() const {
    return type == StorageType::kAffine ? affine.row_code_bytes(cols) : *storage_bytes(type, cols);
  }
  const std::byte* row(std::size_t r) const { return data + r * row_bytes(); }
  std::size_t bytes() const { return rows * row_bytes(); }
  // Row `r` as f32.
  void expand_row(std::size_t r, float* out) const {
    if (type == StorageType::kAffine) {
      dequantize_affine(affine, row(r), r, cols, out);
    } else {
      dequantize(type, row(r), out, cols);
    }
  }
};

struct LayerWeights {
  std::vector<float> attn_norm, q_norm, k_norm, post_attention_norm;  // [hidden], [head_dim] twice, [hidden]
  std::vector<float> ffn_norm, post_ffw_norm;                         // [hidden]
  float output_scale = 1;  // multiplies the whole residual stream at the end of the layer
  Matrix q, k, v, o;       // v is empty where the layer takes V from K
  Matrix gate, up, down;
};

struct Weights {
  Matrix token_embd;               // [vocab, hidden]: the input table and the head
  std::vector<float> output_norm;  // [hidden]
  // Divisors of the RoPE angles of full layers, [head_dim / 2] of a full layer: 1 for rotated pairs, 1e30 for
  // the rest. Sliding layers rotate every pair.
  std::vector<float> rope_divisors;
  std::vector<LayerWeights> layers;

  // Assistants: x = pre [target_embd[token] * target_multiplier ; hidden row], next hidden row = post y.
  Matrix pre_projection;   // [hidden, 2 * backbone]
  Matrix post_projection;  // [backbone, hidden]
  Matrix target_embd;      // [vocab, backbone], the target's input table
  float target_multiplier = 1;
};

}  // namespace gem
