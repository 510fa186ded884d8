// The MTP assistant against recorded chains of an independent float64 implementation, and its pairing.
#include "model/assistant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <list>
#include <map>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "backend/oracle/oracle.h"
#include "base/error.h"
#include "base/numbers.h"
#include "formats/gguf_writer.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder.h"
#include "golden.h"
#include "model/manifest.h"
#include "model/schedule.h"
#include "model/weights.h"

namespace gem {
namespace {

// The golden models' sizes (their config.json): width 128, 12 layers, 4 query heads, 2/1 KV heads of 32/64,
// FFN 256, window 32, vocabulary 1,024; the assistant: width 64, FFN 128.
Profile golden_target() {
  Profile p{"custom", "the golden model", ModelRole::kTrunk, {}, 0};
  Geometry& g = p.geometry;
  g.hidden = 128;
  g.ffn = 256;
  g.heads = 4;
  g.window = 32;
  g.vocab = 1024;
  g.context = 4096;
  g.norm_epsilon = 1e-6f;
  g.softcap = 30;
  g.embedding_multiplier = bf16_to_f32(f32_to_bf16(std::sqrt(128.0f)));
  g.rope_base_sliding = 1e4;
  g.rope_base_full = 1e6;
  for (int i = 0; i < 12; ++i) {
    g.layers.push_back(i % 6 == 5 ? LayerGeometry{LayerKind::kFull, 64, 1, true}
                                  : LayerGeometry{LayerKind::kSliding, 32, 2, false});
  }
  return p;
}
Profile golden_assistant() {
  Profile p = golden_target();
  p.title = "the golden assistant";
  p.role = ModelRole::kAssistant;
  p.backbone = 128;
  p.geometry.hidden = 64;
  p.geometry.ffn = 128;
  p.geometry.softcap = 0;
  p.geometry.layers = {p.geometry.layers[0], p.geometry.layers[0], p.geometry.layers[0],
                       p.geometry.layers[5]};
  return p;
}

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"
std::string hugging_face_name(const std::string& name) {
  static const std::map<std::string, std::string> kPlain = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"nextn.pre_projection.weight", "pre_projection.weight"},
      {"nextn.post_projection.weight", "post_projection.weight"}};
  static const std::map<std::string, std::string> kLayer = {
      {"attn_norm.weight", "input_layernorm.weight"},
      {"attn_q.weight", "self_attn.q_proj.weight"},
      {"attn_q_norm.weight", "self_attn.q_norm.weight"},
      {"attn_k.weight", "self_attn.k_proj.weight"},
      {"attn_v.weight", "self_attn.v_proj.weight"},
      {"attn_k_norm.weight", "self_attn.k_norm.weight"},
      {"attn_output.weight", "self_attn.o_proj.weight"},
      {"post_attention_norm.weight", "post_attention_layernorm.weight"},
      {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
      {"ffn_gate.weight", "mlp.gate_proj.weight"},
      {"ffn_up.weight", "mlp.up_proj.weight"},
      {"ffn_down.weight", "mlp.down_proj.weight"},
      {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
      {"layer_output_scale.weight", "layer_scalar"}};
  if (!name.starts_with("blk.")) return kPlain.at(name);
  const std::size_t dot = name.find('.', 4);
  return "model.layers." + name.substr(4, dot - 4) + "." + kLayer.at(name.substr(dot + 1));
}

// The tensors of a golden safetensors file under the manifest's names; vectors in f32, matrices as stored.
class Converted {
 public:
  Converted(const std::string& path, const Profile& profile) : file_(SafetensorsFile::open(path)) {
    for (const ManifestEntry& e : make_manifest(profile)) {
      std::vector<float> values;
      if (e.name == "rope_freqs.weight") {
        values.assign(e.shape[0], 1e30f);
        std::fill_n(values.begin(), values.size() / 4, 1.0f);
      } else {
        const SafetensorsView& view = file_.at(hugging_face_name(e.name));
        if (e.role == TensorRole::kMatrix) {
          checkpoint.add_tensor({e.name, StorageType::kBF16, e.shape, view.bytes});
          continue;
        }
        values = view.floats();
      }
      kept_.push_back(std::move(values));
      checkpoint.add_tensor({e.name, StorageType::kF32, e.shape, std::as_bytes(std::span(kept_.back()))});
    }
  }
  Checkpoint checkpoint;

 private:
  SafetensorsFile file_;
  std::list<std::vector<float>> kept_;
};

TEST(Assistant, ManifestHas49Tensors) {
  EXPECT_EQ(make_manifest(golden_assistant()).size(), 49u);
}

void expect_the_golden_chains(BackendKind kind, double bound) {
  GEM_GOLDEN_OR_SKIP(target_path, "models/dense-a/model.safetensors");
  GEM_GOLDEN_OR_SKIP(assistant_path, "models/dense-a/assistant/model.safetensors");
  GEM_GOLDEN_OR_SKIP(chain_path, "models/dense-a/assistant/expected-chain.safetensors");
  GEM_GOLDEN_OR_SKIP(reference_path, "models/dense-a/expected-bf16.safetensors");
  const Profile target = golden_target();
  Profile assistant = golden_assistant();
  pair_with_target(assistant, target);
  const Converted target_file(target_path, target);
  const Converted assistant_file(assistant_path, assistant);
  check_manifest(target_file.checkpoint, target);
  check_manifest(assistant_file.checkpoint, assistant);
  const Weights target_weights = bind_weights(target_file.checkpoint, target);
  Weights weights = bind_weights(assistant_file.checkpoint, assistant);
  weights.target_embd = target_weights.token_embd;
  weights.target_multiplier = target.geometry.embedding_multiplier;
  const SafetensorsFile expected = SafetensorsFile::open(chain_path);
  std::vector<std::int32_t> ids;
  const SafetensorsFile reference = SafetensorsFile::open(reference_path);
  for (const std::int64_t id : reference.at("input_ids").integers())
    ids.push_back(static_cast<std::int32_t>(id));

  const auto backend = kind == BackendKind::kOracle ? make_oracle_backend(target.geometry, target_weights)
                       : kind == BackendKind::kCuda ? make_cuda_backend(target.geometry, target_weights)
                                                    : make_cpu_backend(target.geometry, target_weights, 2);
  const auto drafter = backend->new_assistant(assistant.geometry, weights, {});
  for (const std::uint32_t n : {12u, 40u, 77u}) {
    const auto cache = backend->new_cache(KvPlan::make(target.geometry, n, n, choose_kv_type(*backend, {})));
    const Span span[] = {{cache.get(), std::span(ids).first(n), {}, Wanted::kLast, Wanted::kLast}};
    run_round(*backend, target.geometry.layers.size(), span);
    const auto tag = std::to_string(n);
    const std::vector<std::int64_t> tokens = expected.at("tokens_" + tag).integers();
    const std::vector<float> logits = expected.at("logits_" + tag).floats();
    const std::vector<float> rows = expected.at("hidden_" + tag).floats();
    const auto compare = [&](std::span<const float> found, std::span<const float> wanted, const char* what,
                             std::size_t step) {
      ASSERT_EQ(found.size(), wanted.size());
      double worst = 0;
      for (std::size_t i = 0; i < found.size(); ++i)
        worst = std::max(worst, std::fabs(double{found[i]} - double{wanted[i]}));
      EXPECT_LE(worst, bound) << what << " after " << n << ", step " << step;
    };
    std::vector<float> hidden = backend->read(Activation::kFinal);
    compare(hidden, std::span(rows).first(128), "hidden", 0);
    const std::span<const float> last = backend->logits(0);
    std::int64_t token = std::max_element(last.begin(), last.end()) - last.begin();
    for (std::size_t step = 0; step < 7; ++step) {
      EXPECT_EQ(token, tokens[step]) << "after " << n << ", step " << step;
      const ChainRow row[] = {{cache.get(), n, static_cast<std::int32_t>(token), hidden}};
      hidden = run_chain_step(*drafter, assistant.geometry, row);
      const std::span<const float> found = drafter->logits(0);
      compare(found, std::span(logits).subspan(step * 1024, 1024), "logits", step + 1);
      compare(hidden, std::span(rows).subspan((step + 1) * 128, 128), "hidden", step + 1);
      token = std::max_element(found.begin(), found.end()) - found.begin();
    }
    EXPECT_EQ(token, tokens[7]);
    EXPECT_EQ(cache->length(), n) << "the chain only reads";
  }
}

TEST(Assistant, ChainsEqualTheGoldens) {
  expect_the_golden_chains(BackendKind::kOracle, 1e-3);
  expect_the_golden_chains(BackendKind::kCpu, 5e-3);
}

// Keys and values in f16.
TEST(Assistant, CudaChainsEqualTheGoldens) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  expect_the_golden_chains(BackendKind::kCuda, 2e-2);
}

// Rows of several chains in one pass give the bits that each gives alone.
void expect_chains_together_as_alone(BackendKind kind) {
  const std::string models = std::string(GEM_SOURCE_DIR) + "/models/";
  const auto model = Model::load(models + "gem-demo.gguf");
  const auto assistant = Assistant::load(models + "mtp-gem-demo.gguf", *model);
  const auto backend = make_backend(kind, *model, 2);
  const auto drafter = make_assistant_backend(*backend, *assistant);
  const Geometry& g = model->geometry();
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<std::vector<float>> hidden;
  for (const std::uint32_t n : {3u, 150u, 40u}) {
    caches.push_back(backend->new_cache(KvPlan::make(g, n, n, choose_kv_type(*backend, {}))));
    std::vector<std::int32_t> ids(n);
    for (std::uint32_t i = 0; i < n; ++i) ids[i] = static_cast<std::int32_t>(500 + (i * 37 + n) % 3000);
    const Span span[] = {{caches.back().get(), ids, {}, Wanted::kNothing, Wanted::kLast, true}};
    run_round(*backend, g.layers.size(), span);
    hidden.push_back(backend->read(Activation::kFinal));
  }
  std::vector<ChainRow> rows;
  std::vector<std::vector<float>> logits, next;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    rows.push_back({caches[i].get(), caches[i]->length(), static_cast<std::int32_t>(900 + i), hidden[i]});
    next.push_back(run_chain_step(*drafter, assistant->geometry(), std::span(rows).subspan(i, 1)));
    logits.emplace_back(drafter->logits(0).begin(), drafter->logits(0).end());
  }
  EXPECT_NE(logits[0], logits[1]);
  const std::vector<float> together = run_chain_step(*drafter, assistant->geometry(), rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::span<const float> found = drafter->logits(static_cast<std::uint32_t>(i));
    EXPECT_TRUE(std::equal(found.begin(), found.end(), logits[i].begin())) << i;
    EXPECT_TRUE(std::equal(next[i].begin(), next[i].end(),
                           together.begin() + static_cast<std::ptrdiff_t>(i * g.hidden)));
  }
}

TEST(Assistant, ChainsTogetherEqualAlone) {
  expect_chains_together_as_alone(BackendKind::kCpu);
}
TEST(Assistant, CudaChainsTogetherEqualAlone) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  expect_chains_together_as_alone(BackendKind::kCuda);
}

std::string refusal(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& e) {
    return e.code() == ErrorCode::kRefused ? e.what() : "not a refusal: " + std::string(e.what());
  }
  return "none";
}

TEST(Assistant, PairingNamesWhatDiffers) {
  const Profile& target = *find_profile("12b");
  Profile right = *find_profile("12b-assistant");
  pair_with_target(right, target);
  EXPECT_EQ(right.geometry.backbone, 3840u);
  std::vector<std::uint32_t> sources;
  for (const LayerGeometry& l : right.geometry.layers) sources.push_back(l.kv_source.value());
  EXPECT_EQ(sources, (std::vector<std::uint32_t>{46, 46, 46, 47}));  // the target's last of each kind

  const auto with = [&](const std::function<void(Profile&)>& change) {
    Profile wrong = *find_profile("12b-assistant");
    change(wrong);
    return refusal([&] { pair_with_target(wrong, target); });
  };
  EXPECT_NE(with([](Profile& p) { p.backbone = 5376; }).find("hidden width is 5376, the target's 3840"),
            std::string::npos);
  EXPECT_NE(with([](Profile& p) { p.geometry.window = 512; }).find("window is 512"), std::string::npos);
  EXPECT_NE(with([](Profile& p) { p.geometry.vocab = 4096; }).find("vocabulary is 4096"), std::string::npos);
  EXPECT_NE(with([](Profile& p) {
              p.geometry.layers[3].kv_heads = 2;
            }).find("layer 3: the number of KV heads is 2"),
            std::string::npos);
  EXPECT_NE(
      with([](Profile& p) { p.geometry.layers[1].head_dim = 128; }).find("layer 1: the head width is 128"),
      std::string::npos);
  Profile other = *find_profile("31b-assistant");
  EXPECT_NE(refusal([&] { pair_with_target(other, target); }).find("not for Gemma 4 12B"), std::string::npos);
}

TEST(Assistant, OtherFilesAreRefusedByName) {
  const std::string models = std::string(GEM_SOURCE_DIR) + "/models/";
  const auto model = Model::load(models + "gem-demo.gguf");
  EXPECT_NE(refusal([&] { Assistant::load(models + "gem-demo.gguf", *model); }).find("a model of its own"),
            std::string::npos);
  EXPECT_NE(refusal([&] { Model::load(models + "mtp-gem-demo.gguf"); }).find("a drafter that runs beside"),
            std::string::npos);
  EXPECT_NO_THROW(Assistant::load(models + "mtp-gem-demo.gguf", *model));
}

}  // namespace
}  // namespace gem
