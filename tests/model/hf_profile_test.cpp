// config.json of the published models (spellings and sizes from their public descriptions) -> profiles.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/hf_config.h"
#include "model/manifest.h"
#include "model/profile.h"

namespace gem {
namespace {

using Json = nlohmann::json;

struct Sizes {
  int hidden, ffn, layers, heads, kv, global_kv;
};
constexpr Sizes k12b = {3840, 15360, 48, 16, 8, 1};
constexpr Sizes k31b = {5376, 21504, 60, 32, 16, 4};

Json text_config(const char* type, const Sizes& s) {
  Json text = Json::parse(R"({
    "attention_k_eq_v": true, "attention_bias": false, "bos_token_id": 2, "eos_token_id": 1,
    "enable_moe_block": false, "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262144, "num_kv_shared_layers": 0, "rms_norm_eps": 1e-06,
    "rope_parameters": {
      "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
      "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}
    },
    "sliding_window": 1024, "tie_word_embeddings": true, "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": false, "vocab_size": 262144
  })");
  text["model_type"] = type;
  text["hidden_size"] = s.hidden;
  text["intermediate_size"] = s.ffn;
  text["num_hidden_layers"] = s.layers;
  text["num_attention_heads"] = s.heads;
  text["num_key_value_heads"] = s.kv;
  text["num_global_key_value_heads"] = s.global_kv;
  for (int i = 0; i < s.layers; ++i)
    text["layer_types"].push_back(i % 6 == 5 ? "full_attention" : "sliding_attention");
  return text;
}

Json model(const char* type, const char* text_type, const Sizes& s) {
  return {{"model_type", type}, {"text_config", text_config(text_type, s)}};
}

Json assistant(const char* type, const char* text_type, const Sizes& target) {
  Json config = {{"model_type", type},
                 {"backbone_hidden_size", target.hidden},
                 {"use_ordered_embeddings", false},
                 {"text_config", text_config(text_type, target)}};
  Json& text = config["text_config"];
  text["hidden_size"] = 1024;
  text["intermediate_size"] = 8192;
  text["num_hidden_layers"] = 4;
  text["num_kv_shared_layers"] = 4;
  text["final_logit_softcapping"] = nullptr;
  text["layer_types"] = {"sliding_attention", "sliding_attention", "sliding_attention", "full_attention"};
  return config;
}

Profile profile_of(const Json& config) {
  Checkpoint checkpoint;
  read_hf_config(JsonFields(config, "config.json"), checkpoint);
  const Json* text = config.contains("text_config") ? &config["text_config"] : &config;
  // The tensors are not looked at but for the table's rows, which are the vocabulary.
  checkpoint.add_tensor(
      {"token_embd.weight",
       StorageType::kBF16,
       {text->value("vocab_size", std::uint64_t{1}), text->value("hidden_size", std::uint64_t{1})},
       {},
       {}});
  return read_profile(checkpoint, {});
}

std::string refusal(const Json& config) {
  try {
    profile_of(config);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kRefused) << e.what();
    return e.what();
  }
  return "admitted";
}
#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(HfProfile, ThePublishedModels) {
  const Profile p12 = profile_of(model("gemma4_unified", "gemma4_unified_text", k12b));
  EXPECT_EQ(p12.name, "12b");
  EXPECT_EQ(p12.geometry.embedding_multiplier, 62.0f);  // sqrt(3840) = 61.97 in bf16
  const Profile p31 = profile_of(model("gemma4", "gemma4_text", k31b));
  EXPECT_EQ(p31.name, "31b");
  EXPECT_EQ(p31.geometry.embedding_multiplier, 73.5f);  // sqrt(5376) = 73.32 in bf16
  EXPECT_EQ(make_manifest(p12).size(), 667u);
  EXPECT_EQ(make_manifest(p31).size(), 833u);
  for (const char* type : {"gemma4_assistant", "gemma4_unified_assistant"}) {
    const char* text = type == std::string("gemma4_assistant") ? "gemma4_text" : "gemma4_unified_text";
    EXPECT_EQ(profile_of(assistant(type, text, k12b)).name, "12b-assistant");
    EXPECT_EQ(profile_of(assistant(type, text, k31b)).name, "31b-assistant");
  }
}

TEST(HfProfile, PerLayerConfigInPlaceOfTheGlobalFields) {
  Json config = model("gemma4", "gemma4_text", k31b);
  Json& text = config["text_config"];
  text.erase("global_head_dim");
  text.erase("num_global_key_value_heads");
  for (int i = 5; i < 60; i += 6)
    text["per_layer_config"][fmt::format("{:02}", i)] = {{"head_dim", 512}, {"num_key_value_heads", 4}};
  EXPECT_EQ(profile_of(config).name, "31b");
  text["per_layer_config"]["11"]["num_key_value_heads"] = 2;
  EXPECT_HAS(refusal(config), "layer 11: the number of KV heads is 2, expected 4");
  text["per_layer_config"]["11"]["head_dim"] = 256;
  EXPECT_HAS(refusal(config), "full layers have head widths of 512 and 256");
}

TEST(HfProfile, ASizeThatDiffersIsNamed) {
  const std::pair<const char*, Json> kChanges[] = {
      {"hidden_size", 3841},
      {"intermediate_size", 15361},
      {"num_attention_heads", 32},
      {"head_dim", 128},
      {"global_head_dim", 256},
      {"num_key_value_heads", 4},
      {"sliding_window", 512},
      {"max_position_embeddings", 131072},
      {"final_logit_softcapping", nullptr},
      {"rms_norm_eps", 1e-5},
      {"vocab_size", 262143},
      {"num_global_key_value_heads", 2},
  };
  for (const auto& [field, value] : kChanges) {
    Json config = model("gemma4_unified", "gemma4_unified_text", k12b);
    config["text_config"][field] = value;
    EXPECT_HAS(refusal(config), "this is not Gemma 4 12B") << field;
  }
}

TEST(HfProfile, TheModelTypePicksTheGeometry) {
  EXPECT_HAS(refusal(model("gemma4", "gemma4_text", k12b)), "whose model_type is gemma4_unified");
  EXPECT_HAS(refusal(model("gemma4_unified", "gemma4_unified_text", k31b)), "whose model_type is gemma4");
}

TEST(HfProfile, RelativesAreRefusedByName) {
  Json moe = model("gemma4", "gemma4_text", {2816, 2112, 30, 16, 8, 2});
  moe["text_config"]["enable_moe_block"] = true;
  moe["text_config"]["num_experts"] = 128;
  EXPECT_HAS(refusal(moe), "Gemma 4 26B-A4B");
  Json e4b = model("gemma4", "gemma4_text", {2560, 10240, 42, 8, 2, 2});
  e4b["text_config"]["hidden_size_per_layer_input"] = 256;
  e4b["text_config"]["num_kv_shared_layers"] = 18;
  e4b["text_config"]["attention_k_eq_v"] = false;
  EXPECT_HAS(refusal(e4b), "Gemma 4 E4B");
  Json inputs = model("gemma4", "gemma4_text", k31b);
  inputs["text_config"]["hidden_size_per_layer_input"] = 256;
  EXPECT_HAS(refusal(inputs), "per-layer embeddings");
  Json shared = model("gemma4", "gemma4_text", k31b);
  shared["text_config"]["num_kv_shared_layers"] = 20;
  EXPECT_HAS(refusal(shared), "shares keys and values between layers");
  Json experts = model("gemma4", "gemma4_text", k31b);
  experts["text_config"]["enable_moe_block"] = true;
  EXPECT_HAS(refusal(experts), "mixture of experts");
  EXPECT_HAS(refusal({{"model_type", "gemma3"}}), "this is Gemma 3 ");
  EXPECT_HAS(refusal({{"model_type", "gemma3n"}}), "this is Gemma 3n ");
  EXPECT_HAS(refusal({{"model_type", "llama"}}), "the architecture is \"llama\", expected gemma4");
  EXPECT_HAS(
      refusal({{"model_type", "qwen3"}, {"architectures", {"DFlashDraftModel"}}, {"num_hidden_layers", 5}}),
      "a DFlash drafter");
}

TEST(HfProfile, AssistantsOfOtherSizesAreRefusedByName) {
  Json ordered = assistant("gemma4_assistant", "gemma4_text", k31b);
  ordered["use_ordered_embeddings"] = true;
  EXPECT_HAS(refusal(ordered), "ordered head");
  Json partly = assistant("gemma4_assistant", "gemma4_text", k31b);
  partly["text_config"]["num_kv_shared_layers"] = 3;
  EXPECT_HAS(refusal(partly), "num_kv_shared_layers is 3");
  Json nowhere = assistant("gemma4_assistant", "gemma4_text", k31b);
  nowhere.erase("backbone_hidden_size");
  EXPECT_HAS(refusal(nowhere), "backbone_hidden_size is missing");
}

}  // namespace
}  // namespace gem
