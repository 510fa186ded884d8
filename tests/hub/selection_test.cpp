#include "hub/selection.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace gem::hub {
namespace {

using Names = std::vector<std::string>;

std::vector<ListedFile> listed(const Names& names) {
  std::vector<ListedFile> files;
  for (const std::string& name : names) files.push_back({name, 1'000'000'000});
  return files;
}

Selection choose(const Names& names, const std::string& pattern = "", const std::string& index = "",
                 const std::string& repository = "org/model-GGUF") {
  return select_files(listed(names), {.pattern = pattern, .repository = repository},
                      [&](const std::string&) { return index; });
}

std::string refusal(const Names& names, const std::string& pattern = "") {
  try {
    return "chosen: " + choose(names, pattern).main;
  } catch (const Error& e) {
    return e.what();
  }
}

// The files of a usual GGUF repository.
const Names kUsual = {".gitattributes",
                      "README.md",
                      "gemma-4-12b-it-BF16.gguf",
                      "gemma-4-12b-it-IQ4_XS.gguf",
                      "gemma-4-12b-it-Q2_K.gguf",
                      "gemma-4-12b-it-Q4_0.gguf",
                      "gemma-4-12b-it-Q4_K_M.gguf",
                      "gemma-4-12b-it-Q4_K_S.gguf",
                      "gemma-4-12b-it-Q8_0.gguf",
                      "gemma-4-12b-it-UD-Q4_K_XL.gguf",
                      "imatrix_gemma.gguf",
                      "mmproj-BF16.gguf",
                      "mmproj-F16.gguf",
                      "mtp-gemma-4-12b-it.gguf"};

TEST(Selection, TheBestOfSeveralWithWhatGoesBesideIt) {
  const Selection s = choose(kUsual);
  EXPECT_EQ(s.main, "gemma-4-12b-it-Q4_K_M.gguf");
  EXPECT_EQ(s.files, Names{"gemma-4-12b-it-Q4_K_M.gguf"});
  EXPECT_EQ(s.assistant, "mtp-gemma-4-12b-it.gguf");
  EXPECT_EQ(s.mmproj, "mmproj-BF16.gguf");
}

TEST(Selection, AModelTrainedForFourBitsIsTakenInThem) {
  EXPECT_EQ(choose(kUsual, "", "", "org/gemma-4-12b-it-qat-GGUF").main, "gemma-4-12b-it-Q4_0.gguf");
  EXPECT_EQ(choose({"gemma-4-12b-it-qat-q4_0.gguf", "gemma-4-12b-it-q4_k_m.gguf"}).main,
            "gemma-4-12b-it-qat-q4_0.gguf");
}

TEST(Selection, APatternIsAStorageTypeAFileAPartOrAGlob) {
  EXPECT_EQ(choose(kUsual, "Q8_0").main, "gemma-4-12b-it-Q8_0.gguf");
  EXPECT_EQ(choose(kUsual, "q4_k_s").main, "gemma-4-12b-it-Q4_K_S.gguf");
  EXPECT_EQ(choose(kUsual, "IQ4_XS").main, "gemma-4-12b-it-IQ4_XS.gguf");
  EXPECT_EQ(choose(kUsual, "gemma-4-12b-it-BF16.gguf").main, "gemma-4-12b-it-BF16.gguf");
  EXPECT_EQ(choose(kUsual, "gemma-4-12b-it-BF16").main, "gemma-4-12b-it-BF16.gguf");
  EXPECT_EQ(choose(kUsual, "UD-").main, "gemma-4-12b-it-UD-Q4_K_XL.gguf");
  EXPECT_EQ(choose(kUsual, "*q8_0*").main, "gemma-4-12b-it-Q8_0.gguf");
  EXPECT_EQ(choose(kUsual, "Q4_K").main, "gemma-4-12b-it-Q4_K_M.gguf");  // the best of what it means
  const Selection projector = choose(kUsual, "mmproj-F16");
  EXPECT_EQ(projector.main, "mmproj-F16.gguf");
  EXPECT_TRUE(projector.assistant.empty() && projector.mmproj.empty());
}

TEST(Selection, WhatIsAmbiguousIsListed) {
  const Names two = {"gemma-4-12b-it-Q4_0.gguf", "gemma-4-31b-it-Q4_0.gguf", "gemma-4-31b-it-IQ2_M.gguf"};
  const std::string message = refusal(two);
  EXPECT_NE(message.find("name one as org/model-GGUF:NAME"), std::string::npos) << message;
  for (const std::string& name : two)
    EXPECT_NE(message.find(name + ", 1.00 GB"), std::string::npos) << message;
  EXPECT_EQ(choose(two, "31b").main, "gemma-4-31b-it-Q4_0.gguf");
  EXPECT_NE(refusal({"a-IQ2_M.gguf", "a-IQ3_M.gguf"}).find("several models"), std::string::npos);
  EXPECT_EQ(choose({"a-IQ2_M.gguf"}).main, "a-IQ2_M.gguf");  // the only one
}

TEST(Selection, WhatIsNotThereIsSaid) {
  EXPECT_NE(refusal({"README.md", "pytorch_model.bin"}).find("holds no model"), std::string::npos);
  EXPECT_NE(refusal(kUsual, "Q6_K").find("no model that \"Q6_K\" means; it holds\n"), std::string::npos);
  EXPECT_NE(refusal({"model.safetensors"}).find("holds no model"), std::string::npos);  // without config.json
}

TEST(Selection, AnAssistantGoesWithAModelOfItsSize) {
  const Names names = {"gemma-4-12b-Q4_0.gguf", "gemma-4-31b-Q4_0.gguf", "assistant/gemma-4-12b-f16.gguf",
                       "assistant/gemma-4-31b-f16.gguf", "mmproj-gemma-4-31b.gguf"};
  const Selection s = choose(names, "12b");
  EXPECT_EQ(s.main, "gemma-4-12b-Q4_0.gguf");
  EXPECT_EQ(s.assistant, "assistant/gemma-4-12b-f16.gguf");
  EXPECT_EQ(s.mmproj, "");
  EXPECT_EQ(choose(names, "31b").assistant, "assistant/gemma-4-31b-f16.gguf");
  // The name made of the model's own comes before any preference.
  EXPECT_EQ(choose({"m-Q4_0.gguf", "mtp-a-Q8_0.gguf", "mtp-m-Q4_0.gguf"}).assistant, "mtp-m-Q4_0.gguf");
  EXPECT_EQ(choose({"m-Q4_0.gguf", "m-assistant-bf16.gguf", "m-assistant-Q8_0.gguf"}).assistant,
            "m-assistant-Q8_0.gguf");
}

TEST(Selection, ASplitSetIsOneModel) {
  const Names names = {"bf16/m-BF16-00002-of-00002.gguf", "bf16/m-BF16-00001-of-00002.gguf", "m-Q8_0.gguf"};
  const Selection s = choose(names, "bf16");
  EXPECT_EQ(s.main, "bf16/m-BF16-00001-of-00002.gguf");
  EXPECT_EQ(s.files, (Names{"bf16/m-BF16-00001-of-00002.gguf", "bf16/m-BF16-00002-of-00002.gguf"}));
  EXPECT_NE(refusal({"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}).find("part 2 of 3"),
            std::string::npos);
  EXPECT_NE(refusal({"m-00002-of-00002.gguf"}).find("part 1 of 2"), std::string::npos);
  EXPECT_NE(refusal({"m-00001-of-99999.gguf"}).find("part 2 of 99999"), std::string::npos);
  EXPECT_NE(refusal({"m-00000-of-00000.gguf"}).find("split model"), std::string::npos);
  EXPECT_NE(refusal({"m-00001-of-00001.gguf", "m-00002-of-00001.gguf"}).find("split model"),
            std::string::npos);
}

TEST(Selection, AFolderIsItsConfigurationTokenizerAndShards) {
  const std::string index = R"({"weight_map": {"a": "model-00002-of-00002.safetensors",
                                               "b": "model-00001-of-00002.safetensors"}})";
  const Names names = {"config.json",
                       "generation_config.json",
                       "tokenizer.json",
                       "model-00001-of-00002.safetensors",
                       "model-00002-of-00002.safetensors",
                       "model.safetensors.index.json",
                       "original/consolidated.safetensors",
                       "onnx/model.onnx",
                       "train.py"};
  const Selection s = choose(names, "", index);
  EXPECT_TRUE(s.folder);
  EXPECT_EQ(s.main, "");
  EXPECT_EQ(s.files,
            (Names{"config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json",
                   "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}));
}

TEST(Selection, FoldersBelowTheRootAreNamed) {
  const Names names = {"4bit/config.json",       "4bit/model.safetensors", "8bit/config.json",
                       "8bit/model.safetensors", "8bit/tokenizer.json",    "tokenizer.json"};
  EXPECT_NE(refusal(names).find("several models"), std::string::npos);
  const Selection s = choose(names, "8bit");
  EXPECT_EQ(s.main, "8bit");
  EXPECT_EQ(s.files, (Names{"8bit/config.json", "8bit/tokenizer.json", "8bit/model.safetensors"}));
}

TEST(Selection, AGgufFileComesBeforeAFolderUnlessTheFolderIsNamed) {
  const Names names = {"config.json", "model.safetensors", "m-Q8_0.gguf"};
  EXPECT_EQ(choose(names).main, "m-Q8_0.gguf");
  EXPECT_TRUE(choose(names, "safetensors").folder);
  EXPECT_TRUE(choose(names, "model.safetensors").folder);
}

TEST(Selection, TheListTellsWhatIsWhat) {
  EXPECT_EQ(describe_models(
                listed({"config.json", "model.safetensors", "m-Q8_0.gguf", "mmproj.gguf", "mtp-m.gguf"})),
            (Names{"m-Q8_0.gguf, 1.00 GB", "mmproj.gguf, 1.00 GB (image projector)",
                   "mtp-m.gguf, 1.00 GB (assistant)", "(the repository's root), 1.00 GB (safetensors)"}));
}

}  // namespace
}  // namespace gem::hub
