#include "backend/oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/numbers.h"

namespace gem {
namespace {

using Rows = std::vector<double>;  // row-major [rows, width]

// `x` as the storage type keeps it: rounded to f32, then to nearest even in 16 bits.
double rounded(StorageType storage, double x) {
  const auto f = static_cast<float>(x);
  if (storage == StorageType::kF16) return double{f16_to_f32(f32_to_f16(f))};
  if (storage == StorageType::kBF16) return double{bf16_to_f32(f32_to_bf16(f))};
  return x;  // f32 stands for no rounding at all
}

// Keeps float64 whatever the plan says; what is stored in 16 bits elsewhere is rounded when it is written.
class OracleCache final : public KvCache {
 public:
  explicit OracleCache(KvPlan plan) : KvCache(std::move(plan)) {
    for (const KvPlan::Layer& layer : this->plan().layers) {
      keys_.emplace_back(std::size_t{layer.slots} * layer.width);
      values_.emplace_back(std::size_t{layer.slots} * layer.width);
    }
  }

  const double* key(std::size_t layer, std::uint32_t position) const {
    return keys_[layer].data() + offset(layer, position);
  }
  const double* value(std::size_t layer, std::uint32_t position) const {
    return values_[layer].data() + offset(layer, position);
  }
  void store(std::size_t layer, std::uint32_t position, const double* key, const double* value) {
    const KvPlan::Layer& l = plan().layers[layer];
    for (std::size_t i = 0; i < l.width; ++i) {
      keys_[layer][offset(layer, position) + i] = rounded(l.storage, key[i]);
      values_[layer][offset(layer, position) + i] = rounded(l.storage, value[i]);
    }
  }

  std::vector<float> read_key(std::uint32_t layer, std::uint32_t position) const override {
    const double* row = keys_[layer].data() + offset(layer, position);
    return {row, row + plan().layers[layer].width};
  }
  std::vector<float> read_value(std::uint32_t layer, std::uint32_t position) const override {
    const double* row = values_[layer].data() + offset(layer, position);
    return {row, row + plan().layers[layer].width};
  }
  bool write_row(std::uint32_t layer, std::uint32_t position, std::span<const float> key,
                 std::span<const float> value) override {
    const Rows k(key.begin(), key.end());
    const Rows v(value.begin(), value.end());
    store(layer, position, k.data(), v.data());
    return true;
  }

 protected:
  std::size_t slot_bytes(std::uint32_t layer) const override { return 2 * row_bytes(layer); }
  void save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const override {
    std::memcpy(out, keys_[layer].data() + offset(layer, slot), row_bytes(layer));
    std::memcpy(out + row_bytes(layer), values_[layer].data() + offset(layer, slot), row_bytes(layer));
  }
  void load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) override {
    std::memcpy(keys_[layer].data() + offset(layer, slot), in, row_bytes(layer));
    std::memcpy(values_[layer].data() + offset(layer, slot), in + row_bytes(layer), row_bytes(layer));
  }

 private:
  std::size_t row_bytes(std::size_t layer) const { return plan().layers[layer].width * sizeof(double); }
  std::size_t offset(std::size_t layer, std::uint32_t position) const {
    const KvPlan::Layer& l = plan().layers[layer];
    return std::size_t{position % l.slots} * l.width;
  }
  std::vector<Rows> keys_, values_;
};

// y_i = w_i x_i / sqrt(mean(x^2) + epsilon); without weights when `weight` is null.
void rms_norm(double* x, std::size_t n, const float* weight, double epsilon) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + epsilon);
  for (std::size_t i = 0; i < n; ++i) x[i] *= weight != nullptr ? scale * double{weight[i]} : scale;
}

double gelu(double x) {
  const double c = std::sqrt(2 / 3.14159265358979323846);
  return 0.5 * x * (1 + std::tanh(c * x * (1 + 0.044715 * x * x)));
}

// Pair i joins elements i and i + d/2; its angle is position * base^(-2i/d) / divisor_i.
void rotate(double* x, std::size_t d, std::uint32_t position, double base,
            const std::vector<float>& divisors) {
  for (std::size_t i = 0; i < d / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(d);
    const double divisor = divisors.empty() ? 1.0 : double{divisors[i]};
    const double angle = double{static_cast<double>(position)} * std::pow(base, exponent) / divisor;
    const double u = x[i];
    const double v = x[i + d / 2];
    x[i] = u * std::cos(angle) - v * std::sin(angle);
    x[i + d / 2] = v * std::cos(angle) + u * std::sin(angle);
  }
}

class OracleBackend final : public Backend {
 public:
  OracleBackend(const Geometry& geometry, const Weights& weights) : g_(geometry), w_(weights) {}

  const char* name() const override { return "oracle"; }
  std::string description() const override { return "oracle (float64, one thread)"; }

  std::unique_ptr<KvCache> new_cache(const KvPlan& plan) override {
    return std::make_unique<OracleCache>(plan);
  }

  std::span<const KvType> kv_types() const override {
    static constexpr KvType kTypes[] = {KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kF16Full};
    return kTypes;
  }
  std::uint32_t kv_element_bytes(StorageType) const override { return sizeof(double); }

  std::uint64_t scratch_bytes(std::uint32_t rows, std::uint32_t logit_rows) const override {
    std::uint64_t widest = 0;
    for (std::size_t l = 0; l < g_.layers.size(); ++l)
      widest = std::max<std::uint64_t>(widest, g_.query_width(l));
    return sizeof(double) *
           (rows * (3ull * g_.hidden + 2ull * g_.ffn + 4ull * widest) + std::uint64_t{logit_rows} * g_.vocab);
  }

  std::unique_ptr<Backend> new_assistant(const Geometry& geometry, const Weights& weights,
                                         ReleaseWeights) override {
    return std::make_unique<OracleBackend>(geometry, weights);
  }
  bool drafts() const override { return true; }

  void begin(const RoundRows& round) override {
    spans_.assign(round.spans.begin(), round.spans.end());
    tokens_.assign(round.tokens.begin(), round.tokens.end());
    embeddings_.assign(round.embeddings.begin(), round.embeddings.end());
    hidden_.assign(round.hidden.begin(), round.hidden.end());
    final_rows_.assign(round.final_rows.begin(), round.final_rows.end());
    logit_rows_.assign(round.logit_rows.begin(), round.logit_rows.end());
    rows_ = tokens_.size();
    caches_.clear();
    positions_.clear();
    for (const RowSpan& span : spans_) {
      for (std::uint32_t i = 0; i < span.rows; ++i) {
        caches_.push_back(static_cast<OracleCache*>(span.cache));
        positions_.push_back(span.position + i);
      }
    }
    residual_.assign(rows_ * g_.hidden, 0);
  }

  void embed() override {
    if (g_.backbone != 0) return embed_pairs();
    std::size_t given = 0;
    std::vector<float> row(g_.hidden);
    for (std::size_t r = 0; r < rows_; ++r) {
      double* h = residual_.data() + r * g_.hidden;
      if (tokens_[r] < 0) {
        std::copy_n(embeddings_.data() + given++ * g_.hidden, g_.hidden, h);
        continue;
      }
      w_.token_embd.expand_row(static_cast<std::size_t>(tokens_[r]), row.data());
      for (std::size_t i = 0; i < g_.hidden; ++i) h[i] = double{row[i]} * double{g_.embedding_multiplier};
    }
  }

  void attn_input(std::uint32_t layer) override {
    const LayerWeights& w = w_.layers[layer];
    const Rows normed = normed_rows(residual_, w.attn_norm);
    query_ = multiply(w.q, normed);
    if (g_.layers[layer].kv_source) return;
    key_ = multiply(w.k, normed);
    value_ = g_.layers[layer].value_from_key ? key_ : multiply(w.v, normed);
  }

  void qk_prep(std::uint32_t layer) override {
    const LayerGeometry& l = g_.layers[layer];
    const LayerWeights& w = w_.layers[layer];
    const bool full = l.kind == LayerKind::kFull;
    const double base = full ? g_.rope_base_full : g_.rope_base_sliding;
    static const std::vector<float> kNone;
    const std::vector<float>& divisors = full ? w_.rope_divisors : kNone;
    const std::size_t d = l.head_dim;
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t head = 0; head < g_.heads; ++head) {
        double* q = query_.data() + r * g_.query_width(layer) + head * d;
        rms_norm(q, d, w.q_norm.data(), double{g_.norm_epsilon});
        rotate(q, d, positions_[r], base, divisors);
      }
      if (l.kv_source) continue;
      for (std::size_t head = 0; head < l.kv_heads; ++head) {
        double* k = key_.data() + r * g_.kv_width(layer) + head * d;
        double* v = value_.data() + r * g_.kv_width(layer) + head * d;
        rms_norm(k, d, w.k_norm.data(), double{g_.norm_epsilon});
        rotate(k, d, positions_[r], base, divisors);
        rms_norm(v, d, nullptr, double{g_.norm_epsilon});
      }
      caches_[r]->store(layer, positions_[r], key_.data() + r * g_.kv_width(layer),
                        value_.data() + r * g_.kv_width(layer));
    }
  }

  void attention(std::uint32_t layer) override {
    const LayerGeometry& l = g_.layers[layer];
    const std::size_t d = l.head_dim;
    const std::size_t group = g_.heads / l.kv_heads;
    attention_.assign(rows_ * g_.query_width(layer), 0);
    for (std::size_t r = 0; r < rows_; ++r) {
      const std::uint32_t position = positions_[r];
      const std::uint32_t last = l.kv_source ? caches_[r]->length() - 1 : position;
      const std::uint32_t first =
          l.kind == LayerKind::kSliding && position + 1 > g_.window ? position + 1 - g_.window : 0;
      const std::uint32_t source = l.kv_source.value_or(layer);
      for (std::size_t head = 0; head < g_.heads; ++head) {
        const double* q = query_.data() + r * g_.query_width(layer) + head * d;
        const std::size_t kv = head / group * d;
        std::vector<double> p(last - first + 1);
        double peak = -std::numeric_limits<double>::infinity();
        for (std::uint32_t j = first; j <= last; ++j) {
          const double* k = caches_[r]->key(source, j) + kv;
          double score = 0;  // the attention multiplier is 1: no 1/sqrt(d)
          for (std::size_t i = 0; i < d; ++i) score += q[i] * k[i];
          p[j - first] = score;
          peak = std::max(peak, score);
        }
        double sum = 0;
        for (double& x : p) sum += x = std::exp(x - peak);
        double* out = attention_.data() + r * g_.query_width(layer) + head * d;
        for (std::uint32_t j = first; j <= last; ++j) {
          const double* v = caches_[r]->value(source, j) + kv;
          for (std::size_t i = 0; i < d; ++i) out[i] += p[j - first] / sum * v[i];
        }
      }
    }
  }

  void attn_output(std::uint32_t layer) override {
    const LayerWeights& w = w_.layers[layer];
    const Rows branch = normed_rows(multiply(w.o, attention_), w.post_attention_norm);
    for (std::size_t i = 0; i < residual_.size(); ++i) residual_[i] += branch[i];
  }

  void ffn_input(std::uint32_t layer) override {
    const LayerWeights& w = w_.layers[layer];
    const Rows normed = normed_rows(residual_, w.ffn_norm);
    ffn_ = multiply(w.gate, normed);
    const Rows up = multiply(w.up, normed);
    for (std::size_t i = 0; i < ffn_.size(); ++i) ffn_[i] = gelu(ffn_[i]) * up[i];
  }

  void ffn_output(std::uint32_t layer) override {
    const LayerWeights& w = w_.layers[layer];
    const Rows branch = normed_rows(multiply(w.down, ffn_), w.post_ffw_norm);
    // The scalar multiplies the whole stream, not the branch.
    for (std::size_t i = 0; i < residual_.size(); ++i) {
      residual_[i] = (residual_[i] + branch[i]) * double{w.output_scale};
    }
  }

  void final_norm() override {
    final_.clear();
    for (const std::uint32_t r : final_rows_) {
      final_.insert(final_.end(), residual_.begin() + std::ptrdiff_t{r} * g_.hidden,
                    residual_.begin() + (std::ptrdiff_t{r} + 1) * g_.hidden);
      rms_norm(final_.data() + final_.size() - g_.hidden, g_.hidden, w_.output_norm.data(),
               double{g_.norm_epsilon});
    }
  }

  void head() override {
    Rows rows;
    for (const std::uint32_t r : logit_rows_) {
      rows.insert(rows.end(), final_.begin() + std::ptrdiff_t{r} * g_.hidden,
                  final_.begin() + (std::ptrdiff_t{r} + 1) * g_.hidden);
    }
    const Rows logits = multiply(w_.token_embd, rows);
    logits_.resize(logits.size());
    const double cap = double{g_.softcap};
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits_[i] = static_cast<float>(cap > 0 ? cap * std::tanh(logits[i] / cap) : logits[i]);
    }
  }

  void post_project() override { next_ = multiply(w_.post_projection, final_); }

  std::vector<float> read(Activation which) const override {
    if (which == Activation::kLogits) return logits_;
    const Rows& rows = const_cast<OracleBackend*>(this)->buffer(which);
    return {rows.begin(), rows.end()};
  }

  void write(Activation which, std::span<const float> values) override {
    if (which == Activation::kLogits) {
      logits_.assign(values.begin(), values.end());
    } else {
      buffer(which).assign(values.begin(), values.end());
    }
  }

  std::span<const float> logits(std::uint32_t index) const override {
    return {logits_.data() + std::size_t{index} * g_.vocab, g_.vocab};
  }

 private:
  // An assistant's rows: the target's embedding of the token, then the target's hidden row.
  void embed_pairs() {
    const std::size_t width = g_.backbone;
    Rows pairs(rows_ * 2 * width);
    std::vector<float> row(width);
    for (std::size_t r = 0; r < rows_; ++r) {
      double* pair = pairs.data() + r * 2 * width;
      w_.target_embd.expand_row(static_cast<std::size_t>(tokens_[r]), row.data());
      for (std::size_t i = 0; i < width; ++i) pair[i] = double{row[i]} * double{w_.target_multiplier};
      std::copy_n(hidden_.data() + r * width, width, pair + width);
    }
    residual_ = multiply(w_.pre_projection, pairs);
  }

  Rows& buffer(Activation which) {
    switch (which) {
      case Activation::kResidual:
        return residual_;
      case Activation::kQuery:
        return query_;
      case Activation::kKey:
        return key_;
      case Activation::kValue:
        return value_;
      case Activation::kAttention:
        return attention_;
      case Activation::kFfn:
        return ffn_;
      case Activation::kFinal:
        return final_;
      case Activation::kNext:
        return next_;
      case Activation::kLogits:
        break;  // kept in f32
    }
    fail(ErrorCode::kFailed, "no such activation");
  }

  Rows normed_rows(Rows rows, const std::vector<float>& weight) const {
    for (std::size_t i = 0; i < rows.size(); i += weight.size()) {
      rms_norm(rows.data() + i, weight.size(), weight.data(), double{g_.norm_epsilon});
    }
    return rows;
  }

  // y[r] = M x[r] for every row.
  static Rows multiply(const Matrix& m, const Rows& x) {
    const std::size_t rows = x.size() / m.cols;
    Rows y(rows * m.rows);
    std::vector<float> line(m.cols);
    for (std::size_t o = 0; o < m.rows; ++o) {
      m.expand_row(o, line.data());
      for (std::size_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (std::size_t i = 0; i < m.cols; ++i) sum += double{line[i]} * x[r * m.cols + i];
        y[r * m.rows + o] = sum;
      }
    }
    return y;
  }

  const Geometry& g_;
  const Weights& w_;
  std::vector<RowSpan> spans_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> embeddings_, hidden_;
  std::vector<std::uint32_t> final_rows_, logit_rows_, positions_;
  std::vector<OracleCache*> caches_;
  std::size_t rows_ = 0;
  Rows residual_, query_, key_, value_, attention_, ffn_, final_, next_;
  std::vector<float> logits_;
};

}  // namespace

std::unique_ptr<Backend> make_oracle_backend(const Geometry& geometry, const Weights& weights) {
  return std::make_unique<OracleBackend>(geometry, weights);
}

}  // namespace gem
