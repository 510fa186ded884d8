// What is admitted and what is refused, by name.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "formats/gguf_writer.h"
#include "golden.h"
#include "model/assistant.h"
#include "model/manifest.h"
#include "model/model.h"
#include "model/schedule.h"
#include "model/synth.h"

namespace gem {
namespace {

using Metadata = std::map<std::string, MetadataValue, std::less<>>;
using Change = std::function<void(Metadata&)>;
using Filter = std::function<bool(const TensorView&)>;

class TemporaryFile {
 public:
  TemporaryFile()
      : path_(std::filesystem::temp_directory_path() /
              ("gem-admission-" + std::to_string(::getpid()) + "-" + std::to_string(count_++) + ".gguf")) {}
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

// Copies the bundled model with changed metadata and some tensors left out, and returns the refusal's
// message.
std::string refusal(
    const Change& change, const Filter& keep = [](const TensorView&) { return true; },
    AdmissionOptions options = {}) {
  const Checkpoint source = open_checkpoint(std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf");
  Metadata metadata = source.metadata();
  change(metadata);
  GgufWriter writer;
  for (const auto& [key, value] : metadata) {
    if (key != "general.alignment") writer.add_value(key, value);
  }
  for (const TensorView& t : source.tensors()) {
    if (keep(t)) writer.add_tensor(t.name, t.type, t.shape);
  }
  const TemporaryFile file;
  writer.write(file.path(), [&](const GgufWriter::Tensor& t, const GgufWriter::Sink& sink) {
    sink(source.tensor(t.name)->bytes);
  });
  try {
    Model::load(file.path(), options);
  } catch (const Error& e) {
    EXPECT_TRUE(e.code() == ErrorCode::kRefused || e.code() == ErrorCode::kBadFile) << e.what();
    return e.what();
  }
  return "admitted";
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

Change set(const std::string& key, MetadataValue value) {
  return [=](Metadata& m) { m[key] = value; };
}

TEST(Admission, TheBundledModelIsTheDemoProfile) {
  const auto model = Model::load(std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf");
  EXPECT_EQ(model->profile().name, "demo");
  EXPECT_EQ(refusal([](Metadata&) {}), "admitted");
}

TEST(Admission, ItsAssistantIsKnownAndRefusedAsAMainModel) {
  const std::string path = std::string(GEM_SOURCE_DIR) + "/models/mtp-gem-demo.gguf";
  const Checkpoint checkpoint = open_checkpoint(path);
  const Profile profile = read_profile(checkpoint, {});
  EXPECT_EQ(profile.name, "demo-assistant");
  EXPECT_NO_THROW(check_manifest(checkpoint, profile));
  try {
    Model::load(path);
    FAIL() << "admitted";
  } catch (const Error& e) {
    EXPECT_HAS(std::string(e.what()), "MTP assistant");
  }
}

TEST(Admission, ManifestsHaveThePublishedCounts) {
  EXPECT_EQ(make_manifest(*find_profile("12b")).size(), 667u);
  EXPECT_EQ(make_manifest(*find_profile("31b")).size(), 833u);
  EXPECT_EQ(make_manifest(*find_profile("12b-assistant")).size(), 49u);
  EXPECT_EQ(make_manifest(*find_profile("31b-assistant")).size(), 49u);
}

// The sums of elements published for the two models (spec: 11,907,350,576 and 30,697,345,596).
TEST(Admission, ManifestsHaveThePublishedElements) {
  const auto elements = [](const char* name) {
    std::uint64_t sum = 0;
    for (const ManifestEntry& e : make_manifest(*find_profile(name))) {
      std::uint64_t n = 1;
      for (const std::uint64_t d : e.shape) n *= d;
      sum += n;
    }
    return sum;
  };
  EXPECT_EQ(elements("12b"), 11907350576u);
  EXPECT_EQ(elements("31b"), 30697345596u);
}

TEST(Admission, OtherModelsAreRefusedByTheirNames) {
  EXPECT_HAS(refusal(set("gemma4.block_count", std::int64_t{35})), "Gemma 4 E2B");
  EXPECT_HAS(refusal(set("gemma4.block_count", std::int64_t{42})), "Gemma 4 E4B");
  EXPECT_HAS(refusal(set("gemma4.block_count", std::int64_t{30})), "Gemma 4 26B-A4B");
  EXPECT_HAS(refusal(set("gemma4.expert_count", std::int64_t{128})), "mixture of experts");
  EXPECT_HAS(refusal(set("gemma4.embedding_length_per_layer_input", std::int64_t{256})),
             "per-layer embeddings");
  EXPECT_HAS(refusal(set("gemma4.attention.shared_kv_layers", std::int64_t{20})), "shares keys and values");
  EXPECT_HAS(refusal(set("general.architecture", std::string_view("gemma3"))), "Gemma 3");
  EXPECT_HAS(refusal(set("general.architecture", std::string_view("llama"))), "\"llama\", expected gemma4");
}

TEST(Admission, ADifferentGeometryIsRefusedWithWhatWasExpected) {
  EXPECT_HAS(refusal(set("gemma4.attention.sliding_window", std::int64_t{127})),
             "the sliding window is 127, expected 128");
  EXPECT_HAS(refusal(set("gemma4.attention.head_count", std::int64_t{12})), "query heads is 12, expected 6");
  EXPECT_HAS(refusal(set("gemma4.rope.freq_base", 1e5)), "RoPE base of full layers");
  EXPECT_HAS(refusal(set("gemma4.final_logit_softcapping", 31.0)), "soft cap is 31, expected 30");
  EXPECT_HAS(refusal(set("gemma4.context_length", std::int64_t{8192})), "context length");
  EXPECT_HAS(refusal([](Metadata& m) { m.erase("gemma4.attention.sliding_window"); }),
             "gemma4.attention.sliding_window is missing");
}

// Cases 24 to 26 of the hardening list: nothing of this may divide by zero, allocate without bound or run.
TEST(Admission, AbsurdNumbersAreRefused) {
  const AdmissionOptions any{.any_geometry = true};
  const auto keep = [](const TensorView&) { return true; };
  const auto absurd = [&](const std::string& key, MetadataValue value) {
    return refusal(set(key, value), keep, any);
  };
  for (const std::int64_t layers : {std::int64_t{0}, std::int64_t{1'000'000'000}, std::int64_t{-1}})
    EXPECT_HAS(absurd("gemma4.block_count", layers), "block_count");
  EXPECT_HAS(absurd("gemma4.block_count", std::int64_t{11}), "elements");
  for (const char* key : {"gemma4.attention.head_count", "gemma4.attention.key_length",
                          "gemma4.attention.key_length_swa", "gemma4.attention.sliding_window",
                          "gemma4.embedding_length", "gemma4.feed_forward_length", "gemma4.context_length"}) {
    EXPECT_HAS(absurd(key, std::int64_t{0}), key);
    EXPECT_HAS(absurd(key, std::int64_t{1} << 40), key);
  }
  EXPECT_HAS(absurd("gemma4.attention.head_count_kv", std::int64_t{0}), "head_count_kv");
  EXPECT_HAS(absurd("gemma4.attention.head_count_kv", std::int64_t{4}), "evenly");
  for (const double value : {std::nan(""), 0.0, -1.0, double{INFINITY}}) {
    EXPECT_HAS(absurd("gemma4.rope.freq_base", value), "rope.freq_base");
    EXPECT_HAS(absurd("gemma4.final_logit_softcapping", value), "final_logit_softcapping");
    EXPECT_HAS(absurd("gemma4.attention.layer_norm_rms_epsilon", value), "layer_norm_rms_epsilon");
  }
  EXPECT_HAS(absurd("gemma4.attention.head_count", std::string_view("six")), "gemma4.attention.head_count");
}

TEST(Admission, MissingAndExtraTensorsAreNamed) {
  const std::string missing =
      refusal([](Metadata&) {}, [](const TensorView& t) { return t.name != "blk.3.attn_v.weight"; });
  EXPECT_HAS(missing, "blk.3.attn_v.weight: missing, expected shape [128, 384]");
  // A full layer with its own V projection is not the published model: rename one that the manifest knows
  // away.
  const Checkpoint source = open_checkpoint(std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf");
  GgufWriter writer;
  for (const auto& [key, value] : source.metadata()) {
    if (key != "general.alignment") writer.add_value(key, value);
  }
  for (const TensorView& t : source.tensors()) writer.add_tensor(t.name, t.type, t.shape);
  writer.add_tensor("blk.5.attn_v.weight", StorageType::kF32, {128, 384});
  writer.add_tensor("v.patch.weight", StorageType::kF32, {8});
  const TemporaryFile file;
  writer.write(file.path(), [&](const GgufWriter::Tensor& t, const GgufWriter::Sink& sink) {
    const TensorView* found = source.tensor(t.name);
    const std::vector<std::byte> zeros(t.bytes);
    sink(found != nullptr ? found->bytes : std::span<const std::byte>(zeros));
  });
  try {
    Model::load(file.path());
    FAIL() << "admitted";
  } catch (const Error& e) {
    EXPECT_HAS(std::string(e.what()), "blk.5.attn_v.weight: not part of");
    EXPECT_EQ(std::string(e.what()).find("v.patch.weight"), std::string::npos)
        << "vision tensors may lie beside the manifest";
  }
}

TEST(Admission, ASyntheticModelIsItsProfile) {
  const TemporaryFile file;
  write_synthetic(*find_profile("demo"), file.path(),
                  {.matrices = StorageType::kQ8_0, .table = StorageType::kF16, .seed = 3},
                  [](std::uint64_t, std::uint64_t) {});
  const auto model = Model::load(file.path());
  EXPECT_EQ(model->profile().name, "demo");
  EXPECT_EQ(model->weights().layers[0].q.type, StorageType::kQ8_0);
  // It runs, and its logits are finite and not all alike.
  const auto backend = make_backend(BackendKind::kCpu, *model, 1);
  const auto cache = backend->new_cache(KvPlan::make(model->geometry(), 16, 8));
  const std::vector<std::int32_t> ids = {2, 500, 600};
  const Span span[] = {{cache.get(), ids, {}, Wanted::kLast, Wanted::kNothing}};
  run_round(*backend, model->geometry().layers.size(), span);
  const std::span<const float> logits = backend->logits(0);
  for (const float x : logits) ASSERT_TRUE(std::isfinite(x));
  EXPECT_GT(*std::max_element(logits.begin(), logits.end()),
            *std::min_element(logits.begin(), logits.end()) + 0.1f);
}

// Codes are drawn; the values must have the deviation that was asked for, about zero.
TEST(Admission, SyntheticWeightsOfEveryTypeHaveTheSameDeviation) {
  Profile profile = *find_profile("demo");
  profile.geometry.hidden = 512;  // whole super-blocks
  profile.geometry.heads = 8;
  profile.geometry.ffn = 1024;
  for (const StorageType type :
       {StorageType::kQ4_0, StorageType::kQ4_1, StorageType::kQ5_0, StorageType::kQ5_1, StorageType::kQ8_0,
        StorageType::kQ4_K, StorageType::kQ5_K, StorageType::kQ6_K}) {
    SCOPED_TRACE(storage_info(type).name);
    const TemporaryFile file;
    write_synthetic(profile, file.path(), {.matrices = type, .table = StorageType::kQ8_0, .seed = 3},
                    [](std::uint64_t, std::uint64_t) {});
    const auto model = Model::load(file.path(), {.any_geometry = true});
    const Matrix& m = model->weights().layers[0].gate;
    ASSERT_EQ(m.type, type);
    double sum = 0;
    double squares = 0;
    std::vector<float> row(m.cols);
    for (std::uint32_t r = 0; r < m.rows; ++r) {
      dequantize(type, m.row(r), row.data(), row.size());
      for (const float x : row) {
        sum += x;
        squares += double{x} * x;
      }
    }
    const double count = static_cast<double>(m.rows) * m.cols;
    const double deviation = std::sqrt(squares / count);
    const double wanted = 1 / std::sqrt(512.0);
    EXPECT_NEAR(deviation, wanted, 0.25 * wanted);
    EXPECT_LT(std::fabs(sum / count), 0.15 * wanted);  // codes of an even number have no middle
  }
}

TEST(Admission, ASyntheticAssistantFitsItsTarget) {
  const TemporaryFile trunk;
  const TemporaryFile drafter;
  const auto quiet = [](std::uint64_t, std::uint64_t) {};
  write_synthetic(*find_profile("demo"), trunk.path(), {}, quiet);
  write_synthetic(*find_profile("demo-assistant"), drafter.path(), {}, quiet);
  const auto model = Model::load(trunk.path());
  EXPECT_EQ(Assistant::load(drafter.path(), *model)->profile().name, "demo-assistant");
}

}  // namespace
}  // namespace gem
