// A small checkpoint folder as Hugging Face and MLX lay them out, for tests to change and write.
#pragma once

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder.h"

namespace gem::testing {

struct HfTensor {
  Dtype dtype;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
};

// Two layers (sliding, full), width 32, 2 heads, vocabulary 16; matrices of bf16 bytes that count up.
class HfFolder {
 public:
  nlohmann::json config;
  std::map<std::string, std::map<std::string, HfTensor>> files;  // by file name

  explicit HfFolder(std::string prefix = "model.language_model.") : prefix_(std::move(prefix)) {
    config = nlohmann::json::parse(R"({
      "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": true,
      "text_config": {
        "model_type": "gemma4_text", "vocab_size": 16, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "global_head_dim": 32, "num_global_key_value_heads": 1, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": "vision", "attention_k_eq_v": true, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0, "enable_moe_block": false, "bos_token_id": 2, "eos_token_id": 1,
        "rope_parameters": {
          "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
          "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}
        }
      }})");
    add("embed_tokens.weight", {16, 32});
    add("norm.weight", {32});
    for (int i = 0; i < 2; ++i) {
      const std::string l = "layers." + std::to_string(i) + ".";
      const std::uint64_t d = i == 0 ? 16 : 32;
      for (const char* norm : {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                               "post_feedforward_layernorm"})
        add(l + norm + ".weight", {32});
      add(l + "layer_scalar", {1});
      add(l + "self_attn.q_proj.weight", {2 * d, 32});
      add(l + "self_attn.k_proj.weight", {d, 32});
      if (i == 0) add(l + "self_attn.v_proj.weight", {d, 32});
      add(l + "self_attn.o_proj.weight", {32, 2 * d});
      add(l + "self_attn.q_norm.weight", {d});
      add(l + "self_attn.k_norm.weight", {d});
      add(l + "mlp.gate_proj.weight", {64, 32});
      add(l + "mlp.up_proj.weight", {64, 32});
      add(l + "mlp.down_proj.weight", {32, 64});
    }
  }

  nlohmann::json& text() { return config["text_config"]; }
  std::string name(const std::string& core) const { return prefix_ + core; }
  HfTensor& tensor(const std::string& core) { return files["model.safetensors"].at(name(core)); }

  void add(const std::string& core, std::vector<std::uint64_t> shape, Dtype dtype = Dtype::kBF16) {
    files["model.safetensors"][name(core)] = make(std::move(shape), dtype);
  }
  static HfTensor make(std::vector<std::uint64_t> shape, Dtype dtype) {
    std::uint64_t bytes = dtype_bytes(dtype);
    for (const std::uint64_t extent : shape) bytes *= extent;
    HfTensor tensor{dtype, std::move(shape), std::vector<std::byte>(bytes)};
    for (std::size_t i = 0; i < bytes; ++i)  // as bf16: 1.0 to 1.98
      tensor.bytes[i] = i % 2 == 0 ? static_cast<std::byte>(0x80 | (i / 2 % 128)) : std::byte{0x3f};
    return tensor;
  }
  // Replaces a module's matrix by codes with scales and biases.
  void quantise(const std::string& module, std::uint64_t bits, std::uint64_t group,
                Dtype scales = Dtype::kBF16) {
    const std::vector<std::uint64_t> shape = tensor(module + ".weight").shape;
    add(module + ".weight", {shape[0], shape[1] * bits / 32}, Dtype::kU32);
    add(module + ".scales", {shape[0], shape[1] / group}, scales);
    add(module + ".biases", {shape[0], shape[1] / group}, scales);
  }
  // Moves a tensor into another file.
  void move(const std::string& core, const std::string& file) {
    files[file][name(core)] = tensor(core);
    files["model.safetensors"].erase(name(core));
  }
  void text_file(const std::string& name, const std::string& text) { texts_[name] = text; }

  // Writes everything and gives the folder's path.
  std::string write() {
    texts_.try_emplace("config.json", config.dump());
    for (const auto& [name, text] : texts_) std::ofstream(folder_.file(name)) << text;
    for (const auto& [file, tensors] : files) {
      std::vector<SafetensorsEntry> entries;
      for (const auto& [name, t] : tensors) entries.push_back({name, t.dtype, t.shape, t.bytes});
      write_safetensors(folder_.file(file), entries);
    }
    return folder_.file("");
  }
  // What opening says; "opened" when it does.
  std::string refusal() {
    try {
      open_checkpoint(write());
    } catch (const Error& e) {
      return e.code() == ErrorCode::kRefused || e.code() == ErrorCode::kBadFile ? e.what() : "wrong code";
    }
    return "opened";
  }

 private:
  std::string prefix_;
  TemporaryFolder folder_;
  std::map<std::string, std::string> texts_;
};

}  // namespace gem::testing
