#include "model/manifest.h"

#include <fmt/ranges.h>

#include <unordered_set>

#include "base/error.h"
#include "formats/hf_names.h"

namespace gem {
namespace {

class Builder {
 public:
  void vector(std::string name, std::uint64_t n) {
    entries.push_back({std::move(name), {n}, TensorRole::kVector});
  }
  void matrix(std::string name, std::uint64_t rows, std::uint64_t cols) {
    entries.push_back({std::move(name), {rows, cols}, TensorRole::kMatrix});
  }
  std::vector<ManifestEntry> entries;
};

std::string problem_of(const TensorView* tensor, const ManifestEntry& entry) {
  if (tensor == nullptr)
    return fmt::format("{}: missing, expected shape [{}]", entry.name, fmt::join(entry.shape, ", "));
  if (tensor->shape != entry.shape) {
    return fmt::format("{}: shape [{}], expected [{}]", entry.name, fmt::join(tensor->shape, ", "),
                       fmt::join(entry.shape, ", "));
  }
  if (entry.role == TensorRole::kVector && tensor->type != StorageType::kF32) {
    return fmt::format("{}: stored as {}, expected F32", entry.name, tensor->storage_name());
  }
  return {};
}

}  // namespace

std::vector<ManifestEntry> make_manifest(const Profile& profile) {
  const Geometry& g = profile.geometry;
  const bool assistant = profile.role == ModelRole::kAssistant;
  Builder b;
  b.matrix("token_embd.weight", g.vocab, g.hidden);
  b.vector("output_norm.weight", g.hidden);
  std::uint32_t full_dim = 0;
  for (const LayerGeometry& l : g.layers) {
    if (l.kind == LayerKind::kFull) full_dim = l.head_dim;
  }
  if (full_dim != 0) b.vector("rope_freqs.weight", full_dim / 2);
  if (assistant) {
    b.matrix("nextn.pre_projection.weight", g.hidden, 2ull * profile.backbone);
    b.matrix("nextn.post_projection.weight", profile.backbone, g.hidden);
  }
  for (std::size_t i = 0; i < g.layers.size(); ++i) {
    const std::string blk = "blk." + std::to_string(i) + ".";
    const LayerGeometry& l = g.layers[i];
    b.vector(blk + "attn_norm.weight", g.hidden);
    b.matrix(blk + "attn_q.weight", g.query_width(i), g.hidden);
    b.vector(blk + "attn_q_norm.weight", l.head_dim);
    if (!assistant) {
      b.matrix(blk + "attn_k.weight", g.kv_width(i), g.hidden);
      if (!l.value_from_key) b.matrix(blk + "attn_v.weight", g.kv_width(i), g.hidden);
      b.vector(blk + "attn_k_norm.weight", l.head_dim);
    }
    b.matrix(blk + "attn_output.weight", g.hidden, g.query_width(i));
    b.vector(blk + "post_attention_norm.weight", g.hidden);
    b.vector(blk + "ffn_norm.weight", g.hidden);
    b.matrix(blk + "ffn_gate.weight", g.ffn, g.hidden);
    b.matrix(blk + "ffn_up.weight", g.ffn, g.hidden);
    b.matrix(blk + "ffn_down.weight", g.hidden, g.ffn);
    b.vector(blk + "post_ffw_norm.weight", g.hidden);
    b.vector(blk + "layer_output_scale.weight", 1);
  }
  return b.entries;
}

bool is_media_tensor(std::string_view name) {
  if (is_hf_media(name)) return true;
  return name.starts_with("v.") || name.starts_with("a.") || name.starts_with("mm.");
}

void check_manifest(const Checkpoint& checkpoint, const Profile& profile) {
  constexpr std::size_t kShown = 10;
  std::vector<std::string> problems;
  std::unordered_set<std::string> expected;
  for (const ManifestEntry& entry : make_manifest(profile)) {
    if (std::string problem = problem_of(checkpoint.tensor(entry.name), entry); !problem.empty()) {
      problems.push_back(std::move(problem));
    }
    expected.insert(entry.name);
  }
  for (const TensorView& tensor : checkpoint.tensors()) {
    if (!expected.contains(tensor.name) && !is_media_tensor(tensor.name)) {
      problems.push_back(fmt::format("{}: not part of {}", tensor.name, profile.title));
    }
  }
  if (problems.empty()) return;
  const std::size_t count = problems.size();
  if (count > kShown) problems.resize(kShown);
  fail(ErrorCode::kRefused, "{} tensor{} not as {} has them ({} expected):\n  {}{}", count,
       count == 1 ? " is" : "s are", profile.title, expected.size(), fmt::join(problems, "\n  "),
       count > kShown ? fmt::format("\n  and {} more", count - kShown) : "");
}

}  // namespace gem
