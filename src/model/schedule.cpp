#include "model/schedule.h"

#include <algorithm>

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

std::vector<SpanResult> run_round(Backend& backend, std::size_t layers, std::span<const Span> spans,
                                  const StageObserver& observer, Taps* taps) {
  if (taps != nullptr) {
    taps->rows.clear();
    for (const std::uint32_t layer : taps->layers) {
      if (layer >= layers) fail(ErrorCode::kUsage, "a tap after layer {}, the model has {}", layer, layers);
    }
  }
  std::vector<RowSpan> row_spans;
  std::vector<std::int32_t> tokens;
  std::vector<float> embeddings;
  std::vector<std::uint32_t> final_rows;
  std::vector<std::uint32_t> logit_rows;
  std::vector<std::uint32_t> tap_rows;
  std::vector<SpanResult> results;
  for (const Span& span : spans) {
    const auto rows = static_cast<std::uint32_t>(span.tokens.size());
    const KvPlan& plan = span.cache->plan();
    if (rows == 0 || rows > plan.max_span || rows > plan.context - span.cache->length()) {
      fail(ErrorCode::kFailed,
           "a span of {} rows at position {} does not fit a cache of {} positions and spans of {}", rows,
           span.cache->length(), plan.context, plan.max_span);
    }
    SpanResult result;
    result.first_logits = static_cast<std::uint32_t>(logit_rows.size());
    result.first_final = static_cast<std::uint32_t>(final_rows.size());
    const auto first_row = static_cast<std::uint32_t>(tokens.size());
    result.first_tap = static_cast<std::uint32_t>(tap_rows.size());
    for (std::uint32_t i = 0; i < rows; ++i) {
      const auto wants = [&](Wanted w) { return w == Wanted::kAll || (w == Wanted::kLast && i + 1 == rows); };
      if (taps != nullptr && wants(span.taps)) tap_rows.push_back(first_row + i);
      if (!wants(span.logits) && !wants(span.hidden)) continue;
      if (wants(span.logits)) logit_rows.push_back(static_cast<std::uint32_t>(final_rows.size()));
      final_rows.push_back(first_row + i);
    }
    result.logits = static_cast<std::uint32_t>(logit_rows.size()) - result.first_logits;
    result.finals = static_cast<std::uint32_t>(final_rows.size()) - result.first_final;
    result.taps = static_cast<std::uint32_t>(tap_rows.size()) - result.first_tap;
    results.push_back(result);
    row_spans.push_back({span.cache, span.cache->length(), rows, span.prompt});
    tokens.insert(tokens.end(), span.tokens.begin(), span.tokens.end());
    embeddings.insert(embeddings.end(), span.embeddings.begin(), span.embeddings.end());
  }
  if (tokens.empty()) return results;

  const auto stage = [&](Stage which, std::uint32_t layer, auto&& run) {
    if (observer) observer(which, layer, false);
    run();
    if (observer) observer(which, layer, true);
  };
  for (const Span& span : spans) span.cache->prepare(static_cast<std::uint32_t>(span.tokens.size()));
  backend.begin({row_spans, tokens, embeddings, final_rows, logit_rows});
  if (observer || !tap_rows.empty() || !backend.run_all()) {
    stage(Stage::kEmbed, 0, [&] { backend.embed(); });
    for (std::uint32_t l = 0; l < layers; ++l) {
      stage(Stage::kAttnInput, l, [&] { backend.attn_input(l); });
      stage(Stage::kQkPrep, l, [&] { backend.qk_prep(l); });
      stage(Stage::kAttention, l, [&] { backend.attention(l); });
      stage(Stage::kAttnOutput, l, [&] { backend.attn_output(l); });
      stage(Stage::kFfnInput, l, [&] { backend.ffn_input(l); });
      stage(Stage::kFfnOutput, l, [&] { backend.ffn_output(l); });
      if (taps != nullptr) tap(backend, l, tap_rows, tokens.size(), *taps);
    }
    if (!final_rows.empty()) stage(Stage::kFinalNorm, 0, [&] { backend.final_norm(); });
    if (!logit_rows.empty()) stage(Stage::kHead, 0, [&] { backend.head(); });
  }
  for (const Span& span : spans) span.cache->advance(static_cast<std::uint32_t>(span.tokens.size()));
  return results;
}

}  // namespace gem
