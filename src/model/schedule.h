// The fixed schedule: one forward pass over the spans of a round. A prompt chunk, a decode step of many
// streams and a verify window are all spans; there is one forward.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace gem {

enum class Wanted : std::uint8_t { kNothing, kLast, kAll };

// Rows of one stream that follow its cache's length.
struct Span {
  KvCache* cache = nullptr;
  std::span<const std::int32_t> tokens;  // < 0: a row of `embeddings`
  std::span<const float> embeddings;     // [rows with token < 0, hidden], already scaled
  Wanted logits = Wanted::kNothing;
  Wanted hidden = Wanted::kNothing;  // rows after the final norm, as drafters read them
  bool prompt = false;               // rows of a prompt, not of a reply (RowSpan::prompt)
  Wanted taps = Wanted::kNothing;    // rows of the residual after the layers that Taps names
};

// Where a span's results are in the backend: logits rows first_logits .. , final rows first_final .. .
struct SpanResult {
  std::uint32_t first_logits = 0;
  std::uint32_t logits = 0;
  std::uint32_t first_final = 0;
  std::uint32_t finals = 0;
  std::uint32_t first_tap = 0;  // rows of Taps
  std::uint32_t taps = 0;
};

// The residual after some layers, for drafters that read the target from within (DFlash: after the layer's
// residual additions and its scalar, before anything of the next layer; no norm).
struct Taps {
  std::span<const std::uint32_t> layers;  // in any order
  std::vector<float> rows;                // out: [rows wanted, layers, hidden], layers in that order
};

enum class Stage : std::uint8_t {
  kEmbed,
  kAttnInput,
  kQkPrep,
  kAttention,
  kAttnOutput,
  kFfnInput,
  kFfnOutput,
  kFinalNorm,
  kHead
};
const char* stage_name(Stage stage);

// Called before and after each stage (`layer` is 0 outside the layers); for profiling and stage tests.
using StageObserver = std::function<void(Stage stage, std::uint32_t layer, bool after)>;

// A round in pieces, stage after stage. The spans and their caches must be left alone until it is done; a
// round that is given up before leaves the caches at their lengths.
class Round {
 public:
  // Begins it. Error(kFailed) when a span does not fit its cache, Error(kUsage) when a tap names no layer;
  // nothing is changed then.
  Round(Backend& backend, std::size_t layers, std::span<const Span> spans, StageObserver observer = {},
        Taps* taps = nullptr);
  // So many more layers. With the last one the round ends: final norm, head, and the caches advance.
  void run(std::size_t layers);
  // The rest at once, by the backend's own way where it has one.
  void run_all();
  bool done() const { return done_; }
  std::size_t layers_left() const { return layers_ - next_; }
  const std::vector<SpanResult>& results() const { return results_; }

 private:
  void plan();
  template <typename Run>
  void stage(Stage which, std::uint32_t layer, const Run& run);
  void end();

  Backend& backend_;
  std::size_t layers_;
  std::vector<Span> spans_;
  StageObserver observer_;
  Taps* taps_;
  std::size_t next_ = 0;  // layer
  bool embedded_ = false, done_ = false;
  std::vector<RowSpan> row_spans_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> embeddings_;
  std::vector<std::uint32_t> final_rows_, logit_rows_, tap_rows_;
  std::vector<SpanResult> results_;
};

// Runs one round and advances the caches by their spans' rows. Error(kFailed) when a span does not fit its
// cache, Error(kUsage) when a tap names no layer; nothing is changed then. With `taps`, as with an observer,
// the stages run one after the other.
std::vector<SpanResult> run_round(Backend& backend, std::size_t layers, std::span<const Span> spans,
                                  const StageObserver& observer = {}, Taps* taps = nullptr);

}  // namespace gem
