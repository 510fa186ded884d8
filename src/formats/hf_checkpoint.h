// Checkpoints as Hugging Face and MLX lay them out: a folder with config.json, model*.safetensors, perhaps an
// index, and the tokenizer's and generation's files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "formats/checkpoint.h"

namespace gem {

// Opens the folder. The names of text tensors become GGUF's ("blk.0.attn_q.weight"), those of image and audio
// parts lose the prefix "model." ("vision_tower.std_bias"), others stay as they are, for the manifest to
// name. Vectors are widened to f32; modules with scales and biases become StorageType::kAffine. Of a model
// that gem does not know, the metadata alone is read. Error(kBadFile), Error(kRefused).
Checkpoint open_hf(const std::string& folder);

// model.safetensors.index.json.
struct SafetensorsIndex {
  std::map<std::string, std::string> files;  // tensor name -> file name
  // metadata.total_size: bytes of these tensors; nothing where the writer did not say.
  std::optional<std::uint64_t> total_size;
};

// From the index's text. Error(kBadFile) for a file name that is no plain name of a .safetensors file and for
// a total_size that is no number of bytes.
SafetensorsIndex read_safetensors_index(std::string_view text, const std::string& where);

}  // namespace gem
