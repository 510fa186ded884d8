// Folders of Hugging Face and MLX: what they become, and what is refused by name.
#include "formats/hf_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "formats/hf_folder.h"
#include "formats/hf_names.h"

namespace gem {
namespace {

using testing::HfFolder;
using Json = nlohmann::json;

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(HfCheckpoint, GivesTheKeysAndNamesOfGguf) {
  for (const char* prefix : {"model.language_model.", "language_model.model.", "model."}) {
    HfFolder folder(prefix);
    if (std::string_view(prefix) == "model.") {  // the text model alone: its config is the whole
      const Json text = folder.text();
      folder.config = text;
    }
    const Checkpoint c = open_checkpoint(folder.write());
    EXPECT_EQ(c.string("general.architecture"), "gemma4");
    EXPECT_EQ(c.integer("gemma4.block_count"), 2);
    EXPECT_EQ(c.integer("gemma4.embedding_length"), 32);
    EXPECT_EQ(c.integer("gemma4.attention.key_length"), 32);
    EXPECT_EQ(c.integer("gemma4.attention.key_length_swa"), 16);
    EXPECT_EQ(c.booleans("gemma4.attention.sliding_window_pattern"), (std::vector<bool>{true, false}));
    EXPECT_EQ(c.integers("gemma4.attention.head_count_kv"), (std::vector<std::int64_t>{1, 1}));
    EXPECT_EQ(c.number("gemma4.rope.freq_base_swa"), 1e4);
    EXPECT_EQ(c.number("gemma4.final_logit_softcapping"), 30);
    // sqrt(32) = 5.656854; bf16 has 5.65625 and 5.6875 about it.
    EXPECT_EQ(c.number("gem.embedding_multiplier"), 5.65625);
    ASSERT_NE(c.tensor("token_embd.weight"), nullptr);
    EXPECT_EQ(c.tensor("token_embd.weight")->type, StorageType::kBF16);
    EXPECT_EQ(c.tensor("blk.1.attn_q.weight")->shape, (std::vector<std::uint64_t>{64, 32}));
    const TensorView& norm = *c.tensor("blk.0.attn_norm.weight");  // widened
    EXPECT_EQ(norm.type, StorageType::kF32);
    float second;
    std::memcpy(&second, norm.bytes.data() + 4, sizeof second);
    EXPECT_EQ(second, 1.0f + 1.0f / 128);  // bits 0x3f81
    EXPECT_EQ(c.tensor("rope_freqs.weight")->shape, (std::vector<std::uint64_t>{16}));
    EXPECT_EQ(c.tensors().size(), 2u + 14 + 13 + 1);
  }
}

TEST(HfCheckpoint, PerLayerConfigSaysTheSame) {
  HfFolder folder;
  folder.text().erase("global_head_dim");
  folder.text().erase("num_global_key_value_heads");
  folder.text()["per_layer_config"] = {{"01", {{"head_dim", 32}, {"num_key_value_heads", 1}}}};
  const Checkpoint c = open_checkpoint(folder.write());
  EXPECT_EQ(c.integer("gemma4.attention.key_length"), 32);
  EXPECT_EQ(c.integer("gemma4.attention.key_length_swa"), 16);
}

TEST(HfCheckpoint, QuantisedModulesBecomeAffineMatrices) {
  HfFolder folder;
  folder.quantise("embed_tokens", 6, 32);
  folder.quantise("layers.0.mlp.down_proj", 3, 64, Dtype::kF32);
  folder.config["quantization"] = {{"group_size", 32}, {"bits", 6}};
  folder.config["quantization"]["language_model.model.layers.0.mlp.down_proj"] = {{"bits", 3}};  // group: 64
  folder.config["quantization"]["model.language_model.layers.0.mlp.down_proj"] = {{"bits", 3}};
  folder.config["quantization"]["vision_tower"] = false;
  folder.config["quantization"]["layers.1.mlp.up_proj"] = false;
  folder.config["quantization_config"] = folder.config["quantization"];
  const Checkpoint c = open_checkpoint(folder.write());
  const TensorView& table = *c.tensor("token_embd.weight");
  EXPECT_EQ(table.type, StorageType::kAffine);
  EXPECT_EQ(table.shape, (std::vector<std::uint64_t>{16, 32}));
  EXPECT_EQ(table.storage_name(), "MLX 6-bit g32");
  EXPECT_EQ(table.stored_bytes(), 16u * (24 + 2 + 2));
  const TensorView& down = *c.tensor("blk.0.ffn_down.weight");
  EXPECT_EQ(down.storage_name(), "MLX 3-bit g64");
  EXPECT_EQ(down.affine.scale_type, StorageType::kF32);
  EXPECT_EQ(c.tensor("blk.0.ffn_up.weight")->type, StorageType::kBF16);
}

TEST(HfCheckpoint, ImageTensorsStandBeside) {
  HfFolder folder;
  folder.files["model-vision.safetensors"]["model.vision_tower.std_bias"] = HfFolder::make({4}, Dtype::kBF16);
  const Checkpoint c = open_checkpoint(folder.write());
  ASSERT_NE(c.tensor("vision_tower.std_bias"), nullptr);
  EXPECT_EQ(c.tensor("vision_tower.std_bias")->type, StorageType::kBF16);
}

TEST(HfCheckpoint, GenerationConfigOverridesTheConfig) {
  HfFolder folder;
  folder.text_file("generation_config.json", R"({"eos_token_id": [1, 6, 5], "suppress_tokens": [9],
    "temperature": 0.5, "top_k": 20, "top_p": 0.5, "do_sample": true})");
  folder.text_file("tokenizer.json", "{}");
  const Checkpoint c = open_checkpoint(folder.write());
  EXPECT_EQ(c.integers("gem.end_tokens"), (std::vector<std::int64_t>{1, 6, 5}));
  EXPECT_EQ(c.integers("tokenizer.ggml.suppress_tokens"), std::vector<std::int64_t>{9});
  EXPECT_EQ(c.number("general.sampling.temp"), 0.5);
  EXPECT_EQ(c.integer("general.sampling.top_k"), 20);
  EXPECT_EQ(c.number("general.sampling.top_p"), 0.5);
  EXPECT_EQ(c.string("tokenizer.huggingface.json"), "{}");
}

TEST(HfCheckpoint, GreedyIsTemperatureZero) {
  HfFolder folder;
  folder.text_file("generation_config.json", R"({"temperature": 0.5, "do_sample": false})");
  EXPECT_EQ(open_checkpoint(folder.write()).number("general.sampling.temp"), 0.0);
}

TEST(HfCheckpoint, ShardsWithAnIndex) {
  const auto indexed =
      [](
          const std::function<void(Json & map)>& change,
          const std::function<Json(std::uint64_t)>& size = [](std::uint64_t b) { return Json(b); }) {
        auto folder = std::make_unique<HfFolder>();
        std::uint64_t bytes = 0;
        for (const auto& [name, tensor] : folder->files["model.safetensors"]) bytes += tensor.bytes.size();
        folder->move("norm.weight", "model-00002-of-00002.safetensors");
        Json map;
        auto rest = std::move(folder->files["model.safetensors"]);
        folder->files.erase("model.safetensors");
        for (const auto& [name, tensor] : rest) map[name] = "model-00001-of-00002.safetensors";
        folder->files["model-00001-of-00002.safetensors"] = std::move(rest);
        map[folder->name("norm.weight")] = "model-00002-of-00002.safetensors";
        change(map);
        folder->text_file("model.safetensors.index.json",
                          Json{{"metadata", {{"total_size", size(bytes)}}}, {"weight_map", map}}.dump());
        return folder;
      };
  const std::string norm = "model.language_model.norm.weight";
  EXPECT_EQ(indexed([](Json&) {})->refusal(), "opened");
  EXPECT_HAS(indexed([&](Json& map) { map[norm] = "../x.safetensors"; })->refusal(), "in the same folder");
  EXPECT_HAS(indexed([&](Json& map) { map[norm] = "a/x.safetensors"; })->refusal(), "in the same folder");
  EXPECT_HAS(indexed([&](Json& map) { map[norm] = "/x.safetensors"; })->refusal(), "in the same folder");
  EXPECT_HAS(indexed([&](Json& map) { map[norm] = "x.bin"; })->refusal(), "in the same folder");
  EXPECT_HAS(indexed([&](Json& map) { map[norm] = 3; })->refusal(), "expected a string");
  EXPECT_HAS(indexed([&](Json& map) { map[norm] = "model-00003-of-00003.safetensors"; })->refusal(),
             "model-00003-of-00003.safetensors is missing; the index says");
  EXPECT_HAS(indexed([&](Json& map) { map[norm] = "model-00001-of-00002.safetensors"; })->refusal(),
             "is missing; the index says that it is here");
  EXPECT_HAS(indexed([&](Json& map) { map["model.other"] = "model-00002-of-00002.safetensors"; })->refusal(),
             "is missing; the index says that it is here");
  const auto sized = [&](const std::function<Json(std::uint64_t)>& size) {
    return indexed([](Json&) {}, size)->refusal();
  };
  EXPECT_EQ(sized([](std::uint64_t bytes) { return Json(static_cast<double>(bytes)); }), "opened");
  EXPECT_EQ(sized([](std::uint64_t) { return Json(); }), "opened") << "null: it is not said";
  EXPECT_HAS(sized([](std::uint64_t bytes) { return Json(bytes + 2); }), "metadata.total_size is ");
  EXPECT_HAS(sized([](std::uint64_t bytes) { return Json(bytes - 2); }),
             "but the tensors that the index names");
  EXPECT_HAS(sized([](std::uint64_t) { return Json(-1); }), "total_size is -1");
  EXPECT_HAS(sized([](std::uint64_t) { return Json("1"); }), "total_size is");
  EXPECT_HAS(sized([](std::uint64_t) { return Json(1.5); }), "a number of bytes");
  // Tensors that stand in files of their own beside the index (image parts) do not count.
  auto beside = indexed([](Json&) {});
  beside->files["model-vision.safetensors"]["model.vision_tower.std_bias"] =
      HfFolder::make({4}, Dtype::kBF16);
  EXPECT_EQ(beside->refusal(), "opened");
  auto without = indexed([](Json&) {});
  without->files.erase("model-00002-of-00002.safetensors");
  EXPECT_HAS(without->refusal(), "model-00002-of-00002.safetensors is missing");
}

TEST(HfCheckpoint, ASetOfShardsIsWholeWithoutAnIndexToo) {
  HfFolder folder;
  folder.move("norm.weight", "model-00001-of-00003.safetensors");
  folder.files["model-00003-of-00003.safetensors"]["x"] = HfFolder::make({1}, Dtype::kBF16);
  EXPECT_HAS(folder.refusal(), "model-00002-of-00003.safetensors is missing");
}

TEST(HfCheckpoint, ATensorIsInOneFileAndUnderOneName) {
  HfFolder twice;
  twice.files["model-2.safetensors"][twice.name("norm.weight")] = HfFolder::make({32}, Dtype::kBF16);
  EXPECT_HAS(twice.refusal(), "expected each once");
  HfFolder alias;
  alias.files["model.safetensors"]["language_model.model.norm.weight"] = HfFolder::make({32}, Dtype::kBF16);
  EXPECT_HAS(alias.refusal(), "expected each once");
}

struct Case {
  const char* name;
  std::function<void(HfFolder&)> change;
  const char* message;
};

class HfRefusal : public ::testing::TestWithParam<Case> {};

TEST_P(HfRefusal, NamesWhatIsWrong) {
  HfFolder folder;
  GetParam().change(folder);
  const std::string message = folder.refusal();
  EXPECT_HAS(message, GetParam().message);
}

const Case kRefusals[] = {
    {"NotJson", [](HfFolder& f) { f.text_file("config.json", "{"); }, "not valid JSON at byte"},
    {"JsonTwice", [](HfFolder& f) { f.text_file("config.json", R"({"a": 1, "a": 1})"); }, "occurs twice"},
    {"JsonNul", [](HfFolder& f) { f.text_file("config.json", std::string("{}\0x", 4)); }, "not valid JSON"},
    {"JsonArray", [](HfFolder& f) { f.text_file("config.json", "[]"); }, "expected an object"},
    {"JsonDeep", [](HfFolder& f) { f.text_file("config.json", R"({"a":)" + std::string(100, '[') + "1"); },
     "nested deeper"},
    {"NoModelType", [](HfFolder& f) { f.config.erase("model_type"); }, "model_type is missing"},
    {"NoTextConfig", [](HfFolder& f) { f.config.erase("text_config"); }, "text_config is missing"},
    {"TextTypeOfAnother", [](HfFolder& f) { f.text()["model_type"] = "gemma4_unified_text"; },
     "expected gemma4_text"},
    {"WidthIsText", [](HfFolder& f) { f.text()["hidden_size"] = "32"; }, "hidden_size is \"32\"; expected"},
    {"WidthIsAFraction", [](HfFolder& f) { f.text()["hidden_size"] = 32.5; }, "expected an integer"},
    {"WidthWraps", [](HfFolder& f) { f.text()["hidden_size"] = (std::int64_t{1} << 32) + 32; },
     "hidden_size is 4294967328, expected 32 to"},
    {"WidthBeyond64Bits", [](HfFolder& f) { f.text()["hidden_size"] = ~std::uint64_t{0}; },
     "hidden_size is 18446744073709551615"},
    {"HeadsZero", [](HfFolder& f) { f.text()["num_attention_heads"] = 0; }, "expected 1 to"},
    {"WindowNegative", [](HfFolder& f) { f.text()["sliding_window"] = -1; }, "sliding_window is -1"},
    {"EpsilonNegative", [](HfFolder& f) { f.text()["rms_norm_eps"] = -1e-6; }, "rms_norm_eps"},
    {"EndTokenNegative", [](HfFolder& f) { f.text()["eos_token_id"] = -1; },
     "eos_token_id is -1, expected 0 to 15"},
    {"EndTokenBeyond",
     [](HfFolder& f) {
       f.config["eos_token_id"] = {1, 16};
     },
     "eos_token_id is 16"},
    {"EndTokenHuge", [](HfFolder& f) { f.text()["eos_token_id"] = std::int64_t{1} << 32; },
     "expected 0 to 15"},
    {"SuppressedBeyond",
     [](HfFolder& f) { f.text_file("generation_config.json", R"({"suppress_tokens": [16]})"); },
     "suppress_tokens is 16"},
    {"VocabularyDiffers", [](HfFolder& f) { f.text()["vocab_size"] = 17; }, "the token table has 16 rows"},
    {"LayerTypesShort", [](HfFolder& f) { f.text()["layer_types"] = {"sliding_attention"}; },
     "expected one for each of the 2 layers"},
    {"LayerTypeUnknown",
     [](HfFolder& f) {
       f.text()["layer_types"] = {"sliding_attention", "chunked_attention"};
     },
     "chunked_attention"},
    {"PerLayerField",
     [](HfFolder& f) {
       f.text()["per_layer_config"] = {{"1", {{"sliding_window", 3}}}};
     },
     "sliding_window is a field that gem does not know"},
    {"PerLayerIndex",
     [](HfFolder& f) {
       f.text()["per_layer_config"] = {{"2", {{"head_dim", 32}}}};
     },
     "the layers 0 to 1"},
    {"PerLayerTwice",
     [](HfFolder& f) {
       f.text()["per_layer_config"] = {{"1", {{"head_dim", 32}}}, {"01", {{"head_dim", 32}}}};
     },
     "names layer 1 twice"},
    {"Activation", [](HfFolder& f) { f.text()["hidden_activation"] = "silu"; }, "silu"},
    {"KeysApart", [](HfFolder& f) { f.text()["attention_k_eq_v"] = false; }, "values apart from their keys"},
    {"KeysApartUnsaid", [](HfFolder& f) { f.text().erase("attention_k_eq_v"); },
     "attention_k_eq_v is missing"},
    {"Bias", [](HfFolder& f) { f.text()["attention_bias"] = true; }, "with a bias"},
    {"DoubleWide", [](HfFolder& f) { f.text()["use_double_wide_mlp"] = true; }, "double width"},
    {"Untied", [](HfFolder& f) { f.config["tie_word_embeddings"] = false; }, "head apart"},
    {"RopeType", [](HfFolder& f) { f.text()["rope_parameters"]["full_attention"]["rope_type"] = "yarn"; },
     "yarn"},
    {"RopePart",
     [](HfFolder& f) { f.text()["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.5; },
     "expected 0.25"},
    {"ValuesMissing",
     [](HfFolder& f) { f.files["model.safetensors"].erase(f.name("layers.0.self_attn.v_proj.weight")); },
     "layers.0.self_attn.v_proj.weight is missing"},
    {"ValuesOfAFullLayer",
     [](HfFolder& f) {
       f.add("layers.1.self_attn.v_proj.weight", {32, 32});
     },
     "layers.1.self_attn.v_proj.weight is there"},
    {"Dtype", [](HfFolder& f) { f.add("norm.weight", {32}, Dtype::kI32); }, "has dtype I32"},
    {"NoTensors", [](HfFolder& f) { f.files.clear(); }, "no model*.safetensors"},
};
INSTANTIATE_TEST_SUITE_P(Config, HfRefusal, ::testing::ValuesIn(kRefusals),
                         [](const auto& test) { return std::string(test.param.name); });

// `change` works on a folder whose down projection of layer 0 has 4 bits in groups of 32.
Case quantised(const char* name, std::function<void(HfFolder&, Json& widths)> change, const char* message) {
  return {name,
          [change](HfFolder& f) {
            f.quantise("layers.0.mlp.down_proj", 4, 32);
            f.config["quantization"] = {{"group_size", 32}, {"bits", 4}, {"mode", "affine"}};
            change(f, f.config["quantization"]);
          },
          message};
}
constexpr const char* kDown = "layers.0.mlp.down_proj";

const Case kWidths[] = {
    quantised(
        "Sound", [](HfFolder&, Json&) {}, "opened"),
    quantised(
        "Bits0", [](HfFolder&, Json& w) { w["bits"] = 0; }, "bits is 0, expected 2, 3, 4, 5, 6 or 8"),
    quantised(
        "Bits7", [](HfFolder&, Json& w) { w["bits"] = 7; }, "bits is 7"),
    quantised(
        "Bits64", [](HfFolder&, Json& w) { w["bits"] = 64; }, "bits is 64"),
    quantised(
        "BitsText", [](HfFolder&, Json& w) { w["bits"] = "4"; }, "expected an integer"),
    quantised(
        "Group0", [](HfFolder&, Json& w) { w["group_size"] = 0; }, "group_size is 0"),
    quantised(
        "Group48", [](HfFolder&, Json& w) { w["group_size"] = 48; }, "group_size is 48"),
    quantised(
        "Mxfp4", [](HfFolder&, Json& w) { w["mode"] = "mxfp4"; }, "mxfp4"),
    quantised(
        "ModuleNvfp4",
        [](HfFolder&, Json& w) {
          w[kDown] = {{"mode", "nvfp4"}};
        },
        "nvfp4"),
    quantised(
        "Gptq", [](HfFolder&, Json& w) { w["quant_method"] = "gptq"; }, "gptq"),
    quantised(
        "Undeclared", [](HfFolder& f, Json&) { f.config.erase("quantization"); },
        "config.json declares no quantization"),
    quantised(
        "Disagree",
        [](HfFolder& f, Json&) {
          f.config["quantization_config"] = {{"bits", 8}};
        },
        "quantization_config disagree"),
    quantised(
        "SaidPlain", [](HfFolder&, Json& w) { w[kDown] = false; }, "says that it is not quantised"),
    quantised(
        "SaidQuantised",
        [](HfFolder&, Json& w) {
          w["layers.0.mlp.up_proj"] = {{"bits", 4}};
        },
        "there is no layers.0.mlp.up_proj.scales"),
    quantised(
        "UnknownModule", [](HfFolder&, Json& w) { w["layers.7.mlp.up_proj"] = false; },
        "which is no module of the files"),
    quantised(
        "UnknownField",
        [](HfFolder&, Json& w) {
          w[kDown] = {{"bits", 4}, {"zero", 1}};
        },
        "unknown field zero"),
    quantised(
        "AliasesDisagree",
        [](HfFolder&, Json& w) {
          w["language_model.model.layers.0.mlp.down_proj"] = {{"bits", 4}, {"group_size", 32}};
          w["model.language_model.layers.0.mlp.down_proj"] = {{"bits", 8}, {"group_size", 32}};
        },
        "name the same module and disagree"),
    quantised(
        "LibraryGroup",
        [](HfFolder&, Json& w) {
          w[kDown] = {{"bits", 4}};
        },  // 64, not the file's 32
        "expected [32, 1] for 64 columns as MLX 4-bit g64"),
    quantised(
        "OtherWidth", [](HfFolder&, Json& w) { w["bits"] = 8; }, "expected [32, 1] for 32 columns"),
    quantised(
        "NoWholeGroups", [](HfFolder&, Json& w) { w["bits"] = 3; }, "no whole number of groups"),
    quantised(
        "NoBiases",
        [](HfFolder& f, Json&) {
          f.files["model.safetensors"].erase(f.name(std::string(kDown) + ".biases"));
        },
        "has no .biases beside it"),
    quantised(
        "NoScales",
        [](HfFolder& f, Json&) {
          f.files["model.safetensors"].erase(f.name(std::string(kDown) + ".scales"));
        },
        ".scales beside it"),
    quantised(
        "ScaleDtype",
        [](HfFolder& f, Json&) {
          f.add(std::string(kDown) + ".scales", {32, 2}, Dtype::kU8);
        },
        "has dtype U8; expected BF16, F16 or F32"),
    quantised(
        "BiasDtype",
        [](HfFolder& f, Json&) {
          f.add(std::string(kDown) + ".biases", {32, 2}, Dtype::kF32);
        },
        "expected BF16, as its scales"),
    quantised(
        "BiasShape",
        [](HfFolder& f, Json&) {
          f.add(std::string(kDown) + ".biases", {32, 1});
        },
        "has shape [32, 1]; expected [32, 2]"),
    quantised(
        "FlatScales", [](HfFolder& f, Json&) { f.add(std::string(kDown) + ".scales", {64}); },
        "has shape [64]; expected [32, 2]"),
    quantised(
        "CodesDtype",
        [](HfFolder& f, Json&) {
          f.add(std::string(kDown) + ".weight", {32, 8}, Dtype::kI32);
        },
        "has dtype I32; expected U32"),
    quantised(
        "FlatCodes", [](HfFolder& f, Json&) { f.add(std::string(kDown) + ".weight", {256}, Dtype::kU32); },
        "expected a matrix"),
};
INSTANTIATE_TEST_SUITE_P(Widths, HfRefusal, ::testing::ValuesIn(kWidths),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(HfCheckpoint, OtherModelsKeepTheirNameForTheProfile) {
  const auto architecture = [](const std::function<void(Json&)>& change) {
    HfFolder folder;
    folder.files.clear();  // nothing else is read
    change(folder.config);
    return std::string(*open_checkpoint(folder.write()).string("general.architecture"));
  };
  EXPECT_EQ(architecture([](Json& c) { c["model_type"] = "gemma3_text"; }), "gemma3");
  EXPECT_EQ(architecture([](Json& c) { c["model_type"] = "llama"; }), "llama");
  EXPECT_EQ(architecture([](Json& c) {
              c["model_type"] = "qwen3";
              c["architectures"] = {"DFlashDraftModel"};
            }),
            "dflash");
  EXPECT_EQ(architecture([](Json& c) { c["text_config"]["enable_moe_block"] = true; }), "gemma4");
}

TEST(HfCheckpoint, AFolderWithoutConfigAndASingleFileSayWhatIsExpected) {
  testing::TemporaryFolder folder;
  try {
    open_checkpoint(folder.file(""));
    FAIL();
  } catch (const Error& e) {
    EXPECT_HAS(std::string(e.what()), "without config.json");
  }
  try {
    open_checkpoint(folder.file("model.safetensors"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_HAS(std::string(e.what()), "name the folder");
  }
}

TEST(HfNames, TranslateBothWays) {
  EXPECT_EQ(gguf_name_of("layers.47.self_attn.o_proj.weight"), "blk.47.attn_output.weight");
  EXPECT_EQ(hf_name_of("blk.47.attn_output.weight"), "layers.47.self_attn.o_proj.weight");
  EXPECT_EQ(gguf_name_of("layers.0.layer_scalar"), "blk.0.layer_output_scale.weight");
  for (const char* name : {"layers.00.layer_scalar", "layers..layer_scalar", "layers.x.layer_scalar",
                           "layers.0.layer_scalar.weight", "lm_head.weight", "layers.12345.layer_scalar"})
    EXPECT_EQ(gguf_name_of(name), std::nullopt) << name;
}

}  // namespace
}  // namespace gem
