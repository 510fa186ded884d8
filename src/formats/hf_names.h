// Tensor names of Hugging Face and MLX checkpoints of Gemma 4, and the names that gem uses for them (GGUF's).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gem {

// A name without what surrounds it: "model.language_model.layers.0.layer_scalar" (Google),
// "language_model.model.layers.0.layer_scalar" (MLX) and "model.layers.0.layer_scalar" (a text model alone)
// are "layers.0.layer_scalar"; "model.vision_tower.std_bias" is "vision_tower.std_bias". Others stay.
std::string hf_core_name(std::string_view name);

// "layers.0.layer_scalar" -> "blk.0.layer_output_scale.weight"; nothing when there is no such text tensor.
std::optional<std::string> gguf_name_of(std::string_view core);
// The other way.
std::optional<std::string> hf_name_of(std::string_view gguf);

// Whether a core name belongs to the image or audio parts.
bool is_hf_media(std::string_view core);

}  // namespace gem
