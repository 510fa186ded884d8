#include "formats/hf_names.h"

#include <algorithm>
#include <array>

namespace gem {
namespace {

struct Pair {
  std::string_view hf;
  std::string_view gguf;
};

constexpr std::array kModel = {
    Pair{"embed_tokens.weight", "token_embd.weight"},
    Pair{"norm.weight", "output_norm.weight"},
    Pair{"pre_projection.weight", "nextn.pre_projection.weight"},  // assistants
    Pair{"post_projection.weight", "nextn.post_projection.weight"},
    Pair{"masked_embedding.centroids.weight", "masked_embd_centroids.weight"},
    Pair{"masked_embedding.token_ordering", "masked_embd_ordering"},
};

constexpr std::array kLayer = {
    Pair{"input_layernorm.weight", "attn_norm.weight"},
    Pair{"post_attention_layernorm.weight", "post_attention_norm.weight"},
    Pair{"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    Pair{"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    Pair{"layer_scalar", "layer_output_scale.weight"},
    Pair{"self_attn.q_proj.weight", "attn_q.weight"},
    Pair{"self_attn.k_proj.weight", "attn_k.weight"},
    Pair{"self_attn.v_proj.weight", "attn_v.weight"},
    Pair{"self_attn.o_proj.weight", "attn_output.weight"},
    Pair{"self_attn.q_norm.weight", "attn_q_norm.weight"},
    Pair{"self_attn.k_norm.weight", "attn_k_norm.weight"},
    Pair{"mlp.gate_proj.weight", "ffn_gate.weight"},
    Pair{"mlp.up_proj.weight", "ffn_up.weight"},
    Pair{"mlp.down_proj.weight", "ffn_down.weight"},
};

constexpr std::array<std::string_view, 5> kMedia = {"vision_tower", "vision_embedder", "embed_vision",
                                                    "embed_audio", "audio_tower"};

// Splits PREFIX + number + "." + rest; the number is kept as spelled, without leading zeros.
struct LayerName {
  std::string_view number, rest;
};
std::optional<LayerName> split_layer(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 4) return std::nullopt;
  const std::string_view number = name.substr(0, dot);
  if (!std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  if (number.size() > 1 && number.front() == '0') return std::nullopt;
  return LayerName{number, name.substr(dot + 1)};
}

template <std::size_t N>
std::optional<std::string_view> look_up(const std::array<Pair, N>& pairs, std::string_view name,
                                        std::string_view Pair::*from, std::string_view Pair::*to) {
  for (const Pair& pair : pairs) {
    if (pair.*from == name) return pair.*to;
  }
  return std::nullopt;
}

std::optional<std::string> translate(std::string_view name, std::string_view Pair::*from,
                                     std::string_view Pair::*to, std::string_view layer_from,
                                     std::string_view layer_to) {
  if (const auto found = look_up(kModel, name, from, to)) return std::string(*found);
  if (const auto layer = split_layer(name, layer_from)) {
    if (const auto found = look_up(kLayer, layer->rest, from, to))
      return std::string(layer_to) + std::string(layer->number) + "." + std::string(*found);
  }
  return std::nullopt;
}

}  // namespace

bool is_hf_media(std::string_view core) {
  return std::any_of(kMedia.begin(), kMedia.end(), [&](std::string_view part) {
    return core.starts_with(part) && (core.size() == part.size() || core[part.size()] == '.');
  });
}

std::string hf_core_name(std::string_view name) {
  for (const std::string_view prefix :
       {"model.language_model.", "language_model.model.", "language_model."}) {
    if (name.starts_with(prefix)) return std::string(name.substr(prefix.size()));
  }
  constexpr std::string_view kModelPrefix = "model.";
  return std::string(name.starts_with(kModelPrefix) ? name.substr(kModelPrefix.size()) : name);
}

std::optional<std::string> gguf_name_of(std::string_view core) {
  return translate(core, &Pair::hf, &Pair::gguf, "layers.", "blk.");
}

std::optional<std::string> hf_name_of(std::string_view gguf) {
  return translate(gguf, &Pair::gguf, &Pair::hf, "blk.", "layers.");
}

}  // namespace gem
