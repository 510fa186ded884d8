// A backend between the engine and a real one, by which tests watch rounds, hold them up or let them fail.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace gem::testing {

struct BackendHooks {
  std::function<void(const RoundRows&)> before_round;            // may throw: the round fails
  std::function<void(const RoundRows&)> before_assistant_round;  // of the assistants that it makes
  std::optional<bool> decode_equals_prompt;
  std::vector<KvType> kv_types;  // empty: those of the real one
  // After a layer's keys and values went into the caches: may write others there.
  std::function<void(std::uint32_t layer, std::span<const RowSpan>, const Backend&)> after_qk_prep;
  // Planted faults: other positions for a round's spans, other logits of a row.
  std::function<void(std::span<RowSpan>)> change_spans;
  std::function<void(std::uint32_t index, std::span<float>)> change_logits;
  bool nan_logits = false;
  bool nan_drafts = false;  // of the assistants that it makes
  std::function<std::unique_ptr<Backend>()> new_lane;
  std::optional<std::uint64_t> device_memory;
};

class WrappedBackend final : public Backend {
 public:
  WrappedBackend(std::unique_ptr<Backend> inner, BackendHooks hooks)
      : inner_(std::move(inner)), hooks_(std::move(hooks)) {}

  const char* name() const override { return inner_->name(); }
  std::string description() const override { return inner_->description(); }
  std::unique_ptr<KvCache> new_cache(const KvPlan& plan) override { return inner_->new_cache(plan); }
  std::span<const KvType> kv_types() const override {
    return hooks_.kv_types.empty() ? inner_->kv_types() : hooks_.kv_types;
  }
  std::uint32_t kv_element_bytes(StorageType storage) const override {
    return inner_->kv_element_bytes(storage);
  }
  bool decode_equals_prompt() const override {
    return hooks_.decode_equals_prompt.value_or(inner_->decode_equals_prompt());
  }
  std::uint64_t scratch_bytes(std::uint32_t rows, std::uint32_t logit_rows) const override {
    return inner_->scratch_bytes(rows, logit_rows);
  }
  std::uint32_t preferred_chunk() const override { return inner_->preferred_chunk(); }
  bool use_less_memory() override { return inner_->use_less_memory(); }
  std::optional<std::uint64_t> device_memory() const override {
    return hooks_.device_memory ? hooks_.device_memory : inner_->device_memory();
  }
  std::optional<std::uint64_t> weight_bytes() const override { return inner_->weight_bytes(); }
  void load_weights(const Progress& progress) override { inner_->load_weights(progress); }
  bool run_all() override { return inner_->run_all(); }
  std::unique_ptr<Backend> new_lane() override { return hooks_.new_lane ? hooks_.new_lane() : nullptr; }
  bool drafts() const override { return inner_->drafts(); }
  std::unique_ptr<Backend> new_assistant(const Geometry& geometry, const Weights& weights,
                                         ReleaseWeights release) override {
    BackendHooks hooks;
    hooks.nan_logits = hooks_.nan_drafts;
    hooks.before_round = hooks_.before_assistant_round;
    return std::make_unique<WrappedBackend>(inner_->new_assistant(geometry, weights, std::move(release)),
                                            hooks);
  }
  void post_project() override { inner_->post_project(); }
  void begin(const RoundRows& rows) override {
    if (hooks_.before_round) hooks_.before_round(rows);
    spans_.assign(rows.spans.begin(), rows.spans.end());
    if (hooks_.change_spans) hooks_.change_spans(spans_);
    RoundRows passed = rows;
    passed.spans = spans_;
    inner_->begin(passed);
  }
  void embed() override { inner_->embed(); }
  void attn_input(std::uint32_t layer) override { inner_->attn_input(layer); }
  void qk_prep(std::uint32_t layer) override {
    inner_->qk_prep(layer);
    if (hooks_.after_qk_prep) hooks_.after_qk_prep(layer, spans_, *inner_);
  }
  void attention(std::uint32_t layer) override { inner_->attention(layer); }
  void attn_output(std::uint32_t layer) override { inner_->attn_output(layer); }
  void ffn_input(std::uint32_t layer) override { inner_->ffn_input(layer); }
  void ffn_output(std::uint32_t layer) override { inner_->ffn_output(layer); }
  void final_norm() override { inner_->final_norm(); }
  void head() override { inner_->head(); }
  std::vector<float> read(Activation which) const override { return inner_->read(which); }
  void write(Activation which, std::span<const float> values) override { inner_->write(which, values); }
  std::span<const float> logits(std::uint32_t index) const override {
    const std::span<const float> row = inner_->logits(index);
    if (!hooks_.nan_logits && !hooks_.change_logits) return row;
    changed_.assign(row.begin(), row.end());
    if (hooks_.nan_logits)
      std::fill(changed_.begin(), changed_.end(), std::numeric_limits<float>::quiet_NaN());
    if (hooks_.change_logits) hooks_.change_logits(index, changed_);
    return changed_;
  }

 private:
  std::unique_ptr<Backend> inner_;
  BackendHooks hooks_;
  std::vector<RowSpan> spans_;  // of the round
  mutable std::vector<float> changed_;
};

}  // namespace gem::testing
