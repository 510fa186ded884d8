#include "model/stage_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "backend/oracle/oracle.h"
#include "base/numbers.h"

namespace gem {
namespace {

constexpr std::uint32_t kRowCounts[] = {1, 2, 7, 16};
constexpr std::uint32_t kControlRows = 2;  // the round in which the planted faults must show

// What a stage reads and writes.
std::vector<Activation> inputs_of(Stage stage) {
  switch (stage) {
    case Stage::kEmbed:
      return {};
    case Stage::kQkPrep:
      return {Activation::kQuery, Activation::kKey, Activation::kValue};
    case Stage::kAttention:
      return {Activation::kQuery};
    case Stage::kAttnOutput:
      return {Activation::kAttention, Activation::kResidual};
    case Stage::kFfnOutput:
      return {Activation::kFfn, Activation::kResidual};
    case Stage::kAttnInput:
    case Stage::kFfnInput:
    case Stage::kFinalNorm:
      return {Activation::kResidual};
    case Stage::kHead:
      return {Activation::kFinal};
  }
  return {};
}

std::vector<Activation> outputs_of(Stage stage) {
  switch (stage) {
    case Stage::kAttnInput:
      return {Activation::kQuery, Activation::kKey, Activation::kValue};
    case Stage::kQkPrep:
      return {Activation::kQuery};  // and the cache rows
    case Stage::kAttention:
      return {Activation::kAttention};
    case Stage::kFfnInput:
      return {Activation::kFfn};
    case Stage::kFinalNorm:
      return {Activation::kFinal};
    case Stage::kHead:
      return {Activation::kLogits};
    case Stage::kEmbed:
    case Stage::kAttnOutput:
    case Stage::kFfnOutput:
      return {Activation::kResidual};
  }
  return {};
}

// Largest difference within a row over the root mean square of the reference row; NaN wins.
double row_error(const std::vector<float>& found, const std::vector<float>& expected, std::size_t rows) {
  if (found.size() != expected.size() || rows == 0) return INFINITY;
  const std::size_t width = expected.size() / rows;
  double worst = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    double largest = 0;
    double squares = 0;
    for (std::size_t i = r * width; i < (r + 1) * width; ++i) {
      const double difference = std::fabs(double{found[i]} - double{expected[i]});
      if (!(difference <= largest)) largest = difference;
      squares += double{expected[i]} * double{expected[i]};
    }
    const double error = largest / std::max(1e-30, std::sqrt(squares / static_cast<double>(width)));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

// The neighbour of a finite 16-bit number, of either type.
float neighbour(StorageType storage, float value, int step) {
  const bool f16 = storage == StorageType::kF16;
  const int bits = f16 ? f32_to_f16(value) : f32_to_bf16(value);
  // Sign and magnitude as one order: the numbers below zero downwards.
  const int order = ((bits & 0x8000) != 0 ? -(bits & 0x7fff) : bits) + step;
  const auto next = static_cast<std::uint16_t>(order < 0 ? -order | 0x8000 : order);
  return f16 ? f16_to_f32(next) : bf16_to_f32(next);
}

// Distance of `exact` from the numbers that are stored as `found`. Infinite where `found` is.
double stored_error(StorageType storage, double exact, float found) {
  if (storage == StorageType::kF32 || !std::isfinite(found)) return std::fabs(double{found} - exact);
  const float low = neighbour(storage, found, -1);
  const float high = neighbour(storage, found, 1);
  // A number of the type is its neighbours' neighbour.
  if (neighbour(storage, high, -1) != found || neighbour(storage, low, 1) != found)
    return std::fabs(double{found} - double{neighbour(storage, found, 0)});
  return std::max(
      {0.0, (double{low} + double{found}) / 2 - exact, exact - (double{found} + double{high}) / 2});
}

// The measure of a stored row, from what the oracle rounds.
double stored_row_error(StorageType storage, const std::vector<float>& found, const float* exact) {
  double largest = 0;
  double squares = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double error = stored_error(storage, double{exact[i]}, found[i]);
    if (!(error <= largest)) largest = error;
    squares += double{exact[i]} * double{exact[i]};
  }
  return largest / std::max(1e-30, std::sqrt(squares / static_cast<double>(found.size())));
}

void run_stage(Backend& b, Stage stage, std::uint32_t layer) {
  switch (stage) {
    case Stage::kEmbed:
      return b.embed();
    case Stage::kAttnInput:
      return b.attn_input(layer);
    case Stage::kQkPrep:
      return b.qk_prep(layer);
    case Stage::kAttention:
      return b.attention(layer);
    case Stage::kAttnOutput:
      return b.attn_output(layer);
    case Stage::kFfnInput:
      return b.ffn_input(layer);
    case Stage::kFfnOutput:
      return b.ffn_output(layer);
    case Stage::kFinalNorm:
      return b.final_norm();
    case Stage::kHead:
      return b.head();
  }
}

// The oracle and the tested backends walking the same rounds, the latter from the oracle's inputs at every
// stage.
class Walk {
 public:
  // `kv_types`: of the tested backends' caches.
  Walk(const Geometry& geometry, Backend& oracle, KvType oracle_kv, std::vector<Backend*> tested,
       const std::vector<KvType>& kv_types, std::uint64_t seed, bool prompt)
      : g_(geometry),
        oracle_(oracle),
        tested_(std::move(tested)),
        random_(seed),
        prompt_(prompt),
        worst_(tested_.size()) {
    const std::uint32_t prefix = geometry.window + geometry.window / 2 + 5;
    const auto plan = [&](KvType type) {
      return KvPlan::make(geometry, prefix + kLargestSpan, kLargestSpan, type);
    };
    oracle_cache_ = oracle.new_cache(plan(oracle_kv));
    for (std::size_t i = 0; i < tested_.size(); ++i)
      tested_caches_.push_back(tested_[i]->new_cache(plan(kv_types[i])));
    for (std::uint32_t at = 0; at < prefix;) {
      const std::uint32_t rows = std::min(kLargestSpan, prefix - at);
      round(rows, false);
      at += rows;
    }
  }

  // Worst error of each stage over the layers in a round of `rows` rows, a map for each tested backend. The
  // caches stay as they were.
  const std::vector<std::map<Stage, double>>& measure(std::uint32_t rows) {
    for (auto& worst : worst_) worst.clear();
    const std::uint32_t length = oracle_cache_->length();
    round(rows, true);
    oracle_cache_->roll_back_to(length);
    for (auto& cache : tested_caches_) cache->roll_back_to(length);
    return worst_;
  }

 private:
  static constexpr std::uint32_t kLargestSpan = 32;

  void round(std::uint32_t rows, bool measured) {
    std::vector<std::int32_t> tokens;
    for (std::uint32_t i = 0; i < rows; ++i)
      tokens.push_back(static_cast<std::int32_t>(random_() % g_.vocab));
    const std::vector<std::uint32_t> final_rows(measured ? 1 : 0, rows - 1);
    const std::vector<std::uint32_t> logit_rows(measured ? 1 : 0, 0);
    const auto begin = [&](Backend& backend, KvCache& cache) {
      const RowSpan span[] = {{&cache, cache.length(), rows, prompt_}};
      backend.begin({span, tokens, {}, final_rows, logit_rows});
    };
    begin(oracle_, *oracle_cache_);
    for (std::size_t i = 0; i < tested_.size(); ++i) begin(*tested_[i], *tested_caches_[i]);
    stage(Stage::kEmbed, 0, rows, measured);
    for (std::uint32_t l = 0; l < g_.layers.size(); ++l) {
      for (const Stage s : {Stage::kAttnInput, Stage::kQkPrep, Stage::kAttention, Stage::kAttnOutput,
                            Stage::kFfnInput, Stage::kFfnOutput}) {
        stage(s, l, rows, measured);
      }
    }
    if (measured) {
      stage(Stage::kFinalNorm, 0, 1, true);
      stage(Stage::kHead, 0, 1, true);
    }
    oracle_cache_->advance(rows);
    for (auto& cache : tested_caches_) cache->advance(rows);
  }

  void stage(Stage s, std::uint32_t layer, std::uint32_t rows, bool measured) {
    for (const Activation a : inputs_of(s)) {
      const std::vector<float> values = oracle_.read(a);
      oracle_.write(a, values);  // all start from the same f32 values
      for (Backend* backend : tested_) backend->write(a, values);
    }
    run_stage(oracle_, s, layer);
    for (Backend* backend : tested_) run_stage(*backend, s, layer);
    for (std::size_t i = 0; measured && i < tested_.size(); ++i) {
      const double error = stage_error(s, layer, rows, i);
      double& worst = worst_[i][s];
      if (!(error <= worst)) worst = error;
    }
    if (s == Stage::kQkPrep) share_cache_rows(layer, rows);
  }

  // Attention starts from the oracle's rows: where an element lies between two numbers of a 16-bit type, the
  // last bit of f32 decides which it becomes.
  void share_cache_rows(std::uint32_t layer, std::uint32_t rows) {
    for (std::uint32_t i = 0; i < rows; ++i) {
      const std::uint32_t p = oracle_cache_->length() + i;
      const std::vector<float> key = oracle_cache_->read_key(layer, p);
      const std::vector<float> value = oracle_cache_->read_value(layer, p);
      for (auto& cache : tested_caches_) cache->write_row(layer, p, key, value);
    }
  }

  double stage_error(Stage s, std::uint32_t layer, std::uint32_t rows, std::size_t tested) const {
    double worst = 0;
    const auto note = [&](double error) {
      if (!(error <= worst)) worst = error;
    };
    for (const Activation a : outputs_of(s)) note(row_error(tested_[tested]->read(a), oracle_.read(a), rows));
    if (s == Stage::kQkPrep) {
      // The oracle's keys and values after the stage are what it rounds.
      const std::vector<float> keys = oracle_.read(Activation::kKey);
      const std::vector<float> values = oracle_.read(Activation::kValue);
      const KvCache& cache = *tested_caches_[tested];
      const StorageType storage = oracle_cache_->plan().layers[layer].storage;
      for (std::uint32_t i = 0; i < rows; ++i) {
        const std::uint32_t p = oracle_cache_->length() + i;
        const std::size_t at = std::size_t{i} * g_.kv_width(layer);
        note(stored_row_error(storage, cache.read_key(layer, p), keys.data() + at));
        note(stored_row_error(storage, cache.read_value(layer, p), values.data() + at));
      }
    }
    return worst;
  }

  const Geometry& g_;
  Backend& oracle_;
  std::vector<Backend*> tested_;
  std::mt19937_64 random_;
  bool prompt_;
  std::unique_ptr<KvCache> oracle_cache_;
  std::vector<std::unique_ptr<KvCache>> tested_caches_;
  std::vector<std::map<Stage, double>> worst_;  // one for each tested backend
};

struct Fault {
  const char* name;
  Stage stage;
  std::function<void(Geometry&, Weights&, std::vector<std::byte>& storage)> plant;
  bool unrounded = false;  // its cache stays in f32
};

// Doubles the scale of the first block (or value) of a matrix, in a copy.
void damage(Matrix& matrix, std::vector<std::byte>& storage) {
  storage.assign(matrix.data, matrix.data + matrix.bytes());
  std::vector<float> row(matrix.cols);
  matrix.expand_row(0, row.data());
  const StorageInfo& info = storage_info(matrix.type);
  if (matrix.type == StorageType::kF32) {
    float* values = reinterpret_cast<float*>(storage.data());
    for (std::size_t i = 0; i < 32 && i < matrix.cols; ++i) values[i] *= 2;
  } else if (can_quantize(matrix.type)) {
    for (std::size_t i = 0; i < 32 && i < matrix.cols; ++i) row[i] *= 2;
    quantize(matrix.type, row.data(), storage.data(), matrix.cols);
  } else {
    storage[info.block_bytes / 2] ^= std::byte{0xff};  // codes
  }
  matrix.data = storage.data();
}

std::vector<Fault> faults() {
  using G = Geometry&;
  using W = Weights&;
  using S = std::vector<std::byte>&;
  return {
      {"embedding multiplier rounded to bf16", Stage::kEmbed,
       [](G g, W, S) {
         g.embedding_multiplier = bf16_to_f32(f32_to_bf16(g.embedding_multiplier)) * (1 + 0x1p-9f);
       }},
      {"one block of the query matrix scaled wrongly", Stage::kAttnInput,
       [](G, W w, S s) { damage(w.layers[0].q, s); }},
      {"norm weight taken as 1 + w", Stage::kAttnInput,
       [](G, W w, S) {
         for (float& x : w.layers[0].attn_norm) x += 1;
       }},
      {"RoPE base of sliding layers 10 % off", Stage::kQkPrep, [](G g, W, S) { g.rope_base_sliding *= 1.1; }},
      {"all pairs of full layers rotated", Stage::kQkPrep,
       [](G, W w, S) { w.rope_divisors.assign(w.rope_divisors.size(), 1.0f); }},
      {"window one key too long", Stage::kAttention, [](G g, W, S) { ++g.window; }},
      {"window one key too short", Stage::kAttention, [](G g, W, S) { --g.window; }},
      {"post-attention norm left out", Stage::kAttnOutput,
       [](G, W w, S) {
         w.layers[0].post_attention_norm.assign(w.layers[0].post_attention_norm.size(), 1.0f);
       }},
      {"gate and up exchanged", Stage::kFfnInput,
       [](G, W w, S) { std::swap(w.layers[0].gate, w.layers[0].up); }},
      {"layer scalar left out", Stage::kFfnOutput,
       [](G, W w, S) { w.layers[0].output_scale = w.layers[0].output_scale == 1.0f ? 0.5f : 1.0f; }},
      {"final norm weight left out", Stage::kFinalNorm,
       [](G, W w, S) {
         for (float& x : w.output_norm) x = x == 1.0f ? 2.0f : 1.0f;
       }},
      {"soft cap a tenth of what it is", Stage::kHead,
       [](G g, W, S) { g.softcap = g.softcap > 0 ? g.softcap * 0.1f : 3.0f; }},
  };
}

}  // namespace

bool CheckReport::passed() const {
  return std::all_of(stages.begin(), stages.end(), [](const StageResult& s) { return s.passed(); }) &&
         std::all_of(controls.begin(), controls.end(), [](const ControlResult& c) { return c.red(); });
}

double stage_bound(Stage stage, Precision precision) {
  // bf16 keeps 8 bits; the largest of a row's elements is some times its root mean square.
  const bool bf16 = precision == Precision::kBF16;
  switch (stage) {
    case Stage::kEmbed:
      return 1e-6;  // two roundings to f32 an element
    case Stage::kQkPrep:
      return 2e-5;  // f32 norm and rotation
    case Stage::kFinalNorm:
      return 2e-6;
    case Stage::kAttention:
      // f32 scores: a score of s moves its probability by s * 2^-24 * sqrt(d). Queries, keys and
      // probabilities in f16, of a prompt: by s * 2^-11 and more.
      return bf16 ? 3e-2 : 2e-4;
    case Stage::kAttnInput:
    case Stage::kAttnOutput:
    case Stage::kFfnOutput:
      return bf16 ? 3e-2 : 1e-3;  // activations rounded to 2^-16 of their block's peak, and f32 sums
    case Stage::kHead:
      return 1e-3;
    case Stage::kFfnInput:
      return bf16 ? 2e-1 : 4e-3;  // the product of two such results, with a few large elements in a row
  }
  return 0;
}

CheckReport check_stages(const Geometry& geometry, const Weights& weights, const BackendMaker& make,
                         std::uint64_t seed, Precision precision, std::optional<KvType> kv_type) {
  const std::unique_ptr<Backend> sound = make(geometry, weights);
  CheckReport report;
  report.kv_type = choose_kv_type(*sound, kv_type);
  std::vector<Fault> planted = faults();
  if (report.kv_type != KvType::kF32) {
    planted.push_back(
        {"keys and values not rounded", Stage::kQkPrep, [](Geometry&, Weights&, auto&) {}, true});
  }
  // A backend for each fault, with the sizes and weights that it runs on.
  struct Candidate {
    Geometry geometry;
    Weights weights;
    std::vector<std::byte> storage;
    std::unique_ptr<Backend> backend;
  };
  std::vector<Candidate> candidates(planted.size());
  std::vector<Backend*> tested = {sound.get()};
  for (std::size_t i = 0; i < planted.size(); ++i) {
    Candidate& c = candidates[i];
    c.geometry = geometry;
    c.weights = weights;
    planted[i].plant(c.geometry, c.weights, c.storage);
    c.backend = make(c.geometry, c.weights);
    tested.push_back(c.backend.get());
  }

  std::vector<KvType> kv_types(tested.size(), report.kv_type);
  for (std::size_t i = 0; i < planted.size(); ++i) {
    if (planted[i].unrounded) kv_types[i + 1] = KvType::kF32;
  }
  const std::unique_ptr<Backend> oracle = make_oracle_backend(geometry, weights);
  Walk walk(geometry, *oracle, report.kv_type, tested, kv_types, seed, precision == Precision::kBF16);
  for (const std::uint32_t rows : kRowCounts) {
    const auto& worst = walk.measure(rows);
    for (const auto& [stage, error] : worst.front())
      report.stages.push_back({stage, rows, error, stage_bound(stage, precision)});
    if (rows != kControlRows) continue;
    for (std::size_t i = 0; i < planted.size(); ++i) {
      const Stage stage = planted[i].stage;
      report.controls.push_back(
          {planted[i].name, stage, worst[i + 1].at(stage), stage_bound(stage, precision)});
    }
  }
  return report;
}

}  // namespace gem
