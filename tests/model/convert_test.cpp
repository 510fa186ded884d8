// gem convert: what comes out is what went in, rounded by the rule; twice the same; and it goes on where it
// stopped.
#include "model/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/numbers.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder.h"
#include "golden.h"
#include "model/model.h"
#include "model/schedule.h"

namespace gem {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Name -> bytes of every file of a folder.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    out[entry.path().filename().string()] = bytes_of(entry.path());
  return out;
}

ConvertOptions options(const std::string& source, const std::string& out, const char* target) {
  ConvertOptions o;
  o.source = source;
  o.out = out;
  o.target = ConvertTarget::parse(target);
  o.any_geometry = true;
  o.threads = 2;
  return o;
}

std::vector<float> last_logits(const std::string& path, const std::vector<std::int32_t>& ids) {
  const auto model = Model::load(path, {.any_geometry = true});
  const auto backend = make_backend(BackendKind::kOracle, *model, 1);
  const auto cache =
      backend->new_cache(KvPlan::make(model->geometry(), 64, static_cast<std::uint32_t>(ids.size())));
  const Span span[] = {{cache.get(), ids, {}, Wanted::kLast, Wanted::kNothing}};
  run_round(*backend, model->geometry().layers.size(), span);
  return backend->read(Activation::kLogits);
}

class Convert : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto found = testing::golden_model("bf16");
    if (!found) GTEST_SKIP() << "golden model not at hand: bf16";
    source_ = *found;
  }
  std::string source_;
  testing::TemporaryFolder folder_;
};

TEST(ConvertTarget, IsParsedByName) {
  EXPECT_EQ(ConvertTarget::parse("mlx-q4").name(), "mlx-q4g64");
  for (const char* name :
       {"mlx-q2g32", "mlx-q3g64", "mlx-q5g128", "mlx-q8g64", "gguf-q4_0", "gguf-q8_0", "bf16"})
    EXPECT_EQ(ConvertTarget::parse(name).name(), name);
  for (const char* name : {"", "mlx", "mlx-q", "mlx-q7g64", "mlx-q4g48", "mlx-q4g", "mlx-q4g64x", "mlx-q-4",
                           "mlx-q4294967300", "gguf-q4_k", "q4_0"})
    EXPECT_THROW(ConvertTarget::parse(name), Error) << name;
}

// The golden MLX model was made from the same bf16 weights by another program.
TEST_F(Convert, MlxWeightsAreWithinAStepAndTheConfigSaysTheWidth) {
  const std::string out = folder_.file("mlx");
  const ConvertReport report = convert_checkpoint(options(source_, out, "mlx-q4g64"));
  EXPECT_EQ(report.files.size(), 1u);
  EXPECT_GT(report.rows_checked, 200u);
  EXPECT_LT(report.relative_error, 0.12);  // 4 bits of a normal distribution: about 0.09
  const nlohmann::json config = nlohmann::json::parse(bytes_of(out + "/config.json"));
  EXPECT_EQ(config.at("quantization"), (nlohmann::json{{"group_size", 64}, {"bits", 4}, {"mode", "affine"}}));
  const SafetensorsFile written = SafetensorsFile::open(out + "/model.safetensors");
  const SafetensorsFile original = SafetensorsFile::open(source_ + "/model.safetensors");
  const std::string module = "layers.3.mlp.down_proj";
  const SafetensorsView& scales = written.at("language_model.model." + module + ".scales");
  EXPECT_EQ(scales.dtype, Dtype::kBF16);
  EXPECT_EQ(written.at("language_model.model." + module + ".weight").shape,
            (std::vector<std::uint64_t>{128, 32}));
  // By the formulas: w = s q + b, read here without the code under test.
  const std::vector<float> s = scales.floats();
  const std::vector<float> b = written.at("language_model.model." + module + ".biases").floats();
  const std::vector<float> w = original.at("model." + module + ".weight").floats();
  const std::vector<std::int64_t> words = written.at("language_model.model." + module + ".weight").integers();
  for (std::size_t i = 0; i < w.size(); ++i) {
    const auto code = static_cast<float>(words[i / 8] >> (4 * (i % 8)) & 15);
    ASSERT_NEAR(s[i / 64] * code + b[i / 64], w[i], std::fabs(s[i / 64]) * 1.1) << i;
  }
  // Vectors went back to what they were.
  EXPECT_TRUE(std::ranges::equal(written.at("language_model.model.layers.0.layer_scalar").bytes,
                                 original.at("model.layers.0.layer_scalar").bytes));
}

TEST_F(Convert, Bf16KeepsEveryBit) {
  const std::string out = folder_.file("bf16");
  convert_checkpoint(options(source_, out, "bf16"));
  const SafetensorsFile written = SafetensorsFile::open(out + "/model.safetensors");
  const SafetensorsFile original = SafetensorsFile::open(source_ + "/model.safetensors");
  ASSERT_EQ(written.tensors().size(), original.tensors().size());
  for (const SafetensorsView& view : original.tensors()) {
    const SafetensorsView& same = written.at("model.language_model." + view.name.substr(6));
    EXPECT_EQ(same.dtype, view.dtype);
    EXPECT_TRUE(std::ranges::equal(same.bytes, view.bytes)) << view.name;
  }
}

TEST_F(Convert, EveryTargetRunsAndIsNearTheSource) {
  const std::vector<std::int32_t> ids = {2, 5, 9, 700, 3, 11, 42};
  const std::vector<float> exact = last_logits(source_, ids);
  const std::pair<const char*, double> kTargets[] = {
      {"mlx-q8g32", 0.2}, {"mlx-q6g64", 0.8}, {"mlx-q5g32", 1.5}, {"gguf-q8_0", 0.2}, {"gguf-q4_0", 4}};
  for (const auto& [target, bound] : kTargets) {
    const std::string out = folder_.file(target);
    convert_checkpoint(options(source_, out, target));
    const std::vector<float> found = last_logits(out, ids);
    ASSERT_EQ(found.size(), exact.size());
    double squares = 0;
    for (std::size_t i = 0; i < exact.size(); ++i)
      squares += (double{found[i]} - double{exact[i]}) * (double{found[i]} - double{exact[i]});
    EXPECT_LT(std::sqrt(squares / static_cast<double>(exact.size())), bound) << target;
  }
}

TEST_F(Convert, TwoRunsGiveTheSameBytesWhateverTheThreads) {
  for (const char* target : {"mlx-q3g64", "gguf-q4_0"}) {
    ConvertOptions first = options(source_, folder_.file(std::string("a-") + target), target);
    ConvertOptions second = options(source_, folder_.file(std::string("b-") + target), target);
    second.threads = 1;
    convert_checkpoint(first);
    convert_checkpoint(second);
    if (fs::is_directory(first.out)) {
      EXPECT_EQ(contents(first.out), contents(second.out));
    } else {
      EXPECT_EQ(bytes_of(first.out), bytes_of(second.out));
    }
  }
}

TEST_F(Convert, GoesOnAfterAnInterruption) {
  ConvertOptions whole = options(source_, folder_.file("whole"), "mlx-q4g64");
  whole.shard_bytes = 200'000;
  const ConvertReport complete = convert_checkpoint(whole);
  ASSERT_GE(complete.files.size(), 5u);

  ConvertOptions part = whole;
  part.out = folder_.file("part");
  std::uint64_t steps = 0;
  part.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (done > total / 2 && ++steps == 1) throw Error(ErrorCode::kCancelled, "stopped by the test");
  };
  EXPECT_THROW(convert_checkpoint(part), Error);
  EXPECT_FALSE(fs::exists(part.out + "/config.json"));
  std::ofstream(part.out + "/model-00001-of-00001.safetensors.part-1-0") << "left by a kill";
  // A finished file that was damaged since is made again.
  const std::string damaged = complete.files.front().substr(complete.files.front().rfind('/'));
  {
    std::fstream file(part.out + damaged, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    const char wrong = static_cast<char>(bytes_of(part.out + damaged).back() ^ 1);
    file.put(wrong);
  }
  part.progress = {};
  const ConvertReport resumed = convert_checkpoint(part);
  EXPECT_GE(resumed.resumed, 1u);
  EXPECT_LT(resumed.resumed, complete.files.size() - 1);
  EXPECT_EQ(contents(part.out), contents(whole.out));
}

std::string refusal(const ConvertOptions& o) {
  try {
    convert_checkpoint(o);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage) << e.what();
    return e.what();
  }
  return "converted";
}
#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Convert, RefusesWhatItCannotDoRight) {
  const std::string out = folder_.file("out");
  ConvertOptions o = options(source_, out, "mlx-q4g64");
  o.keep_vision = true;
  EXPECT_HAS(refusal(o), "has no image tensors");
  EXPECT_FALSE(fs::exists(out));
  fs::create_directory(out);
  std::ofstream(out + "/notes.txt") << "mine";
  EXPECT_HAS(refusal(options(source_, out, "mlx-q4g64")), "is not empty");
  EXPECT_EQ(contents(out).size(), 1u);
  const auto mixed = testing::golden_model("mlx-mixed");
  const auto q4 = testing::golden_model("q4_0");
  const auto f16 = testing::golden_model("f16");
  ASSERT_TRUE(mixed && q4);
  EXPECT_HAS(refusal(options(*mixed, folder_.file("x"), "mlx-q4g64")), "would add both errors");
  EXPECT_HAS(refusal(options(*q4, folder_.file("x"), "gguf-q8_0")), "would add both errors");
  if (f16) {
    EXPECT_HAS(refusal(options(*f16, folder_.file("x"), "mlx-q4g64")), "no config.json");
  }
}

TEST_F(Convert, KeepsTheImageTensorsAsTheyAre) {
  const auto unified = testing::golden_file("models/unified-a/model.safetensors");
  if (!unified) GTEST_SKIP() << "golden model not at hand: unified-a";
  const std::string source = unified->substr(0, unified->rfind('/'));
  ConvertOptions o = options(source, folder_.file("kept"), "mlx-q4g64");
  o.keep_vision = true;
  convert_checkpoint(o);
  const SafetensorsFile original = SafetensorsFile::open(*unified);
  const SafetensorsFile vision = SafetensorsFile::open(o.out + "/model-vision.safetensors");
  std::size_t expected = 0;
  for (const SafetensorsView& view : original.tensors())
    expected += !view.name.starts_with("model.language_model.");
  EXPECT_EQ(vision.tensors().size(), expected);
  for (const SafetensorsView& view : vision.tensors())
    EXPECT_TRUE(std::ranges::equal(view.bytes, original.at("model." + view.name).bytes)) << view.name;
  o.out = folder_.file("text");
  o.keep_vision = false;
  convert_checkpoint(o);
  EXPECT_FALSE(fs::exists(o.out + "/model-vision.safetensors"));
}

// From GGUF floats, the metadata comes along.
TEST(ConvertGguf, RoundsAGgufFileOfFloats) {
  const auto f16 = testing::golden_model("f16");
  if (!f16) GTEST_SKIP() << "golden model not at hand: f16";
  testing::TemporaryFolder folder;
  const ConvertOptions o = options(*f16, folder.file("q8.gguf"), "gguf-q8_0");
  const ConvertReport report = convert_checkpoint(o);
  EXPECT_LT(report.relative_error, 0.01);
  const Checkpoint before = open_checkpoint(*f16);
  const Checkpoint after = open_checkpoint(o.out);
  EXPECT_EQ(after.strings("tokenizer.ggml.tokens") != nullptr,
            before.strings("tokenizer.ggml.tokens") != nullptr);
  EXPECT_EQ(after.integer("gemma4.block_count"), before.integer("gemma4.block_count"));
  EXPECT_EQ(after.tensor("blk.0.ffn_up.weight")->type, StorageType::kQ8_0);
}

}  // namespace
}  // namespace gem
