#include "model/schedule.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace gem {

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kEmbed:
      return "embed";
    case Stage::kAttnInput:
      return "attn_input";
    case Stage::kQkPrep:
      return "qk_prep";
    case Stage::kAttention:
      return "attention";
    case Stage::kAttnOutput:
      return "attn_output";
    case Stage::kFfnInput:
      return "ffn_input";
    case Stage::kFfnOutput:
      return "ffn_output";
    case Stage::kFinalNorm:
      return "final_norm";
    case Stage::kHead:
      return "head";
  }
  return "?";
}

namespace {

// Copies the wanted rows of the residual after `layer` to their places.
void tap(const Backend& backend, std::uint32_t layer, std::span<const std::uint32_t> rows,
         std::size_t all_rows, Taps& taps) {
  const std::size_t count = taps.layers.size();
  if (rows.empty() || std::find(taps.layers.begin(), taps.layers.end(), layer) == taps.layers.end()) return;
  const std::vector<float> residual = backend.read(Activation::kResidual);
  const std::size_t width = residual.size() / all_rows;
  taps.rows.resize(rows.size() * count * width);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t t = 0; t < count; ++t) {
      if (taps.layers[t] != layer) continue;
      std::copy_n(residual.begin() + static_cast<std::ptrdiff_t>(rows[i] * width), width,
                  taps.rows.begin() + static_cast<std::ptrdiff_t>((i * count + t) * width));
    }
  }
}

}  // namespace

Round::Round(Backend& backend, std::size_t layers, std::span<const Span> spans, StageObserver observer,
             Taps* taps)
    : backend_(backend),
      layers_(layers),
      spans_(spans.begin(), spans.end()),
      observer_(std::move(observer)),
      taps_(taps) {
  plan();
  if (tokens_.empty()) {
    done_ = true;
    return;
  }
  for (const Span& span : spans_) span.cache->prepare(static_cast<std::uint32_t>(span.tokens.size()));
  backend_.begin({row_spans_, tokens_, embeddings_, final_rows_, logit_rows_});
}

void Round::plan() {
  if (taps_ != nullptr) {
    taps_->rows.clear();
    for (const std::uint32_t layer : taps_->layers) {
      if (layer >= layers_) fail(ErrorCode::kUsage, "a tap after layer {}, the model has {}", layer, layers_);
    }
  }
  for (const Span& span : spans_) {
    const auto rows = static_cast<std::uint32_t>(span.tokens.size());
    const KvPlan& plan = span.cache->plan();
    if (rows == 0 || rows > plan.max_span || rows > plan.context - span.cache->length()) {
      fail(ErrorCode::kFailed,
           "a span of {} rows at position {} does not fit a cache of {} positions and spans of {}", rows,
           span.cache->length(), plan.context, plan.max_span);
    }
    SpanResult result;
    result.first_logits = static_cast<std::uint32_t>(logit_rows_.size());
    result.first_final = static_cast<std::uint32_t>(final_rows_.size());
    const auto first_row = static_cast<std::uint32_t>(tokens_.size());
    result.first_tap = static_cast<std::uint32_t>(tap_rows_.size());
    for (std::uint32_t i = 0; i < rows; ++i) {
      const auto wants = [&](Wanted w) { return w == Wanted::kAll || (w == Wanted::kLast && i + 1 == rows); };
      if (taps_ != nullptr && wants(span.taps)) tap_rows_.push_back(first_row + i);
      if (!wants(span.logits) && !wants(span.hidden)) continue;
      if (wants(span.logits)) logit_rows_.push_back(static_cast<std::uint32_t>(final_rows_.size()));
      final_rows_.push_back(first_row + i);
    }
    result.logits = static_cast<std::uint32_t>(logit_rows_.size()) - result.first_logits;
    result.finals = static_cast<std::uint32_t>(final_rows_.size()) - result.first_final;
    result.taps = static_cast<std::uint32_t>(tap_rows_.size()) - result.first_tap;
    results_.push_back(result);
    row_spans_.push_back({span.cache, span.cache->length(), rows, span.prompt});
    tokens_.insert(tokens_.end(), span.tokens.begin(), span.tokens.end());
    embeddings_.insert(embeddings_.end(), span.embeddings.begin(), span.embeddings.end());
  }
}

template <typename Run>
void Round::stage(Stage which, std::uint32_t layer, const Run& run) {
  if (observer_) observer_(which, layer, false);
  run();
  if (observer_) observer_(which, layer, true);
}

void Round::run(std::size_t layers) {
  if (done_) return;
  if (!std::exchange(embedded_, true)) stage(Stage::kEmbed, 0, [&] { backend_.embed(); });
  for (; layers > 0 && next_ < layers_; --layers, ++next_) {
    const auto l = static_cast<std::uint32_t>(next_);
    stage(Stage::kAttnInput, l, [&] { backend_.attn_input(l); });
    stage(Stage::kQkPrep, l, [&] { backend_.qk_prep(l); });
    stage(Stage::kAttention, l, [&] { backend_.attention(l); });
    stage(Stage::kAttnOutput, l, [&] { backend_.attn_output(l); });
    stage(Stage::kFfnInput, l, [&] { backend_.ffn_input(l); });
    stage(Stage::kFfnOutput, l, [&] { backend_.ffn_output(l); });
    if (taps_ != nullptr) tap(backend_, l, tap_rows_, tokens_.size(), *taps_);
  }
  if (next_ < layers_) return;
  if (!final_rows_.empty()) stage(Stage::kFinalNorm, 0, [&] { backend_.final_norm(); });
  if (!logit_rows_.empty()) stage(Stage::kHead, 0, [&] { backend_.head(); });
  end();
}

void Round::run_all() {
  if (done_) return;
  if (embedded_ || observer_ || !tap_rows_.empty() || !backend_.run_all()) return run(layers_left());
  end();
}

void Round::end() {
  for (const Span& span : spans_) span.cache->advance(static_cast<std::uint32_t>(span.tokens.size()));
  done_ = true;
}

std::vector<SpanResult> run_round(Backend& backend, std::size_t layers, std::span<const Span> spans,
                                  const StageObserver& observer, Taps* taps) {
  Round round(backend, layers, spans, observer, taps);
  round.run_all();
  return round.results();
}

}  // namespace gem
