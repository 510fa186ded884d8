#include "formats/hf_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"
#include "formats/names.h"

namespace gem {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 20;

struct Kind {
  std::string_view model_type;
  std::string_view text_type;
  bool assistant;
  bool text_alone;  // the fields stand at the top, not in text_config
};
constexpr std::array kKinds = {
    Kind{"gemma4", "gemma4_text", false, false},
    Kind{"gemma4_unified", "gemma4_unified_text", false, false},
    Kind{"gemma4_text", "gemma4_text", false, true},
    Kind{"gemma4_unified_text", "gemma4_unified_text", false, true},
    Kind{"gemma4_assistant", "gemma4_text", true, false},
    Kind{"gemma4_unified_assistant", "gemma4_unified_text", true, false},
};

const Kind* kind_of(const std::string& model_type) {
  for (const Kind& kind : kKinds) {
    if (kind.model_type == model_type) return &kind;
  }
  return nullptr;
}

void require_text(const JsonFields& fields, std::string_view key, std::string_view expected) {
  const auto found = fields.string(key);
  if (!found) fields.fail_missing(key);
  if (*found != expected)
    fail(ErrorCode::kRefused, "{} is {}, expected {}", fields.name(key), shown(*found), expected);
}

// A flag that must have this value where it is there.
void require_flag(const JsonFields& fields, std::string_view key, bool expected, std::string_view why) {
  if (const auto found = fields.boolean(key); found && *found != expected)
    fail(ErrorCode::kRefused, "{} is {}: {}, which gem does not serve", fields.name(key), *found, why);
}

// What a layer has of its own; per_layer_config may say it in place of the global_* fields.
struct Layer {
  bool sliding = true;
  std::int64_t head_dim = 0;
  std::int64_t kv_heads = 0;
};

std::size_t layer_index(const JsonFields& per_layer, const std::string& key, std::size_t layers) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  if (error != std::errc() || end != key.data() + key.size() || index >= layers)
    fail(ErrorCode::kRefused, "{} is no layer; the model has the layers 0 to {}", per_layer.name(key),
         layers - 1);
  return index;
}

std::vector<Layer> read_layers(const JsonFields& text, std::size_t count) {
  const auto types = text.strings("layer_types");
  if (!types) text.fail_missing("layer_types");
  if (types->size() != count)
    fail(ErrorCode::kRefused, "{} has {} elements, expected one for each of the {} layers",
         text.name("layer_types"), types->size(), count);
  const std::int64_t head_dim = text.needed_integer("head_dim", 2, 4096);
  const std::int64_t kv_heads = text.needed_integer("num_key_value_heads", 1, 4096);
  const auto global_dim = text.integer("global_head_dim", 2, 4096);
  const auto global_kv = text.integer("num_global_key_value_heads", 1, 4096);
  std::vector<Layer> layers;
  for (const std::string& type : *types) {
    if (type != "sliding_attention" && type != "full_attention")
      fail(ErrorCode::kRefused, "{} holds {}, expected sliding_attention and full_attention",
           text.name("layer_types"), shown(type));
    const bool sliding = type == "sliding_attention";
    layers.push_back({sliding, sliding ? head_dim : global_dim.value_or(head_dim),
                      sliding ? kv_heads : global_kv.value_or(kv_heads)});
  }
  const auto per_layer = text.object("per_layer_config");
  if (!per_layer) return layers;
  std::set<std::size_t> seen;
  for (const auto& item : per_layer->json().items()) {
    const std::size_t index = layer_index(*per_layer, item.key(), count);
    if (!seen.insert(index).second)
      fail(ErrorCode::kRefused, "{} names layer {} twice", text.name("per_layer_config"), index);
    const auto own = per_layer->object(item.key());
    if (!own) continue;
    for (const auto& field : own->json().items()) {
      if (field.key() != "head_dim" && field.key() != "num_key_value_heads")
        fail(ErrorCode::kRefused,
             "{} is a field that gem does not know; expected head_dim and num_key_value_heads",
             own->name(field.key()));
    }
    layers[index].head_dim = own->integer("head_dim", 2, 4096).value_or(layers[index].head_dim);
    layers[index].kv_heads = own->integer("num_key_value_heads", 1, 4096).value_or(layers[index].kv_heads);
  }
  return layers;
}

// The head width that all layers of a kind share; 0 where there are none.
std::int64_t shared_head_dim(const JsonFields& text, const std::vector<Layer>& layers, bool sliding) {
  std::int64_t dim = 0;
  for (const Layer& layer : layers) {
    if (layer.sliding != sliding) continue;
    if (dim != 0 && layer.head_dim != dim)
      fail(ErrorCode::kRefused, "{}: {} layers have head widths of {} and {}, expected one",
           text.name("layer_types"), sliding ? "sliding" : "full", dim, layer.head_dim);
    dim = layer.head_dim;
  }
  return dim;
}

class Metadata {
 public:
  Metadata(Checkpoint& checkpoint, std::string prefix)
      : checkpoint_(checkpoint), prefix_(std::move(prefix)) {}
  void add(std::string_view key, MetadataValue value) {
    checkpoint_.add_metadata(prefix_ + std::string(key), std::move(value));
  }

 private:
  Checkpoint& checkpoint_;
  std::string prefix_;
};

void read_rope(const JsonFields& text, Metadata& out) {
  const JsonFields rope = text.needed_object("rope_parameters");
  const JsonFields sliding = rope.needed_object("sliding_attention");
  const JsonFields full = rope.needed_object("full_attention");
  require_text(sliding, "rope_type", "default");
  require_text(full, "rope_type", "proportional");
  if (const double part = full.needed_number("partial_rotary_factor", 0, 1); part != 0.25)
    fail(ErrorCode::kRefused, "{} is {}, expected 0.25", full.name("partial_rotary_factor"), part);
  if (const auto part = sliding.number("partial_rotary_factor", 0, 1); part && *part != 1)
    fail(ErrorCode::kRefused, "{} is {}, expected 1", sliding.name("partial_rotary_factor"), *part);
  out.add("rope.freq_base_swa", sliding.needed_number("rope_theta", 1, 1e12));
  out.add("rope.freq_base", full.needed_number("rope_theta", 1, 1e12));
}

// What the other sizes of the family have, under the keys by which the profile refuses them. True: there was
// some of it, and the rest of the config need not be read.
bool read_relatives(const JsonFields& text, const Kind& kind, std::int64_t layers, Metadata& out) {
  bool found = false;
  const auto add = [&](std::string_view key, std::int64_t value) {
    out.add(key, value);
    found = true;
  };
  if (text.boolean("enable_moe_block").value_or(false))
    add("expert_count", std::max<std::int64_t>(1, text.integer("num_experts", 0, 1 << 16).value_or(1)));
  if (const auto width = text.integer("hidden_size_per_layer_input", 0, kMaxWidth); width && *width != 0)
    add("embedding_length_per_layer_input", *width);
  const auto shared = text.integer("num_kv_shared_layers", 0, 1024);
  if (kind.assistant) {
    if (shared && *shared != layers)
      fail(ErrorCode::kRefused, "{} is {}; every layer of an assistant reads its target's keys, expected {}",
           text.name("num_kv_shared_layers"), *shared, layers);
  } else if (shared && *shared != 0) {
    add("attention.shared_kv_layers", *shared);
  }
  return found;
}

// False: the model is one of the family that gem does not serve.
bool read_text(const JsonFields& text, const Kind& kind, HfConfig& config, Checkpoint& checkpoint) {
  Metadata out(checkpoint, kind.assistant ? "gemma4-assistant." : "gemma4.");
  require_text(text, "model_type", kind.text_type);
  const std::int64_t count = text.needed_integer("num_hidden_layers", 1, 1024);
  out.add("block_count", count);
  if (read_relatives(text, kind, count, out)) return false;
  const std::vector<Layer> layers = read_layers(text, static_cast<std::size_t>(count));
  const std::int64_t hidden = text.needed_integer("hidden_size", 32, kMaxWidth);
  out.add("embedding_length", hidden);
  out.add("attention.head_count", text.needed_integer("num_attention_heads", 1, 4096));
  out.add("attention.sliding_window", text.needed_integer("sliding_window", 1, 1 << 24));
  out.add("context_length", text.needed_integer("max_position_embeddings", 1, 1 << 28));
  out.add("feed_forward_length", text.needed_integer("intermediate_size", 32, 1 << 24));
  out.add("attention.layer_norm_rms_epsilon", text.needed_number("rms_norm_eps", 1e-12, 1e-2));
  if (const auto cap = text.number("final_logit_softcapping", 1e-3, 1e6))
    out.add("final_logit_softcapping", *cap);

  std::vector<std::int64_t> kv_heads;
  for (const Layer& layer : layers) {
    kv_heads.push_back(layer.kv_heads);
    config.sliding.push_back(layer.sliding);
  }
  const std::int64_t sliding_dim = shared_head_dim(text, layers, true);
  const std::int64_t full_dim = shared_head_dim(text, layers, false);
  config.full_head_dim = static_cast<std::uint32_t>(full_dim);
  out.add("attention.head_count_kv", MetadataArray(std::move(kv_heads)));
  out.add("attention.sliding_window_pattern", MetadataArray(config.sliding));
  out.add("attention.key_length", full_dim != 0 ? full_dim : sliding_dim);
  out.add("attention.key_length_swa", sliding_dim != 0 ? sliding_dim : full_dim);
  read_rope(text, out);
  // sqrt(hidden) is a bf16 tensor in the implementations that run these files.
  const auto root = std::sqrt(static_cast<float>(hidden));
  checkpoint.add_metadata("gem.embedding_multiplier", double{bf16_to_f32(f32_to_bf16(root))});

  require_text(text, "hidden_activation", "gelu_pytorch_tanh");
  require_flag(text, "attention_k_eq_v", true, "full layers with values apart from their keys");
  if (!text.has("attention_k_eq_v")) text.fail_missing("attention_k_eq_v");
  require_flag(text, "attention_bias", false, "attention projections with a bias");
  require_flag(text, "use_double_wide_mlp", false, "feed-forward layers of double width");
  // Both-way attention inside an image's rows does not touch text.
  if (const auto* both = text.find("use_bidirectional_attention"); both != nullptr && *both != false) {
    if (const auto what = text.string("use_bidirectional_attention"); *what != "vision")
      fail(ErrorCode::kRefused, "{} is {}, expected vision or null", text.name("use_bidirectional_attention"),
           shown(*what));
  }
  config.vocab = static_cast<std::uint32_t>(text.needed_integer("vocab_size", 1, 1 << 24));
  return true;
}

// Ids of one config, the later one over the earlier: config.json, its text part, generation_config.json.
std::optional<std::vector<std::int64_t>> ids_of(const JsonFields& fields, std::string_view key,
                                                const HfConfig& config) {
  return fields.integers(key, 0, std::int64_t{config.vocab} - 1);
}

}  // namespace

HfConfig read_hf_config(const JsonFields& config, Checkpoint& checkpoint) {
  HfConfig out;
  const std::vector<std::string> architectures =
      config.strings("architectures").value_or(std::vector<std::string>());
  const auto model_type = config.string("model_type");
  const bool dflash = config.has("dflash_config") ||
                      std::any_of(architectures.begin(), architectures.end(), [](const std::string& name) {
                        return name.find("DFlash") != std::string::npos;
                      });
  if (dflash) {
    checkpoint.add_metadata("general.architecture", std::string_view("dflash"));
    return out;
  }
  if (!model_type) config.fail_missing("model_type");
  const Kind* kind = kind_of(*model_type);
  if (kind == nullptr) {
    std::string name = *model_type;  // "gemma3_text" is Gemma 3 too
    if (name.ends_with("_text")) name.resize(name.size() - 5);
    checkpoint.add_metadata("general.architecture", checkpoint.keep(std::move(name)));
    return out;
  }
  out.known = true;
  out.assistant = kind->assistant;
  checkpoint.add_metadata("general.architecture",
                          std::string_view(kind->assistant ? "gemma4-assistant" : "gemma4"));
  checkpoint.add_metadata("gem.model_type", kind->model_type);
  const JsonFields text = kind->text_alone ? config : config.needed_object("text_config");
  if (!read_text(text, *kind, out, checkpoint)) {
    out.known = false;
    return out;
  }
  for (const JsonFields* fields : {&text, &config})
    require_flag(*fields, "tie_word_embeddings", true, "a head apart from the token table");
  if (kind->assistant) {
    checkpoint.add_metadata("gemma4-assistant.embedding_length_out",
                            config.needed_integer("backbone_hidden_size", 32, kMaxWidth));
    require_flag(config, "use_ordered_embeddings", false,
                 "an ordered head, as assistants of E2B and E4B have");
  }
  const auto bos = ids_of(text, "bos_token_id", out);
  if (bos && bos->size() == 1) checkpoint.add_metadata("tokenizer.ggml.bos_token_id", bos->front());
  auto end = ids_of(config, "eos_token_id", out);
  if (!end) end = ids_of(text, "eos_token_id", out);
  if (end) checkpoint.add_metadata("gem.end_tokens", MetadataArray(*end));
  return out;
}

void read_generation_config(const JsonFields& fields, const HfConfig& config, Checkpoint& checkpoint) {
  if (const auto end = ids_of(fields, "eos_token_id", config))
    checkpoint.set_metadata("gem.end_tokens", MetadataArray(*end));
  if (const auto ids = ids_of(fields, "suppress_tokens", config))
    checkpoint.set_metadata("tokenizer.ggml.suppress_tokens", MetadataArray(*ids));
  const auto temperature = fields.number("temperature", 0, 100);
  if (fields.boolean("do_sample") == false) {
    checkpoint.set_metadata("general.sampling.temp", 0.0);
  } else if (temperature) {
    checkpoint.set_metadata("general.sampling.temp", *temperature);
  }
  if (const auto k = fields.integer("top_k", 0, 1 << 24))
    checkpoint.set_metadata("general.sampling.top_k", *k);
  if (const auto p = fields.number("top_p", 0, 1)) checkpoint.set_metadata("general.sampling.top_p", *p);
  if (const auto p = fields.number("min_p", 0, 1)) checkpoint.set_metadata("general.sampling.min_p", *p);
  if (const auto p = fields.number("repetition_penalty", 0.01, 100))
    checkpoint.set_metadata("general.sampling.penalty_repeat", *p);
}

}  // namespace gem
