// Any text as config.json, generation_config.json and model.safetensors.index.json: read or a gem::Error, and
// what is read stays within its ranges.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "formats/hf_checkpoint.h"
#include "formats/hf_config.h"
#include "formats/hf_names.h"
#include "formats/hf_quantization.h"

namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

void read_config(std::string_view text) {
  try {
    const nlohmann::json document = gem::parse_json_object(text, "fuzz");
    const gem::JsonFields fields(document, "fuzz");
    gem::Checkpoint checkpoint;
    const gem::HfConfig config = gem::read_hf_config(fields, checkpoint);
    require(checkpoint.string("general.architecture").has_value());
    if (!config.known) return;
    require(config.vocab > 0 && config.vocab <= 1u << 24 && !config.sliding.empty() &&
            config.full_head_dim <= 4096);
    const std::string prefix = config.assistant ? "gemma4-assistant." : "gemma4.";
    require(checkpoint.integer(prefix + "block_count") == static_cast<std::int64_t>(config.sliding.size()));
    gem::read_generation_config(fields, config, checkpoint);
    if (const auto end = checkpoint.integers("gem.end_tokens")) {
      for (const std::int64_t id : *end) require(id >= 0 && id < std::int64_t{config.vocab});
    }
  } catch (const gem::Error&) {
  }
}

void read_widths(std::string_view text) {
  try {
    const nlohmann::json document = gem::parse_json_object(text, "fuzz");
    const auto widths = gem::HfQuantization::read(gem::JsonFields(document, "fuzz"));
    for (const char* module : {"embed_tokens", "layers.0.mlp.down_proj"}) {
      const gem::Affine affine = widths.of(module);
      require(gem::Affine::knows_bits(affine.bits) && gem::Affine::knows_group(affine.group));
    }
  } catch (const gem::Error&) {
  }
}

void read_index(std::string_view text) {
  try {
    for (const auto& [tensor, file] : gem::read_safetensors_index(text, "fuzz").files) {
      require(file.find('/') == std::string::npos && file.ends_with(".safetensors"));
      if (const auto gguf = gem::gguf_name_of(gem::hf_core_name(tensor)))
        require(gem::hf_name_of(*gguf) == gem::hf_core_name(tensor));
    }
  } catch (const gem::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_config(text);
  read_widths(text);
  read_index(text);
  return 0;
}
