#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "backend/cpu/attention.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/cpu_cache.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/products.h"
#include "base/error.h"

namespace gem {
namespace {

using cpu::CpuCache;
using cpu::Kernels;
using cpu::Operand;
using cpu::PackedMatrix;
using cpu::Product;

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Geometry& geometry, const Weights& weights, std::shared_ptr<ThreadPool> pool,
             ReleaseWeights release)
      : g_(geometry),
        w_(weights),
        k_(cpu::choose_kernels()),
        shared_pool_(std::move(pool)),
        pool_(*shared_pool_),
        release_(std::move(release)),
        head_(weights.token_embd),
        pre_(weights.pre_projection),
        post_(weights.post_projection) {
    for (const LayerWeights& l : weights.layers) {
      layers_.push_back({PackedMatrix(l.q), PackedMatrix(l.k), PackedMatrix(l.v), PackedMatrix(l.o),
                         PackedMatrix(l.gate), PackedMatrix(l.up), PackedMatrix(l.down)});
    }
  }

  const char* name() const override { return "cpu"; }
  std::string description() const override {
    return fmt::format("cpu ({}, {} thread{})", k_.name, pool_.threads(), pool_.threads() == 1 ? "" : "s");
  }

  std::unique_ptr<KvCache> new_cache(const KvPlan& plan) override {
    return std::make_unique<CpuCache>(plan, g_);
  }

  std::span<const KvType> kv_types() const override {
    static constexpr KvType kTypes[] = {KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kF16Full};
    return kTypes;
  }

  std::uint64_t scratch_bytes(std::uint32_t rows, std::uint32_t logit_rows) const override {
    std::uint64_t query = 0;
    std::uint64_t kv = 0;
    for (std::size_t l = 0; l < g_.layers.size(); ++l) {
      query = std::max<std::uint64_t>(query, g_.query_width(l));
      kv = std::max<std::uint64_t>(kv, g_.kv_width(l));
    }
    std::uint64_t attention = 0;
    for (std::size_t l = 0; l < g_.layers.size(); ++l) {
      const bool sliding = g_.layers[l].kind == LayerKind::kSliding;
      attention = std::max(attention, cpu::Attention::bytes(shape(l), rows, sliding ? g_.window : g_.context,
                                                            pool_.threads()));
    }
    const std::uint64_t floats =
        rows * (4ull * g_.hidden + 2 * query + 2 * kv + 2ull * g_.ffn) + std::uint64_t{logit_rows} * g_.vocab;
    std::uint64_t operands = 0;
    for (const std::uint64_t cols :
         {std::uint64_t{g_.hidden}, query, std::uint64_t{g_.ffn}, std::uint64_t{2} * g_.backbone})
      operands += Operand::bytes(rows, cols, k_);
    return floats * sizeof(float) + operands + rows * 4 * g_.backbone * sizeof(float) + attention;
  }

  std::unique_ptr<Backend> new_assistant(const Geometry& geometry, const Weights& weights,
                                         ReleaseWeights release) override {
    return std::make_unique<CpuBackend>(geometry, weights, shared_pool_, std::move(release));
  }
  bool drafts() const override { return true; }

  std::optional<std::uint64_t> weight_bytes() const override {
    std::uint64_t sum = 0;
    for_matrices([&](const PackedMatrix& m) { sum += m.bytes() != 0 ? m.bytes() : m.source().bytes(); });
    return sum;
  }

  void load_weights(const Progress& progress) override {
    if (std::exchange(loaded_, true)) return;
    std::uint64_t total = 0;
    std::uint64_t done = 0;
    for_matrices([&](const PackedMatrix& m) { total += m.bytes(); });
    for_matrices([&](PackedMatrix& m) {
      if (m.bytes() == 0) return;
      m.allocate();
      pool_.parallel_for(m.groups(), 32, [&](std::size_t begin, std::size_t end, unsigned) {
        for (std::size_t g = begin; g < end; ++g) m.pack_group(g);
        if (!release_) return;
        const Matrix& from = m.source();
        const std::size_t first = begin * cpu::kGroupRows;
        const std::size_t last = std::min<std::size_t>(end * cpu::kGroupRows, from.rows);
        release_({from.row(first), (last - first) * from.row_bytes()});
        if (from.type != StorageType::kAffine) return;
        const std::size_t scales = from.affine.row_scale_bytes(from.cols);
        release_({from.affine.scales + first * scales, (last - first) * scales});
        release_({from.affine.biases + first * scales, (last - first) * scales});
      });
      done += m.bytes();
      if (progress) progress(done, total);
    });
  }

  void begin(const RoundRows& round) override {
    load_weights({});
    tokens_.assign(round.tokens.begin(), round.tokens.end());
    embeddings_ = round.embeddings;
    hidden_ = round.hidden;
    final_rows_.assign(round.final_rows.begin(), round.final_rows.end());
    logit_rows_.assign(round.logit_rows.begin(), round.logit_rows.end());
    rows_ = tokens_.size();
    row_.clear();
    for (const RowSpan& span : round.spans) {
      for (std::uint32_t i = 0; i < span.rows; ++i)
        row_.push_back({static_cast<CpuCache*>(span.cache), span.position + i});
    }
    rope_layer_kind_.reset();
    residual_.resize(rows_ * g_.hidden);
  }

  void embed() override {
    if (g_.backbone != 0) return embed_pairs();
    std::vector<std::size_t> given(rows_);  // index of the given embedding a row takes
    std::size_t count = 0;
    for (std::size_t r = 0; r < rows_; ++r) given[r] = tokens_[r] < 0 ? count++ : 0;
    for_rows([&](std::size_t r) {
      float* h = residual_.data() + r * g_.hidden;
      if (tokens_[r] < 0) {
        std::copy_n(embeddings_.data() + given[r] * g_.hidden, g_.hidden, h);
        return;
      }
      expand_row(w_.token_embd, static_cast<std::size_t>(tokens_[r]), h);
      for (std::size_t i = 0; i < g_.hidden; ++i) h[i] *= g_.embedding_multiplier;
    });
  }

  void attn_input(std::uint32_t layer) override {
    const PackedLayer& w = layers_[layer];
    norm_residual(w_.layers[layer].attn_norm);
    query_.resize(rows_ * g_.query_width(layer));
    key_.resize(rows_ * g_.kv_width(layer));
    value_.resize(key_.size());
    std::vector<Product> products = {{&w.q, query_.data()}};
    if (g_.layers[layer].kv_source) return cpu::multiply(normed_operand_, products, k_, pool_);
    products.push_back({&w.k, key_.data()});
    const bool from_key = g_.layers[layer].value_from_key;
    if (!from_key) products.push_back({&w.v, value_.data()});
    cpu::multiply(normed_operand_, products, k_, pool_);
    if (from_key) std::copy(key_.begin(), key_.end(), value_.begin());
  }

  void qk_prep(std::uint32_t layer) override {
    const LayerGeometry& l = g_.layers[layer];
    const LayerWeights& w = w_.layers[layer];
    const std::size_t d = l.head_dim;
    const std::size_t kv_width = g_.kv_width(layer);
    make_rope(l);
    for_rows([&](std::size_t r) {
      const float* cosine = rope_.data() + r * d;
      for (std::size_t head = 0; head < g_.heads; ++head) {
        float* q = query_.data() + r * g_.query_width(layer) + head * d;
        rms_norm(q, q, d, w.q_norm.data());
        rotate(q, d, cosine);
      }
      if (l.kv_source) return;
      for (std::size_t head = 0; head < l.kv_heads; ++head) {
        float* k = key_.data() + r * kv_width + head * d;
        float* v = value_.data() + r * kv_width + head * d;
        rms_norm(k, k, d, w.k_norm.data());
        rotate(k, d, cosine);
        rms_norm(v, v, d, nullptr);
      }
      CpuCache& cache = *row_[r].cache;
      const std::uint32_t slot = row_[r].position % cache.plan().layers[layer].slots;
      cache.store(layer, slot, key_.data() + r * kv_width, value_.data() + r * kv_width);
    });
  }

  void attention(std::uint32_t layer) override {
    const LayerGeometry& l = g_.layers[layer];
    attention_.resize(rows_ * g_.query_width(layer));
    rows_seen_.clear();
    for (std::size_t r = 0; r < rows_; ++r) {
      const std::uint32_t position = row_[r].position;
      const std::uint32_t last = l.kv_source ? row_[r].cache->length() - 1 : position;
      const std::uint32_t first =
          l.kind == LayerKind::kSliding && position + 1 > g_.window ? position + 1 - g_.window : 0;
      const std::size_t at = r * g_.query_width(layer);
      rows_seen_.push_back({row_[r].cache, first, last, query_.data() + at, attention_.data() + at});
    }
    softmax_.run(shape(layer), rows_seen_, k_, pool_);
  }

  void attn_output(std::uint32_t layer) override {
    const LayerWeights& w = w_.layers[layer];
    attention_operand_.assign(attention_.data(), rows_, g_.query_width(layer));
    branch_.resize(rows_ * g_.hidden);
    multiply_one(attention_operand_, layers_[layer].o, branch_.data());
    add_branch(w.post_attention_norm, 1.0f);
  }

  void ffn_input(std::uint32_t layer) override {
    const LayerWeights& w = w_.layers[layer];
    norm_residual(w.ffn_norm);
    ffn_.resize(rows_ * g_.ffn);
    up_.resize(rows_ * g_.ffn);
    const Product products[] = {{&layers_[layer].gate, ffn_.data()}, {&layers_[layer].up, up_.data()}};
    cpu::multiply(normed_operand_, products, k_, pool_);
    pool_.parallel_for(ffn_.size(), 1024, [&](std::size_t begin, std::size_t end, unsigned) {
      k_.geglu(ffn_.data() + begin, up_.data() + begin, ffn_.data() + begin, end - begin);
    });
  }

  void ffn_output(std::uint32_t layer) override {
    const LayerWeights& w = w_.layers[layer];
    ffn_operand_.assign(ffn_.data(), rows_, g_.ffn);
    branch_.resize(rows_ * g_.hidden);
    multiply_one(ffn_operand_, layers_[layer].down, branch_.data());
    add_branch(w.post_ffw_norm, w.output_scale);
  }

  void final_norm() override {
    final_.resize(final_rows_.size() * g_.hidden);
    for (std::size_t i = 0; i < final_rows_.size(); ++i) {
      rms_norm(residual_.data() + std::size_t{final_rows_[i]} * g_.hidden, final_.data() + i * g_.hidden,
               g_.hidden, w_.output_norm.data());
    }
  }

  void head() override {
    logits_.resize(logit_rows_.size() * g_.vocab);
    if (logit_rows_.empty()) return;
    normed_.resize(logit_rows_.size() * g_.hidden);
    for (std::size_t i = 0; i < logit_rows_.size(); ++i) {
      std::copy_n(final_.data() + std::size_t{logit_rows_[i]} * g_.hidden, g_.hidden,
                  normed_.data() + i * g_.hidden);
    }
    normed_operand_.assign(normed_.data(), logit_rows_.size(), g_.hidden);
    multiply_one(normed_operand_, head_, logits_.data());
    if (g_.softcap <= 0) return;
    pool_.parallel_for(logits_.size(), 8192, [&](std::size_t begin, std::size_t end, unsigned) {
      k_.softcap(logits_.data() + begin, end - begin, g_.softcap);
    });
  }

  void post_project() override {
    next_.resize(final_rows_.size() * g_.backbone);
    if (next_.empty()) return;
    normed_operand_.assign(final_.data(), final_rows_.size(), g_.hidden);
    multiply_one(normed_operand_, post_, next_.data());
  }

  std::vector<float> read(Activation which) const override {
    return const_cast<CpuBackend*>(this)->buffer(which);
  }
  void write(Activation which, std::span<const float> values) override {
    buffer(which).assign(values.begin(), values.end());
  }
  std::span<const float> logits(std::uint32_t index) const override {
    return {logits_.data() + std::size_t{index} * g_.vocab, g_.vocab};
  }

 private:
  struct Row {
    CpuCache* cache;
    std::uint32_t position;
  };

  struct PackedLayer {
    PackedMatrix q, k, v, o, gate, up, down;
  };

  template <typename Body>
  void for_matrices(const Body& body) {
    for (PackedLayer& l : layers_) {
      for (PackedMatrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) body(*m);
    }
    body(head_);
    if (g_.backbone == 0) return;
    body(pre_);
    body(post_);
  }
  template <typename Body>
  void for_matrices(const Body& body) const {
    const_cast<CpuBackend*>(this)->for_matrices([&](const PackedMatrix& m) { body(m); });
  }

  std::vector<float>& buffer(Activation which) {
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
      case Activation::kLogits:
        return logits_;
      case Activation::kNext:
        return next_;
    }
    fail(ErrorCode::kFailed, "no such activation");
  }

  template <typename Body>
  void for_rows(const Body& body) {
    // A piece of some 10 microseconds: below that, waking a thread costs more than it does.
    const std::size_t grain = std::max<std::size_t>(1, 32768 / g_.hidden);
    pool_.parallel_for(rows_, grain, [&](std::size_t begin, std::size_t end, unsigned) {
      for (std::size_t r = begin; r < end; ++r) body(r);
    });
  }

  // An assistant's rows: the target's embedding of the token, then the target's hidden row.
  void embed_pairs() {
    const std::size_t width = g_.backbone;
    pairs_.resize(rows_ * 2 * width);
    for_rows([&](std::size_t r) {
      float* pair = pairs_.data() + r * 2 * width;
      const Matrix& table = w_.target_embd;
      expand_row(table, static_cast<std::size_t>(tokens_[r]), pair);
      for (std::size_t i = 0; i < width; ++i) pair[i] *= w_.target_multiplier;
      std::copy_n(hidden_.data() + r * width, width, pair + width);
    });
    pairs_operand_.assign(pairs_.data(), rows_, 2 * width);
    multiply_one(pairs_operand_, pre_, residual_.data());
  }

  void expand_row(const Matrix& m, std::size_t row, float* out) const {
    if (m.type == StorageType::kAffine) {
      m.expand_row(row, out);
    } else {
      k_.expand(m.type, m.row(row), out, m.cols);
    }
  }

  void multiply_one(Operand& x, const PackedMatrix& matrix, float* out) {
    const Product product[] = {{&matrix, out}};
    cpu::multiply(x, product, k_, pool_);
  }

  // out_i = w_i x_i / sqrt(mean(x^2) + epsilon); without weights when `weight` is null. In place is fine.
  void rms_norm(const float* x, float* out, std::size_t n, const float* weight) const {
    const float mean = k_.sum_squares(x, n) / static_cast<float>(n);
    const float scale = 1.0f / std::sqrt(mean + g_.norm_epsilon);
    if (weight == nullptr) {
      for (std::size_t i = 0; i < n; ++i) out[i] = x[i] * scale;
    } else {
      for (std::size_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
    }
  }

  void norm_residual(const std::vector<float>& weight) {
    normed_.resize(rows_ * g_.hidden);
    for_rows([&](std::size_t r) {
      rms_norm(residual_.data() + r * g_.hidden, normed_.data() + r * g_.hidden, g_.hidden, weight.data());
    });
    normed_operand_.assign(normed_.data(), rows_, g_.hidden);
  }

  // residual = (residual + norm(branch)) * scale
  void add_branch(const std::vector<float>& weight, float scale) {
    for_rows([&](std::size_t r) {
      float* b = branch_.data() + r * g_.hidden;
      float* h = residual_.data() + r * g_.hidden;
      rms_norm(b, b, g_.hidden, weight.data());
      for (std::size_t i = 0; i < g_.hidden; ++i) h[i] = (h[i] + b[i]) * scale;
    });
  }

  // Cosines and sines of the round's rows for one kind of layer: [rows, d/2 cosines then d/2 sines]. Angles
  // are formed in float64, so they stay exact at positions where f32 would be off by 0.01 rad.
  void make_rope(const LayerGeometry& l) {
    if (rope_layer_kind_ == l.kind) return;
    rope_layer_kind_ = l.kind;
    const bool full = l.kind == LayerKind::kFull;
    const double base = full ? g_.rope_base_full : g_.rope_base_sliding;
    const std::size_t half = l.head_dim / 2;
    frequencies_.resize(half);
    for (std::size_t i = 0; i < half; ++i) {
      frequencies_[i] = std::pow(base, -static_cast<double>(i) / static_cast<double>(half));
      if (full && !w_.rope_divisors.empty()) frequencies_[i] /= double{w_.rope_divisors[i]};
    }
    rope_.resize(rows_ * l.head_dim);
    for_rows([&](std::size_t r) {
      float* out = rope_.data() + r * l.head_dim;
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(row_[r].position) * frequencies_[i];
        out[i] = static_cast<float>(std::cos(angle));
        out[half + i] = static_cast<float>(std::sin(angle));
      }
    });
  }

  // Pair i joins elements i and i + d/2.
  static void rotate(float* x, std::size_t d, const float* cosine) {
    const float* sine = cosine + d / 2;
    for (std::size_t i = 0; i < d / 2; ++i) {
      const float u = x[i];
      const float v = x[i + d / 2];
      x[i] = u * cosine[i] - v * sine[i];
      x[i + d / 2] = v * cosine[i] + u * sine[i];
    }
  }

  cpu::AttentionShape shape(std::size_t layer) const {
    const LayerGeometry& l = g_.layers[layer];
    return {l.kv_source.value_or(static_cast<std::uint32_t>(layer)), g_.heads, l.kv_heads, l.head_dim};
  }

  const Geometry& g_;
  const Weights& w_;
  const Kernels& k_;
  std::shared_ptr<ThreadPool> shared_pool_;  // with the assistant's backend
  ThreadPool& pool_;
  ReleaseWeights release_;
  std::vector<PackedLayer> layers_;
  PackedMatrix head_;        // the table; its rows as input are read from the checkpoint
  PackedMatrix pre_, post_;  // assistants
  bool loaded_ = false;

  std::vector<std::int32_t> tokens_;
  std::span<const float> embeddings_, hidden_;
  std::vector<std::uint32_t> final_rows_, logit_rows_;
  std::vector<Row> row_;
  std::size_t rows_ = 0;
  std::optional<LayerKind> rope_layer_kind_;  // what rope_ holds in this round
  std::vector<double> frequencies_;
  std::vector<float> rope_;
  std::vector<float> residual_, normed_, query_, key_, value_, attention_, branch_, ffn_, up_, final_,
      logits_, pairs_, next_;
  std::vector<cpu::AttentionRow> rows_seen_;
  cpu::Attention softmax_;
  Operand normed_operand_, attention_operand_, ffn_operand_, pairs_operand_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const Geometry& geometry, const Weights& weights, unsigned threads,
                                          ReleaseWeights release) {
  return std::make_unique<CpuBackend>(geometry, weights, std::make_shared<ThreadPool>(threads),
                                      std::move(release));
}

}  // namespace gem
