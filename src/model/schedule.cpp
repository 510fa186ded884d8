#include "model/schedule.h"

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

std::vector<SpanResult> run_round(Backend& backend, std::size_t layers, std::span<const Span> spans,
                                  const StageObserver& observer) {
  std::vector<RowSpan> row_spans;
  std::vector<std::int32_t> tokens;
  std::vector<float> embeddings;
  std::vector<std::uint32_t> final_rows;
  std::vector<std::uint32_t> logit_rows;
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
    for (std::uint32_t i = 0; i < rows; ++i) {
      const auto wants = [&](Wanted w) { return w == Wanted::kAll || (w == Wanted::kLast && i + 1 == rows); };
      if (!wants(span.logits) && !wants(span.hidden)) continue;
      if (wants(span.logits)) logit_rows.push_back(static_cast<std::uint32_t>(final_rows.size()));
      final_rows.push_back(first_row + i);
    }
    result.logits = static_cast<std::uint32_t>(logit_rows.size()) - result.first_logits;
    result.finals = static_cast<std::uint32_t>(final_rows.size()) - result.first_final;
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
  if (observer || !backend.run_all()) {
    stage(Stage::kEmbed, 0, [&] { backend.embed(); });
    for (std::uint32_t l = 0; l < layers; ++l) {
      stage(Stage::kAttnInput, l, [&] { backend.attn_input(l); });
      stage(Stage::kQkPrep, l, [&] { backend.qk_prep(l); });
      stage(Stage::kAttention, l, [&] { backend.attention(l); });
      stage(Stage::kAttnOutput, l, [&] { backend.attn_output(l); });
      stage(Stage::kFfnInput, l, [&] { backend.ffn_input(l); });
      stage(Stage::kFfnOutput, l, [&] { backend.ffn_output(l); });
    }
    if (!final_rows.empty()) stage(Stage::kFinalNorm, 0, [&] { backend.final_norm(); });
    if (!logit_rows.empty()) stage(Stage::kHead, 0, [&] { backend.head(); });
  }
  for (const Span& span : spans) span.cache->advance(static_cast<std::uint32_t>(span.tokens.size()));
  return results;
}

}  // namespace gem
