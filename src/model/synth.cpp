#include "model/synth.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/numbers.h"
#include "formats/gguf_writer.h"
#include "model/manifest.h"

namespace gem {
namespace {

// xorshift64*: fast enough to fill 7 GB in a few seconds.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }
  // Roughly normal: the sum of eight bytes has mean 1020 and deviation 209.
  float normal() {
    std::uint64_t x = next();
    int sum = 0;
    for (int i = 0; i < 8; ++i, x >>= 8) sum += static_cast<int>(x & 255);
    return static_cast<float>(sum - 1020) / 209.0f;
  }

 private:
  std::uint64_t state_;
};

// Blocks whose codes are drawn, not rounded from floats, all bits uniform. `scale`: the deviation of a value
// in units of the block's own scale. Uniform nibbles deviate by 4.61, five bits by 9.23, six by 18.5, bytes
// by 73.9; under a scale of six bits (0 .. 63) and less a minimum of six more they deviate by 258 and 527.
// `minimum`: that of a block that has one, in units of the scale, such that values are about zero.
struct DrawnBlock {
  StorageType type;
  float scale;
  std::size_t scale_at;  // an f16 in the block
  float minimum = 0;     // an f16 after it; 0: there is none
};
constexpr DrawnBlock kDrawn[] = {
    {StorageType::kQ4_0, 4.61f, 0},      {StorageType::kQ4_1, 4.61f, 0, -7.5f},
    {StorageType::kQ5_0, 9.23f, 0},      {StorageType::kQ5_1, 9.23f, 0, -15.5f},
    {StorageType::kQ8_0, 73.9f, 0},      {StorageType::kQ4_K, 258, 0, 7.5f},
    {StorageType::kQ5_K, 527, 0, 15.5f}, {StorageType::kQ6_K, 18.5f * 73.9f, 208}};
const DrawnBlock* drawn_block(StorageType type) {
  for (const DrawnBlock& b : kDrawn) {
    if (b.type == type) return &b;
  }
  return nullptr;
}

// `elements` random values of about that deviation.
std::vector<std::byte> random_elements(StorageType type, std::size_t elements, float deviation,
                                       Random& random) {
  std::vector<std::byte> out(*storage_bytes(type, elements));
  if (const DrawnBlock* drawn = drawn_block(type)) {
    const std::size_t block = storage_info(type).block_bytes;
    std::size_t i = 0;
    for (; i + 8 <= out.size(); i += 8) {
      const std::uint64_t bits = random.next();
      std::memcpy(out.data() + i, &bits, 8);
    }
    for (; i < out.size(); ++i) out[i] = static_cast<std::byte>(random.next() & 255);
    const float scale = deviation / drawn->scale;
    const std::uint16_t halves[2] = {f32_to_f16(scale), f32_to_f16(scale * drawn->minimum)};
    const std::size_t bytes = drawn->minimum != 0 ? 4 : 2;
    for (std::size_t b = drawn->scale_at; b < out.size(); b += block)
      std::memcpy(out.data() + b, halves, bytes);
    return out;
  }
  std::vector<float> values(elements);
  for (float& x : values) x = deviation * random.normal();
  quantize(type, values.data(), out.data(), elements);
  return out;
}

float vector_value(const std::string& name, const LayerGeometry* layer) {
  // Such that scores and branches stay in the range of a trained model: see "Initial values" in
  // docs/models.md.
  if (name.ends_with("attn_k_norm.weight")) return 1.5f / std::sqrt(static_cast<float>(layer->head_dim));
  if (name.ends_with("post_attention_norm.weight") || name.ends_with("post_ffw_norm.weight")) return 0.25f;
  if (name.ends_with("layer_output_scale.weight")) return 0.8f;
  return 1.0f;
}

// Gemma's control tokens, byte pieces and single ASCII characters at their ids; filler pieces elsewhere. The
// vocabulary is complete enough to encode any text, byte by byte where need be.
void add_vocabulary(GgufWriter& w, std::uint32_t vocab) {
  std::vector<std::string> tokens(vocab);
  std::vector<std::int32_t> types(vocab, 1);
  const auto put = [&](std::uint32_t id, std::string text, std::int32_t type) {
    if (id < vocab) {
      tokens[id] = std::move(text);
      types[id] = type;
    }
  };
  constexpr std::pair<std::uint32_t, const char*> kControl[] = {
      {0, "<pad>"},    {1, "<eos>"},      {2, "<bos>"},     {4, "<mask>"},   {46, "<|tool>"},
      {47, "<tool|>"}, {98, "<|think|>"}, {105, "<|turn>"}, {106, "<turn|>"}};
  constexpr std::pair<std::uint32_t, const char*> kUser[] = {
      {48, "<|tool_call>"}, {49, "<tool_call|>"}, {50, "<|tool_response>"}, {51, "<tool_response|>"},
      {52, "<|\"|>"},       {100, "<|channel>"},  {101, "<channel|>"}};
  for (const auto& [id, text] : kControl) put(id, text, 3);
  for (const auto& [id, text] : kUser) put(id, text, 4);
  put(3, "<unk>", 2);
  put(107, "\n", 1);
  for (std::uint32_t b = 0; b < 256; ++b) put(238 + b, fmt::format("<0x{:02X}>", b), 6);
  std::uint32_t id = 494;
  put(id++, "\xe2\x96\x81", 1);
  for (char c = '!'; c <= '~'; ++c) put(id++, std::string(1, c), 1);
  const std::uint32_t e = 494 + 1 + ('e' - '!');
  put(id++,
      "\xe2\x96\x81"
      "e",
      1);
  for (std::uint32_t i = 0; i < vocab; ++i) {
    if (tokens[i].empty()) tokens[i] = fmt::format("\xe2\x96\x81word{}", i);
  }
  w.add("tokenizer.ggml.model", std::string_view("gemma4"));
  w.add("tokenizer.ggml.tokens", tokens);
  w.add("tokenizer.ggml.scores", std::vector<float>(vocab, -1000.0f));
  w.add("tokenizer.ggml.token_type", types);
  w.add("tokenizer.ggml.merges", std::vector<std::string>{tokens[494] + " " + tokens[e]});
  w.add("tokenizer.ggml.bos_token_id", std::uint32_t{2});
  w.add("tokenizer.ggml.eos_token_id", std::uint32_t{106});
  w.add("tokenizer.ggml.unknown_token_id", std::uint32_t{3});
  w.add("tokenizer.ggml.padding_token_id", std::uint32_t{0});
  w.add("tokenizer.ggml.add_space_prefix", false);
  w.add("tokenizer.ggml.add_bos_token", true);
}

void add_geometry(GgufWriter& w, const Profile& profile) {
  const Geometry& g = profile.geometry;
  const bool assistant = profile.role == ModelRole::kAssistant;
  const std::string architecture = assistant ? "gemma4-assistant" : "gemma4";
  const auto key = [&](std::string_view name) { return architecture + "." + std::string(name); };
  const auto layers = static_cast<std::uint32_t>(g.layers.size());
  w.add("general.architecture", std::string_view(architecture));
  w.add("general.type", std::string_view("model"));
  w.add("general.name", "synthetic " + profile.title + " (random weights)");
  w.add("general.quantization_version", std::uint32_t{2});
  w.add(key("block_count"), layers);
  w.add(key("context_length"), g.context);
  w.add(key("embedding_length"), g.hidden);
  w.add(key("feed_forward_length"), g.ffn);
  w.add(key("attention.head_count"), g.heads);
  std::vector<std::int32_t> kv;
  std::vector<bool> sliding;
  for (const LayerGeometry& l : g.layers) {
    kv.push_back(static_cast<std::int32_t>(l.kv_heads));
    sliding.push_back(l.kind == LayerKind::kSliding);
  }
  w.add(key("attention.head_count_kv"), kv);
  w.add(key("attention.layer_norm_rms_epsilon"), g.norm_epsilon);
  const std::uint32_t full = g.layers.back().head_dim;
  const std::uint32_t swa = g.layers.front().head_dim;
  w.add(key("attention.key_length"), full);
  w.add(key("attention.value_length"), full);
  w.add(key("attention.key_length_swa"), swa);
  w.add(key("attention.value_length_swa"), swa);
  w.add(key("attention.sliding_window"), g.window);
  w.add(key("attention.sliding_window_pattern"), sliding);
  w.add(key("attention.shared_kv_layers"), assistant ? layers : 0);
  w.add(key("embedding_length_per_layer_input"), std::uint32_t{0});
  if (g.softcap > 0) w.add(key("final_logit_softcapping"), g.softcap);
  w.add(key("rope.freq_base"), static_cast<float>(g.rope_base_full));
  w.add(key("rope.freq_base_swa"), static_cast<float>(g.rope_base_sliding));
  w.add(key("rope.dimension_count"), full);
  w.add(key("rope.dimension_count_swa"), swa);
  if (assistant) {
    w.add(key("embedding_length_out"), profile.backbone);
    w.add(key("nextn_predict_layers"), layers);
  }
}

// "blk.7.attn_q.weight" -> layer 7
const LayerGeometry* layer_of(const std::string& name, const Geometry& g) {
  if (!name.starts_with("blk.")) return nullptr;
  return &g.layers[std::stoul(name.substr(4))];
}

}  // namespace

void write_synthetic(const Profile& profile, const std::string& path, const SynthOptions& options,
                     const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  for (const StorageType type : {options.matrices, options.table}) {
    if (drawn_block(type) == nullptr && !can_quantize(type))
      fail(ErrorCode::kUsage, "synth cannot write {}", storage_info(type).name);
  }
  const Geometry& g = profile.geometry;
  GgufWriter writer;
  add_geometry(writer, profile);
  add_vocabulary(writer, g.vocab);
  for (const ManifestEntry& e : make_manifest(profile)) {
    const StorageType type = e.role == TensorRole::kVector   ? StorageType::kF32
                             : e.name == "token_embd.weight" ? options.table
                                                             : options.matrices;
    writer.add_tensor(e.name, type, e.shape);
  }
  Random random(options.seed);
  std::uint64_t done = 0;
  writer.write(path, [&](const GgufWriter::Tensor& t, const GgufWriter::Sink& sink) {
    if (t.name == "rope_freqs.weight") {
      std::vector<float> divisors(t.shape[0], 1e30f);
      for (std::size_t i = 0; i < divisors.size() / 4; ++i) divisors[i] = 1.0f;
      sink(std::as_bytes(std::span(divisors)));
    } else if (t.shape.size() == 1) {
      std::vector<float> values(t.shape[0], vector_value(t.name, layer_of(t.name, g)));
      for (float& x : values) x *= 1 + 0.1f * random.normal();
      sink(std::as_bytes(std::span(values)));
    } else {
      const float deviation =
          t.name == "token_embd.weight" ? 0.02f : 1 / std::sqrt(static_cast<float>(t.shape[1]));
      constexpr std::uint64_t kRows = 256;  // a piece of at most 256 rows keeps memory small
      for (std::uint64_t r = 0; r < t.shape[0]; r += kRows) {
        const std::uint64_t rows = std::min(kRows, t.shape[0] - r);
        sink(random_elements(t.type, rows * t.shape[1], deviation, random));
      }
    }
    done += t.bytes;
    progress(done, writer.file_bytes());
  });
}

}  // namespace gem
