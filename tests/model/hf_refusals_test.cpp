// What a reader of Hugging Face and MLX folders refuses, by name: the checklist of section 9 of the format's
// notes and the admission rules of comparable servers, one case a line. Through the same door that a user
// takes, Model::load, so that it does not matter which layer says it.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "formats/hf_folder.h"
#include "model/model.h"

namespace gem {
namespace {

using testing::HfFolder;
using Json = nlohmann::json;

struct Case {
  const char* rule;     // what the case is one of
  const char* message;  // part of what is said; "admitted" where nothing is
  std::function<void(HfFolder&)> change;
};

std::string loaded(const Case& c) {
  HfFolder folder;
  c.change(folder);
  try {
    Model::load(folder.write(), {.any_geometry = true});
  } catch (const Error& e) {
    // A folder's fault, not the program's: a script can tell by the exit status.
    EXPECT_TRUE(e.code() == ErrorCode::kRefused || e.code() == ErrorCode::kBadFile) << c.rule << e.what();
    return e.what();
  }
  return "admitted";
}

// Sets a member of text_config.
auto text(const char* key, Json value) {
  return [=](HfFolder& f) { f.text()[key] = value; };
}
auto top(const char* key, Json value) {
  return [=](HfFolder& f) { f.config[key] = value; };
}
auto none(const char* core) {
  return [=](HfFolder& f) { f.files["model.safetensors"].erase(f.name(core)); };
}
auto tensor(const char* core, std::vector<std::uint64_t> shape, Dtype dtype = Dtype::kBF16) {
  return [=](HfFolder& f) { f.add(core, shape, dtype); };
}
// The down projection of layer 0 has 4 bits in groups of 32, as declared; then `change`.
auto affine(std::function<void(HfFolder&, Json& widths)> change) {
  return [=](HfFolder& f) {
    f.quantise("layers.0.mlp.down_proj", 4, 32);
    f.config["quantization"] = {{"group_size", 32}, {"bits", 4}};
    change(f, f.config["quantization"]);
  };
}
auto part(const char* suffix, std::vector<std::uint64_t> shape, Dtype dtype) {
  return affine(
      [=](HfFolder& f, Json&) { f.add(std::string("layers.0.mlp.down_proj") + suffix, shape, dtype); });
}
auto widths(const char* key, Json value) {
  return affine([=](HfFolder&, Json& w) { w[key] = value; });
}

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

const Case kCases[] = {
    {"sound", "admitted", [](HfFolder&) {}},
    {"sound, quantised", "admitted", affine([](HfFolder&, Json&) {})},

    {"1 model type", "the architecture is \"gemma5\"", top("model_type", "gemma5")},
    {"1 model type", "this is Gemma 3n", top("model_type", "gemma3n")},
    {"1 text type", "text_config.model_type is gemma4_unified_text",
     text("model_type", "gemma4_unified_text")},
    {"1 text type", "text_config.model_type is missing", [](HfFolder& f) { f.text().erase("model_type"); }},
    {"1 width", "blk.0.attn_q.weight", text("hidden_size", 64)},
    {"1 feed-forward width", "blk.0.ffn_gate.weight", text("intermediate_size", 128)},
    {"1 layers", "layer_types has 2 elements", text("num_hidden_layers", 3)},
    {"1 heads", "blk.0.attn_q.weight", text("num_attention_heads", 4)},
    {"1 heads shared unevenly", "cannot share", text("num_key_value_heads", 3)},
    {"1 KV heads", "blk.1.attn_k.weight", text("num_global_key_value_heads", 2)},
    {"1 head width", "blk.0.attn_q.weight", text("head_dim", 32)},
    {"1 head width of full layers", "blk.1.attn_q.weight", text("global_head_dim", 16)},
    {"1 epsilon", "rms_norm_eps", text("rms_norm_eps", 0.5)},
    {"1 activation", "hidden_activation is gelu, expected", text("hidden_activation", "gelu")},

    {"2 experts", "mixture of experts", text("enable_moe_block", true)},
    {"2 per-layer inputs", "per-layer embeddings", text("hidden_size_per_layer_input", 256)},
    {"2 shared keys", "shares keys and values between layers", text("num_kv_shared_layers", 1)},
    {"2 values apart", "attention_k_eq_v is false", text("attention_k_eq_v", false)},
    {"2 double width", "use_double_wide_mlp is true", text("use_double_wide_mlp", true)},
    {"2 biases", "attention_bias is true", text("attention_bias", true)},
    {"2 untied head", "tie_word_embeddings is false", top("tie_word_embeddings", false)},
    {"2 a DFlash drafter", "DFlash", top("architectures", {"DFlashDraftModel"})},

    {"3 missing", "blk.1.post_ffw_norm.weight: missing", none("layers.1.post_feedforward_layernorm.weight")},
    {"3 missing table", "token_embd.weight", none("embed_tokens.weight")},
    {"3 missing scalar", "blk.0.layer_output_scale.weight: missing", none("layers.0.layer_scalar")},
    {"3 missing values", "layers.0.self_attn.v_proj.weight is missing",
     none("layers.0.self_attn.v_proj.weight")},
    {"3 unexpected bias", "q_proj.bias", tensor("layers.0.self_attn.q_proj.bias", {32})},
    {"3 unexpected layer", "blk.2.ffn_up.weight: not part of",
     tensor("layers.2.mlp.up_proj.weight", {64, 32})},
    {"3 unexpected head", "lm_head.weight",
     [](HfFolder& f) {
       f.files["model.safetensors"]["lm_head.weight"] = HfFolder::make({16, 32}, Dtype::kBF16);
     }},
    {"3 unexpected anything", "model.language_model.extra",
     [](HfFolder& f) {
       f.files["model.safetensors"]["model.language_model.extra"] = HfFolder::make({1}, Dtype::kBF16);
     }},
    {"3 duplicated", "expected each once",
     [](HfFolder& f) {
       f.files["model-2.safetensors"][f.name("norm.weight")] = HfFolder::make({32}, Dtype::kBF16);
     }},
    {"3 duplicated by another name", "expected each once",
     [](HfFolder& f) {
       f.files["model.safetensors"]["language_model.model.norm.weight"] = HfFolder::make({32}, Dtype::kBF16);
     }},
    {"3 dtype", "has dtype I32", tensor("norm.weight", {32}, Dtype::kI32)},
    {"3 dtype", "has dtype F64", tensor("layers.0.mlp.up_proj.weight", {64, 32}, Dtype::kF64)},
    {"3 dtype", "has dtype F8_E4M3", tensor("layers.0.mlp.up_proj.weight", {64, 32}, Dtype::kF8E4M3)},
    {"3 codes without scales", "has dtype U32", tensor("layers.0.mlp.up_proj.weight", {64, 4}, Dtype::kU32)},
    {"3 rank", "blk.0.ffn_up.weight", tensor("layers.0.mlp.up_proj.weight", {64, 32, 1})},
    {"3 rank", "blk.0.ffn_up.weight", tensor("layers.0.mlp.up_proj.weight", {2048})},
    {"3 rank", "output_norm.weight", tensor("norm.weight", {1, 32})},
    {"3 rank", "blk.0.layer_output_scale.weight", tensor("layers.0.layer_scalar", {})},
    {"3 shape", "blk.0.ffn_up.weight", tensor("layers.0.mlp.up_proj.weight", {32, 64})},
    {"3 shape", "blk.0.attn_q_norm.weight", tensor("layers.0.self_attn.q_norm.weight", {32})},
    {"3 no rows", "blk.0.ffn_up.weight", tensor("layers.0.mlp.up_proj.weight", {0, 32})},
    {"3 words of codes", "expected [32, 4]", part(".weight", {32, 16}, Dtype::kU32)},
    {"3 words of codes", "no whole number of groups", part(".weight", {32, 7}, Dtype::kU32)},
    {"3 rows of codes", "expected [16, 2]", part(".weight", {16, 8}, Dtype::kU32)},
    {"3 flat codes", "expected a matrix", part(".weight", {256}, Dtype::kU32)},
    {"3 dtype of codes", "has dtype I32; expected U32", part(".weight", {32, 8}, Dtype::kI32)},
    {"3 dtype of scales", "has dtype U8; expected BF16, F16 or F32", part(".scales", {32, 2}, Dtype::kU8)},
    {"3 dtype of biases", "has dtype F32; expected BF16, as its scales",
     part(".biases", {32, 2}, Dtype::kF32)},
    {"3 shape of scales", "has shape [2, 32]; expected [32, 2]", part(".scales", {2, 32}, Dtype::kBF16)},
    {"3 shape of biases", "has shape [32, 1]; expected [32, 2]", part(".biases", {32, 1}, Dtype::kBF16)},
    {"3 rank of scales", "has shape [64]; expected [32, 2]", part(".scales", {64}, Dtype::kBF16)},
    {"3 no biases", "has no .biases beside it",
     affine([](HfFolder& f, Json&) { none("layers.0.mlp.down_proj.biases")(f); })},
    {"3 no scales", "layers.0.mlp.down_proj.scales beside it",
     affine([](HfFolder& f, Json&) { none("layers.0.mlp.down_proj.scales")(f); })},
    {"3 no codes", "layers.0.mlp.down_proj.weight beside it",
     affine([](HfFolder& f, Json&) { none("layers.0.mlp.down_proj.weight")(f); })},
    {"3 a norm with scales", "expected U32", affine([](HfFolder& f, Json&) {
       f.add("norm.scales", {1});
       f.add("norm.biases", {1});
     })},
    {"3 quantised, of another width", "blk.0.ffn_down.weight", affine([](HfFolder& f, Json&) {
       f.add("layers.0.mlp.down_proj.weight", {32, 4}, Dtype::kU32);
       f.add("layers.0.mlp.down_proj.scales", {32, 1});
       f.add("layers.0.mlp.down_proj.biases", {32, 1});
     })},

    {"4 width", "bits is 1, expected 2, 3, 4, 5, 6 or 8", widths("bits", 1)},
    {"4 width", "bits is 7, expected", widths("bits", 7)},
    {"4 width", "bits is 16, expected", widths("bits", 16)},
    {"4 width", "bits is -4, expected", widths("bits", -4)},
    {"4 width", "bits is 4294967300, expected", widths("bits", (std::int64_t{1} << 32) + 4)},
    {"4 group", "group_size is 16, expected 32, 64 or 128", widths("group_size", 16)},
    {"4 group", "group_size is 0, expected", widths("group_size", 0)},
    {"4 group", "group_size is 4294967328, expected", widths("group_size", (std::int64_t{1} << 32) + 32)},
    {"4 mode", "mode is mxfp4;", widths("mode", "mxfp4")},
    {"4 mode", "mode is mxfp8;", widths("mode", "mxfp8")},
    {"4 mode", "mode is nvfp4;", widths("mode", "nvfp4")},
    {"4 another method", "quant_method is gptq;", widths("quant_method", "gptq")},
    {"4 another method", "quant_method is awq;",
     top("quantization_config", {{"quant_method", "awq"}, {"bits", 4}})},
    {"4 unknown module", "which is no module of the files", widths("layers.9.mlp.up_proj", {{"bits", 8}})},
    {"4 unknown module", "which is no module of the files", widths("layers.0.mlp.up_porj", false)},
    {"4 unknown field", "unknown field zero_point",
     widths("layers.0.mlp.down_proj", {{"bits", 4}, {"zero_point", true}})},
    {"4 unknown field", "expected the widths of a module", widths("zero_point", 3)},
    {"4 no module", "there is no layers.0.mlp.up_proj.scales", widths("layers.0.mlp.up_proj", {{"bits", 4}})},
    {"4 declared plain", "says that it is not quantised", widths("layers.0.mlp.down_proj", false)},
    {"4 undeclared", "config.json declares no quantization",
     affine([](HfFolder& f, Json&) { f.config.erase("quantization"); })},
    {"4 aliases", "name the same module and disagree", affine([](HfFolder&, Json& w) {
       w["language_model.model.layers.0.mlp.down_proj"] = {{"bits", 4}, {"group_size", 32}};
       w["model.language_model.layers.0.mlp.down_proj"] = {{"bits", 6}, {"group_size", 32}};
     })},
    {"4 copies", "quantization_config disagree", affine([](HfFolder& f, Json& w) {
       f.config["quantization_config"] = w;
       f.config["quantization_config"]["bits"] = 8;
     })},
    // A stack whose members disagree is none here: every matrix is packed at its own width.
    {"4 members of a stack", "admitted", affine([](HfFolder& f, Json& w) {
       f.quantise("layers.0.mlp.gate_proj", 8, 32);
       w["layers.0.mlp.gate_proj"] = {{"bits", 8}, {"group_size", 32}};
     })},

    {"6 vocabulary", "vocab_size is 0, expected 1 to", text("vocab_size", 0)},
    {"6 vocabulary", "vocab_size is 15, but the token table has 16 rows", text("vocab_size", 15)},
    {"6 vocabulary", "vocab_size is 1099511627776, expected", text("vocab_size", kHuge)},
    {"6 vocabulary", "vocab_size is 16.0; expected an integer", text("vocab_size", 16.0)},
    {"6 window", "sliding_window is 0, expected 1 to", text("sliding_window", 0)},
    {"6 window", "sliding_window is -8, expected", text("sliding_window", -8)},
    {"6 window", "sliding_window is 1099511627776, expected", text("sliding_window", kHuge)},
    {"6 window", "sliding_window is missing", text("sliding_window", nullptr)},
    {"6 context", "max_position_embeddings is 0, expected", text("max_position_embeddings", 0)},
    {"6 context", "max_position_embeddings is -1, expected", text("max_position_embeddings", -1)},
    {"6 context", "max_position_embeddings is 1099511627776, expected",
     text("max_position_embeddings", kHuge)},
    {"6 end tokens", "eos_token_id is -1, expected 0 to 15", text("eos_token_id", -1)},
    {"6 end tokens", "eos_token_id is 16, expected 0 to 15", text("eos_token_id", 16)},
    {"6 end tokens", "eos_token_id is 4294967297, expected",
     top("eos_token_id", (std::int64_t{1} << 32) + 1)},
    {"6 end tokens", "eos_token_id is 16, expected", top("eos_token_id", {1, 16})},
    {"6 end tokens", "eos_token_id is \"1\"; expected", top("eos_token_id", "1")},
    {"6 end tokens", "eos_token_id is true; expected", top("eos_token_id", true)},
    {"6 first token", "bos_token_id is 16, expected 0 to 15", text("bos_token_id", 16)},
    {"6 first token", "bos_token_id is -2, expected", text("bos_token_id", -2)},
    {"6 generation's ids", "generation_config.json: eos_token_id is 99, expected",
     [](HfFolder& f) { f.text_file("generation_config.json", R"({"eos_token_id": [1, 99]})"); }},
    {"6 generation's ids", "suppress_tokens is -1, expected",
     [](HfFolder& f) { f.text_file("generation_config.json", R"({"suppress_tokens": [-1]})"); }},
    {"6 generation's numbers", "top_k is -1, expected",
     [](HfFolder& f) { f.text_file("generation_config.json", R"({"top_k": -1})"); }},
    {"6 generation's numbers", "temperature is -0.5, expected",
     [](HfFolder& f) { f.text_file("generation_config.json", R"({"temperature": -0.5})"); }},
    {"6 layers", "num_hidden_layers is 1099511627776, expected", text("num_hidden_layers", kHuge)},
    {"6 layers", "num_hidden_layers is 0, expected", text("num_hidden_layers", 0)},
    {"6 heads", "num_attention_heads is 0, expected", text("num_attention_heads", 0)},
    {"6 KV heads", "num_key_value_heads is 0, expected", text("num_key_value_heads", 0)},
    {"6 RoPE", "rope_theta is 0",
     [](HfFolder& f) { f.text()["rope_parameters"]["full_attention"]["rope_theta"] = 0; }},
    {"6 RoPE", "rope_parameters is missing", text("rope_parameters", nullptr)},
    {"6 cap", "final_logit_softcapping is 0", text("final_logit_softcapping", 0)},
};

TEST(HfRefusals, EachByItsOwnName) {
  for (const Case& c : kCases) {
    const std::string said = loaded(c);
    EXPECT_NE(said.find(c.message), std::string::npos)
        << c.rule << ": expected \"" << c.message << "\", found: " << said;
  }
}

}  // namespace
}  // namespace gem
