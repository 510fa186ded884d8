#include "model/profile.h"

#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/numbers.h"

namespace gem {
namespace {

constexpr std::uint32_t kVocab = 262144;

struct Sizes {
  std::uint32_t hidden, ffn, layers, heads, window, vocab, context;
  LayerGeometry sliding, full;
};

// Five sliding layers, then one full layer, and so on; a full layer comes last.
Geometry trunk(const Sizes& s, float multiplier) {
  Geometry g;
  g.hidden = s.hidden;
  g.ffn = s.ffn;
  g.heads = s.heads;
  g.window = s.window;
  g.vocab = s.vocab;
  g.context = s.context;
  g.norm_epsilon = 1e-6f;
  g.softcap = 30;
  g.embedding_multiplier = multiplier;
  g.rope_base_sliding = 1e4;
  g.rope_base_full = 1e6;
  for (std::uint32_t i = 0; i < s.layers; ++i) g.layers.push_back(i % 6 == 5 ? s.full : s.sliding);
  return g;
}

Sizes sizes(std::uint32_t hidden, std::uint32_t ffn, std::uint32_t layers, std::uint32_t heads,
            std::uint32_t window, std::uint32_t vocab, std::uint32_t context, std::uint32_t head_dim,
            std::uint32_t kv_sliding, std::uint32_t kv_full) {
  return {hidden,
          ffn,
          layers,
          heads,
          window,
          vocab,
          context,
          {LayerKind::kSliding, head_dim, kv_sliding, false},
          {LayerKind::kFull, 2 * head_dim, kv_full, true}};
}

// Four layers, three sliding and one full, that read the target's keys and values.
Profile assistant(const Profile& target, std::uint32_t hidden, std::uint32_t ffn) {
  Profile p;
  p.name = target.name + "-assistant";
  p.title = target.title + " MTP assistant";
  p.role = ModelRole::kAssistant;
  p.backbone = target.geometry.hidden;
  p.geometry = target.geometry;
  p.geometry.hidden = hidden;
  p.geometry.ffn = ffn;
  p.geometry.softcap = 0;
  p.geometry.embedding_multiplier = std::sqrt(static_cast<float>(hidden));
  const LayerGeometry& sliding = target.geometry.layers.front();
  const LayerGeometry& full = target.geometry.layers.back();
  p.geometry.layers = {sliding, sliding, sliding, full};
  return p;
}

std::vector<Profile> make_profiles() {
  std::vector<Profile> all;
  const auto add = [&](const char* name, const char* title, const Sizes& s) {
    all.push_back({name, title, ModelRole::kTrunk, trunk(s, std::sqrt(static_cast<float>(s.hidden))), 0});
  };
  add("12b", "Gemma 4 12B", sizes(3840, 15360, 48, 16, 1024, kVocab, 262144, 256, 8, 1));
  add("31b", "Gemma 4 31B", sizes(5376, 21504, 60, 32, 1024, kVocab, 262144, 256, 16, 4));
  add("demo", "gem demo (19 M)", sizes(384, 896, 12, 6, 128, 4096, 4096, 64, 2, 1));
  all.push_back(assistant(all[0], 1024, 8192));
  all.push_back(assistant(all[1], 1024, 8192));
  all.push_back(assistant(all[2], 128, 256));
  return all;
}

// The models of the family that gem knows but does not serve, told apart by their layer counts.
struct Unserved {
  std::int64_t layers;
  const char* title;
};
constexpr std::array kUnserved = {Unserved{35, "Gemma 4 E2B"}, Unserved{42, "Gemma 4 E4B"},
                                  Unserved{30, "Gemma 4 26B-A4B"}};
constexpr const char* kServed = "gem serves Gemma 4 12B and 31B, their MTP assistants and its demo model";

// Reads one model's keys, every integer checked before it is narrowed.
class Keys {
 public:
  Keys(const Checkpoint& checkpoint, std::string prefix) : c_(checkpoint), prefix_(std::move(prefix)) {}

  std::string name(const char* key) const { return prefix_ + "." + key; }

  std::optional<std::uint32_t> optional_integer(const char* key, std::int64_t low, std::int64_t high) const {
    const auto value = c_.integer(name(key));
    if (!value) return std::nullopt;
    return checked(key, *value, low, high);
  }
  std::uint32_t integer(const char* key, std::int64_t low, std::int64_t high) const {
    const auto value = optional_integer(key, low, high);
    if (!value) missing(key);
    return *value;
  }
  double number(const char* key, double low, double high) const {
    const auto value = c_.number(name(key));
    if (!value) missing(key);
    if (!(*value >= low && *value <= high)) {
      fail(ErrorCode::kRefused, "{} is {}, expected a number from {} to {}", name(key), *value, low, high);
    }
    return *value;
  }
  // One value a layer: a scalar stands for all, an array must have exactly `layers` elements.
  std::vector<std::uint32_t> per_layer(const char* key, std::size_t layers, std::int64_t low,
                                       std::int64_t high) const {
    const auto values = c_.integers(name(key));
    if (!values) missing(key);
    if (values->size() != layers && values->size() != 1) {
      fail(ErrorCode::kRefused, "{} has {} elements, expected one for each of the {} layers", name(key),
           values->size(), layers);
    }
    std::vector<std::uint32_t> out;
    for (std::size_t i = 0; i < layers; ++i) {
      out.push_back(checked(key, (*values)[values->size() == 1 ? 0 : i], low, high));
    }
    return out;
  }
  [[noreturn]] void missing(const char* key) const {
    fail(ErrorCode::kRefused, "the key {} is missing", name(key));
  }

 private:
  std::uint32_t checked(const char* key, std::int64_t value, std::int64_t low, std::int64_t high) const {
    if (value < low || value > high) {
      fail(ErrorCode::kRefused, "{} is {}, expected {} to {}", name(key), value, low, high);
    }
    return static_cast<std::uint32_t>(value);
  }

  const Checkpoint& c_;
  std::string prefix_;
};

// true = sliding. An array of bools, or a number n: every n-th layer is full.
std::vector<bool> read_pattern(const Checkpoint& c, const Keys& keys, std::size_t layers) {
  const std::string name = keys.name("attention.sliding_window_pattern");
  const MetadataValue* value = c.find(name);
  if (value == nullptr) keys.missing("attention.sliding_window_pattern");
  std::vector<bool> pattern;
  if (std::holds_alternative<std::int64_t>(*value) || std::holds_alternative<std::uint64_t>(*value)) {
    const std::uint32_t n = keys.integer("attention.sliding_window_pattern", 1, 1024);
    for (std::size_t i = 0; i < layers; ++i) pattern.push_back(i % n != n - 1);
    return pattern;
  }
  pattern = *c.booleans(name);
  if (pattern.size() != layers) {
    fail(ErrorCode::kRefused, "{} has {} elements, expected one for each of the {} layers", name,
         pattern.size(), layers);
  }
  return pattern;
}

// What the token table's rows are multiplied with: sqrt(hidden) in f32 as GGUF files are run, or the same
// rounded to bf16 where the checkpoint says that it was run so.
float read_multiplier(const Checkpoint& c, std::uint32_t hidden) {
  const float root = std::sqrt(static_cast<float>(hidden));
  const auto own = c.number("gem.embedding_multiplier");
  if (!own) return root;
  const float rounded = bf16_to_f32(f32_to_bf16(root));
  if (*own != double{root} && *own != double{rounded})
    fail(ErrorCode::kRefused, "gem.embedding_multiplier is {}, expected {} or {}", *own, root, rounded);
  return static_cast<float>(*own);
}

// The geometry that the metadata describes, consistent in itself.
Profile read_geometry(const Checkpoint& c, ModelRole role) {
  const Keys keys(c, role == ModelRole::kAssistant ? "gemma4-assistant" : "gemma4");
  Profile p;
  p.name = "custom";
  p.title = role == ModelRole::kAssistant ? "a Gemma 4 assistant of no known geometry"
                                          : "a Gemma 4 model of no known geometry";
  p.role = role;
  Geometry& g = p.geometry;
  const std::uint32_t layers = keys.integer("block_count", 1, 1024);
  g.hidden = keys.integer("embedding_length", 32, 1 << 20);
  g.heads = keys.integer("attention.head_count", 1, 4096);
  g.window = keys.integer("attention.sliding_window", 1, 1 << 24);
  g.context = keys.integer("context_length", 1, 1 << 28);
  const std::vector<std::uint32_t> ffn = keys.per_layer("feed_forward_length", layers, 32, 1 << 24);
  for (const std::uint32_t width : ffn) {
    if (width != ffn.front()) {
      fail(ErrorCode::kRefused, "{} differs between layers ({} and {}), expected one width",
           keys.name("feed_forward_length"), ffn.front(), width);
    }
  }
  g.ffn = ffn.front();
  const std::vector<std::uint32_t> kv = keys.per_layer("attention.head_count_kv", layers, 1, 4096);
  const std::vector<bool> sliding = read_pattern(c, keys, layers);
  const std::uint32_t full_dim = keys.integer("attention.key_length", 2, 4096);
  const std::uint32_t sliding_dim = keys.integer("attention.key_length_swa", 2, 4096);
  if (const auto d = keys.optional_integer("attention.value_length", 0, 4096); d && *d != full_dim) {
    fail(ErrorCode::kRefused, "{} is {}, expected {}", keys.name("attention.value_length"), *d, full_dim);
  }
  if (const auto d = keys.optional_integer("attention.value_length_swa", 0, 4096); d && *d != sliding_dim) {
    fail(ErrorCode::kRefused, "{} is {}, expected {}", keys.name("attention.value_length_swa"), *d,
         sliding_dim);
  }
  if (const auto d = keys.optional_integer("rope.dimension_count", 0, 4096); d && *d != full_dim) {
    fail(ErrorCode::kRefused, "{} is {}, expected {}", keys.name("rope.dimension_count"), *d, full_dim);
  }
  if (const auto d = keys.optional_integer("rope.dimension_count_swa", 0, 4096); d && *d != sliding_dim) {
    fail(ErrorCode::kRefused, "{} is {}, expected {}", keys.name("rope.dimension_count_swa"), *d,
         sliding_dim);
  }
  for (std::uint32_t i = 0; i < layers; ++i) {
    LayerGeometry l;
    l.kind = sliding[i] ? LayerKind::kSliding : LayerKind::kFull;
    l.head_dim = sliding[i] ? sliding_dim : full_dim;
    l.kv_heads = kv[i];
    if (g.heads % l.kv_heads != 0) {
      fail(ErrorCode::kRefused, "layer {}: {} query heads cannot share {} KV heads evenly", i, g.heads,
           l.kv_heads);
    }
    if (l.head_dim % 2 != 0) fail(ErrorCode::kRefused, "layer {}: head width {} is odd", i, l.head_dim);
    // Layers without a V projection take the values from K; a trunk's tensors tell which.
    l.value_from_key = role == ModelRole::kAssistant
                           ? !sliding[i]
                           : c.tensor(fmt::format("blk.{}.attn_v.weight", i)) == nullptr;
    g.layers.push_back(l);
  }
  g.norm_epsilon = static_cast<float>(keys.number("attention.layer_norm_rms_epsilon", 1e-12, 1e-2));
  g.rope_base_full = keys.number("rope.freq_base", 1, 1e12);
  g.rope_base_sliding =
      c.find(keys.name("rope.freq_base_swa")) != nullptr ? keys.number("rope.freq_base_swa", 1, 1e12) : 1e4;
  g.softcap = c.find(keys.name("final_logit_softcapping")) != nullptr
                  ? static_cast<float>(keys.number("final_logit_softcapping", 1e-3, 1e6))
                  : 0.0f;
  g.embedding_multiplier = read_multiplier(c, g.hidden);
  const TensorView* table = c.tensor("token_embd.weight");
  if (table == nullptr) fail(ErrorCode::kRefused, "the tensor token_embd.weight is missing");
  if (table->shape.size() != 2 || table->shape[0] < 1 || table->shape[0] > (1u << 24)) {
    fail(ErrorCode::kRefused, "the tensor token_embd.weight has no vocabulary dimension of 1 to {}", 1 << 24);
  }
  g.vocab = static_cast<std::uint32_t>(table->shape[0]);
  if (role == ModelRole::kAssistant) p.backbone = keys.integer("embedding_length_out", 32, 1 << 20);
  return p;
}

// Refuses what belongs to other models of the family, by their names.
void refuse_relatives(const Checkpoint& c, const std::string& prefix) {
  const auto layers = c.integer(prefix + ".block_count").value_or(0);
  const bool trunk = prefix == "gemma4";
  if (trunk) {
    for (const Unserved& model : kUnserved) {
      if (model.layers == layers)
        fail(ErrorCode::kRefused, "this is {} ({} layers), which gem does not serve yet; {}", model.title,
             layers, kServed);
    }
  }
  if (c.integer(prefix + ".expert_count").value_or(0) > 0) {
    fail(ErrorCode::kRefused,
         "this is a mixture of experts ({}.expert_count is {}), which gem does not serve yet; {}", prefix,
         *c.integer(prefix + ".expert_count"), kServed);
  }
  if (c.integer(prefix + ".embedding_length_per_layer_input").value_or(0) > 0) {
    fail(ErrorCode::kRefused,
         "this model has per-layer embeddings ({}.embedding_length_per_layer_input), as E2B and E4B do, "
         "which gem does not serve yet; {}",
         prefix, kServed);
  }
  if (trunk && c.integer(prefix + ".attention.shared_kv_layers").value_or(0) > 0) {
    fail(ErrorCode::kRefused,
         "this model shares keys and values between layers ({}.attention.shared_kv_layers), as E2B and E4B "
         "do, which gem does not serve yet; {}",
         prefix, kServed);
  }
  if (!trunk && c.tensor("masked_embd_centroids.weight") != nullptr) {
    fail(ErrorCode::kRefused,
         "this assistant has an ordered head (masked_embd_centroids), as those of E2B and E4B do, which gem "
         "does not serve yet; {}",
         kServed);
  }
}

[[noreturn]] void refuse_architecture(std::string_view architecture) {
  struct Named {
    const char* architecture;
    const char* title;
  };
  constexpr std::array kNamed = {Named{"gemma3", "Gemma 3"}, Named{"gemma3n", "Gemma 3n"},
                                 Named{"gemma2", "Gemma 2"}, Named{"gemma", "Gemma"},
                                 Named{"dflash", "a DFlash drafter"}};
  for (const Named& n : kNamed) {
    if (architecture == n.architecture)
      fail(ErrorCode::kRefused, "this is {} (general.architecture {}); {}", n.title, architecture, kServed);
  }
  fail(ErrorCode::kRefused, "the architecture is {:?}, expected gemma4; {}", architecture, kServed);
}

// The first difference between what was read and a known profile, as "what is A, expected B"; empty when
// none.
std::string difference(const Profile& found, const Profile& known) {
  const Geometry& a = found.geometry;
  const Geometry& b = known.geometry;
  std::string text;
  const auto compare = [&](const char* what, auto x, auto y) {
    if (text.empty() && x != y) text = fmt::format("{} is {}, expected {}", what, x, y);
  };
  compare("the number of layers", a.layers.size(), b.layers.size());
  compare("the hidden width", a.hidden, b.hidden);
  compare("the target's hidden width", found.backbone, known.backbone);
  compare("the feed-forward width", a.ffn, b.ffn);
  compare("the number of query heads", a.heads, b.heads);
  compare("the sliding window", a.window, b.window);
  compare("the vocabulary", a.vocab, b.vocab);
  compare("the context length", a.context, b.context);
  compare("the norm epsilon", a.norm_epsilon, b.norm_epsilon);
  compare("the logit soft cap", a.softcap, b.softcap);
  compare("the RoPE base of sliding layers", a.rope_base_sliding, b.rope_base_sliding);
  compare("the RoPE base of full layers", a.rope_base_full, b.rope_base_full);
  for (std::size_t i = 0; text.empty() && i < a.layers.size(); ++i) {
    const std::string layer = fmt::format("layer {}: ", i);
    const auto kind = [](const LayerGeometry& l) {
      return l.kind == LayerKind::kSliding ? "sliding" : "full";
    };
    compare((layer + "the attention").c_str(), std::string(kind(a.layers[i])),
            std::string(kind(b.layers[i])));
    compare((layer + "the head width").c_str(), a.layers[i].head_dim, b.layers[i].head_dim);
    compare((layer + "the number of KV heads").c_str(), a.layers[i].kv_heads, b.layers[i].kv_heads);
  }
  return text;
}

// The two sizes have model types of their own, where a checkpoint has one at all.
void check_model_type(const Checkpoint& c, const Profile& known) {
  const auto type = c.string("gem.model_type");
  if (!type || known.role != ModelRole::kTrunk) return;
  const bool unified = type->starts_with("gemma4_unified");
  if ((known.name == "12b" && !unified) || (known.name == "31b" && unified))
    fail(ErrorCode::kRefused, "the model_type is {}, but the geometry is {}'s, whose model_type is {}", *type,
         known.title, unified ? "gemma4" : "gemma4_unified");
}

}  // namespace

std::span<const Profile> known_profiles() {
  static const std::vector<Profile> kProfiles = make_profiles();
  return kProfiles;
}

const Profile* find_profile(std::string_view name) {
  for (const Profile& profile : known_profiles()) {
    if (profile.name == name) return &profile;
  }
  return nullptr;
}

Profile read_profile(const Checkpoint& checkpoint, const AdmissionOptions& options) {
  const auto architecture = checkpoint.string("general.architecture");
  if (!architecture) fail(ErrorCode::kRefused, "the key general.architecture is missing");
  if (*architecture != "gemma4" && *architecture != "gemma4-assistant") refuse_architecture(*architecture);
  const ModelRole role = *architecture == "gemma4" ? ModelRole::kTrunk : ModelRole::kAssistant;
  refuse_relatives(checkpoint, std::string(*architecture));
  Profile found = read_geometry(checkpoint, role);
  const Profile* nearest = nullptr;  // the profile of the same size, to say what differs
  for (const Profile& known : known_profiles()) {
    if (known.role != role) continue;
    // Where V comes from is not compared: the profile says, and the manifest names missing or extra tensors.
    if (difference(found, known).empty()) {
      check_model_type(checkpoint, known);
      Profile admitted = known;
      admitted.geometry.embedding_multiplier = found.geometry.embedding_multiplier;
      return admitted;
    }
    const bool same_size = role == ModelRole::kTrunk
                               ? known.geometry.layers.size() == found.geometry.layers.size()
                               : known.backbone == found.backbone;
    if (same_size && (nearest == nullptr || known.geometry.hidden == found.geometry.hidden)) nearest = &known;
  }
  if (options.any_geometry) return found;
  if (nearest != nullptr)
    fail(ErrorCode::kRefused, "this is not {}: {} (--any-geometry admits it all the same)", nearest->title,
         difference(found, *nearest));
  fail(ErrorCode::kRefused,
       "a Gemma 4 model of {} layers and hidden width {} is none that gem knows; {} (--any-geometry admits "
       "it all the same)",
       found.geometry.layers.size(), found.geometry.hidden, kServed);
}

}  // namespace gem
