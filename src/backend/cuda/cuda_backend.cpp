#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "backend/cuda/attention.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_cache.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/matvec.h"
#include "backend/cuda/operand.h"
#include "backend/cuda/packed.h"
#include "backend/cuda/prompt.h"
#include "backend/cuda/rows.h"
#include "base/error.h"
#include "base/numbers.h"

namespace gem {
namespace {

using namespace cuda;  // NOLINT: this file is the backend

struct Layer {
  PackedMatrix q, k, v, o, gate, up, down;
  DeviceArray<float> attn_norm, q_norm, k_norm, post_attention_norm, ffn_norm, post_ffw_norm;
  float scale = 1;
  HeadShape shape;
  std::uint32_t window = 0;  // 0: all keys
  std::uint32_t query_width = 0, kv_width = 0;
  std::uint32_t qkv_width() const { return query_width + kv_width * (shape.value_from_key ? 1 : 2); }
  std::uint32_t qkv_parts = 1, o_parts = 1, gate_parts = 1, down_parts = 1;
};

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Graph {
 public:
  explicit Graph(cudaGraphExec_t exec) : exec_(exec) {}
  ~Graph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  }
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  cudaGraphExec_t get() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
};

constexpr std::size_t kMostGraphs = 64;
constexpr std::size_t kSmallestRound = 64 << 10;  // bytes of a round's description

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Geometry& geometry, const Weights& weights, const CudaDevice& device)
      : g_(geometry), device_(device) {
    Packer packer(stream_);
    for (std::size_t l = 0; l < g_.layers.size(); ++l)
      layers_.push_back(make_layer(weights.layers[l], l, packer));
    table_ = packer.pack(weights.token_embd);
    output_norm_.upload(weights.output_norm, stream_);
    head_parts_ = parts_of(table_.tiles, table_.cols);
    frequencies_[0].upload(make_frequencies(LayerKind::kSliding, weights), stream_);
    frequencies_[1].upload(make_frequencies(LayerKind::kFull, weights), stream_);
    check(cudaStreamSynchronize(stream_), "packing the weights");
  }

  const char* name() const override { return "cuda"; }
  std::string description() const override { return fmt::format("cuda ({})", device_.name); }

  std::unique_ptr<KvCache> new_cache(const KvPlan& plan) override {
    return std::make_unique<CudaCache>(plan, g_, stream_);
  }
  std::span<const KvType> kv_types() const override {
    static constexpr KvType kTypes[] = {KvType::kF16};
    return kTypes;
  }
  std::uint32_t kv_element_bytes(StorageType) const override { return 2; }
  std::uint64_t scratch_bytes(std::uint32_t, std::uint32_t) const override { return 0; }

  bool decode_equals_prompt() const override { return false; }

  void begin(const RoundRows& round) override {
    check(cudaSetDevice(device_.id), "choosing the device");  // a setting of the calling thread
    rows_ = static_cast<std::uint32_t>(round.tokens.size());
    row_host_.clear();
    ranges_.clear();
    tiles_host_.clear();
    longest_ = 0;
    decode_rows_ = 0;
    prompt_rows_ = 0;
    std::uint32_t r = 0;
    for (const RowSpan& span : round.spans) {
      if (ranges_.empty() || ranges_.back().prompt != span.prompt)
        ranges_.push_back({r, 0, span.prompt, static_cast<std::uint32_t>(tiles_host_.size()), 0});
      Range& range = ranges_.back();
      range.rows += span.rows;
      (span.prompt ? prompt_rows_ : decode_rows_) += span.rows;
      if (span.prompt) {
        for (std::uint32_t at = 0; at < span.rows; at += kPromptTile)
          tiles_host_.push_back({r + at, std::min(kPromptTile, span.rows - at)});
        range.tiles = static_cast<std::uint32_t>(tiles_host_.size()) - range.first_tile;
      }
      const auto* cache = static_cast<const CudaCache*>(span.cache);
      for (std::uint32_t i = 0; i < span.rows; ++i, ++r)
        row_host_.push_back({round.tokens[r], span.position + i, cache->layers()});
      if (!span.prompt) longest_ = std::max(longest_, span.position + span.rows);
    }
    finals_ = static_cast<std::uint32_t>(round.final_rows.size());
    final_host_.assign(round.final_rows.begin(), round.final_rows.end());
    logit_rows_.assign(round.logit_rows.begin(), round.logit_rows.end());
    logit_count_ = static_cast<std::uint32_t>(logit_rows_.size());
    embeddings_ = round.embeddings;
    reserve();
    upload_round();
  }

  void embed() override {
    gather_rows(table_, rows_device_, rows_, g_.embedding_multiplier, residual_.data(), stream_);
    std::size_t given = 0;
    for (std::uint32_t r = 0; r < rows_; ++r) {
      if (row_host_[r].token >= 0) continue;
      copy_to(residual_.data() + std::size_t{r} * g_.hidden, embeddings_.data() + given++ * g_.hidden,
              g_.hidden * sizeof(float));
    }
  }

  void attn_input(std::uint32_t layer) override {
    const Layer& l = layers_[layer];
    const PackedMatrix* matrices[] = {&l.q, &l.k, &l.v};
    const std::span<const PackedMatrix* const> used(matrices, l.shape.value_from_key ? 2u : 3u);
    for (const Range& range : ranges_) {
      const Partials out = qkv(l, range);
      if (range.prompt) {
        norm_to_bf16(residual(range), range.rows, g_.hidden, l.attn_norm.data(), g_.norm_epsilon,
                     prompt_x_.data(), stream_);
        prompt_product(used, g_.hidden, range.rows, out.data);
      } else {
        const OperandView normed = operand(normed_, range, g_.hidden);
        if (!fused_ || layer == 0)
          norm_to_operand(residual(range), nullptr, range.rows, g_.hidden, l.attn_norm.data(),
                          g_.norm_epsilon, normed, stream_);
        multiply(used, normed, range.rows, out, stream_);
      }
    }
    current_ = &l;
    prepared_ = false;
  }

  void qk_prep(std::uint32_t layer) override {
    const Layer& l = layers_[layer];
    for (const Range& range : ranges_) {
      prepare_heads(qkv(l, range), rows_device_ + range.first, layer, l.shape, l.q_norm.data(),
                    l.k_norm.data(), frequencies_[l.window == 0 ? 1 : 0].data(), g_.norm_epsilon,
                    query_.data() + std::size_t{range.first} * l.query_width, stream_);
    }
    current_ = &l;
    prepared_ = true;
  }

  void attention(std::uint32_t layer) override {
    const Layer& l = layers_[layer];
    for (const Range& range : ranges_) {
      if (range.prompt) {
        attend_prompt(query_.data(), rows_device_, tiles_device_ + range.first_tile, range.tiles, layer,
                      l.shape, l.window, prompt_attended_.data(), stream_);
      } else {
        const AttentionScratch scratch = {sums_.data(), stats_.data(), chunks_of(l)};
        attend_rows(query_.data() + std::size_t{range.first} * l.query_width, rows_device_ + range.first,
                    range.rows, layer, l.shape, l.window, scratch, operand(attended_, range, l.query_width),
                    stream_);
      }
    }
    current_ = &l;
  }

  void attn_output(std::uint32_t layer) override {
    const Layer& l = layers_[layer];
    const PackedMatrix* matrices[] = {&l.o};
    for (const Range& range : ranges_) {
      const Partials out = branch(range, l.o_parts);
      if (range.prompt) {
        prompt_product(matrices, l.query_width, range.rows, out.data,
                       prompt_attended_.data() + std::size_t{range.first} * l.query_width);
      } else {
        multiply(matrices, operand(attended_, range, l.query_width), range.rows, out, stream_);
      }
      add_branch(out, l.post_attention_norm.data(), 1.0f, g_.norm_epsilon, residual(range), nullptr, {},
                 stream_);
    }
  }

  void ffn_input(std::uint32_t layer) override {
    const Layer& l = layers_[layer];
    const PackedMatrix* matrices[] = {&l.gate, &l.up};
    for (const Range& range : ranges_) {
      if (range.prompt) {
        norm_to_bf16(residual(range), range.rows, g_.hidden, l.ffn_norm.data(), g_.norm_epsilon,
                     prompt_x_.data(), stream_);
        prompt_product(matrices, g_.hidden, range.rows, both_.data());
        activate_bf16(both_.data(), range.rows, g_.ffn,
                      prompt_activated_.data() + std::size_t{range.first} * g_.ffn, stream_);
      } else {
        const OperandView normed = operand(normed_, range, g_.hidden);
        if (!fused_)
          norm_to_operand(residual(range), nullptr, range.rows, g_.hidden, l.ffn_norm.data(), g_.norm_epsilon,
                          normed, stream_);
        const Partials out = {both_.data(), l.gate_parts, range.rows, 2 * g_.ffn};
        multiply(matrices, normed, range.rows, out, stream_);
        activate(out, g_.ffn, operand(activated_, range, g_.ffn), stream_);
      }
    }
  }

  void ffn_output(std::uint32_t layer) override {
    const Layer& l = layers_[layer];
    const PackedMatrix* matrices[] = {&l.down};
    for (const Range& range : ranges_) {
      const Partials out = branch(range, l.down_parts);
      if (range.prompt) {
        prompt_product(matrices, g_.ffn, range.rows, out.data,
                       prompt_activated_.data() + std::size_t{range.first} * g_.ffn);
      } else {
        multiply(matrices, operand(activated_, range, g_.ffn), range.rows, out, stream_);
      }
      add_branch(out, l.post_ffw_norm.data(), l.scale, g_.norm_epsilon, residual(range), nullptr, {},
                 stream_);
    }
  }

  void final_norm() override {
    norm_to_operand(residual_.data(), finals_device_, finals_, g_.hidden, output_norm_.data(),
                    g_.norm_epsilon, final_.view(g_.hidden), stream_);
  }

  void head() override {
    if (logit_count_ == 0) return;
    enqueue_head();
    check(cudaStreamSynchronize(stream_), "running a round");
  }

  bool run_all() override {
    const bool given =
        std::any_of(row_host_.begin(), row_host_.end(), [](const RowInfo& r) { return r.token < 0; });
    if (!graphs_on_ || prompt_rows_ > 0 || given) {
      enqueue_stages();
    } else {
      const GraphKey key = {rows_, finals_, logit_count_, chunk_limit_, buffer_sum()};
      auto found = graphs_.find(key);
      if (found == graphs_.end()) {
        if (graphs_.size() >= kMostGraphs) graphs_.clear();
        check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a round");
        cudaGraph_t graph = nullptr;
        try {
          enqueue_stages();
        } catch (...) {
          cudaStreamEndCapture(stream_, &graph);
          if (graph != nullptr) cudaGraphDestroy(graph);
          throw;
        }
        check(cudaStreamEndCapture(stream_, &graph), "capturing a round");
        cudaGraphExec_t exec = nullptr;
        const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphDestroy(graph);
        check(status, "making a graph of a round");
        found = graphs_.emplace(key, Graph(exec)).first;
      }
      check(cudaGraphLaunch(found->second.get(), stream_), "running a round");
    }
    if (logit_count_ > 0) check(cudaStreamSynchronize(stream_), "running a round");
    return true;
  }

 private:
  void enqueue_head() {
    const OperandView x = final_.view(g_.hidden);
    // The rows with logits are all final rows but where hidden rows alone were asked for.
    OperandView in = x;
    if (logit_count_ != finals_) {
      in = head_in_.view(g_.hidden);
      for (std::uint32_t i = 0; i < logit_count_; ++i) {
        const std::uint32_t r = logit_rows_[i];
        check(cudaMemcpyAsync(in.halves + std::size_t{i} * in.cols, x.halves + std::size_t{r} * x.cols,
                              std::size_t{x.cols} * 4, cudaMemcpyDeviceToDevice, stream_),
              "head rows");
        check(cudaMemcpyAsync(in.scales + std::size_t{i} * in.cols / 32,
                              x.scales + std::size_t{r} * x.cols / 32, std::size_t{x.cols} / 32 * 4,
                              cudaMemcpyDeviceToDevice, stream_),
              "head rows");
      }
    }
    const PackedMatrix* matrices[] = {&table_};
    const Partials out = {head_.data(), head_parts_, logit_count_, g_.vocab};
    multiply(matrices, in, logit_count_, out, stream_);
    finish_logits(out, g_.softcap, logits_.data(), stream_);
    check(cudaMemcpyAsync(logits_host_.data(), logits_.data(),
                          std::size_t{logit_count_} * g_.vocab * sizeof(float), cudaMemcpyDeviceToHost,
                          stream_),
          "reading logits");
  }

 public:
  std::vector<float> read(Activation which) const override {
    return const_cast<CudaBackend*>(this)->read_activation(which);
  }
  void write(Activation which, std::span<const float> values) override;
  std::span<const float> logits(std::uint32_t index) const override {
    return {logits_host_.data() + std::size_t{index} * g_.vocab, g_.vocab};
  }

 private:
  Layer make_layer(const LayerWeights& w, std::size_t index, Packer& packer) {
    const LayerGeometry& lg = g_.layers[index];
    Layer l;
    l.q = packer.pack(w.q);
    l.k = packer.pack(w.k);
    l.v = packer.pack(w.v);
    l.o = packer.pack(w.o);
    l.gate = packer.pack(w.gate);
    l.up = packer.pack(w.up);
    l.down = packer.pack(w.down);
    l.attn_norm.upload(w.attn_norm, stream_);
    l.q_norm.upload(w.q_norm, stream_);
    l.k_norm.upload(w.k_norm, stream_);
    l.post_attention_norm.upload(w.post_attention_norm, stream_);
    l.ffn_norm.upload(w.ffn_norm, stream_);
    l.post_ffw_norm.upload(w.post_ffw_norm, stream_);
    l.scale = w.output_scale;
    l.shape = {g_.heads, lg.kv_heads, lg.head_dim, lg.value_from_key};
    if (g_.heads / lg.kv_heads > kMaxGroup)
      fail(ErrorCode::kRefused, "the cuda backend shares keys among at most {} query heads", kMaxGroup);
    l.window = lg.kind == LayerKind::kSliding ? g_.window : 0;
    l.query_width = g_.query_width(index);
    l.kv_width = g_.kv_width(index);
    l.qkv_parts = parts_of(l.q.tiles + l.k.tiles + l.v.tiles, g_.hidden);
    l.o_parts = parts_of(l.o.tiles, l.query_width);
    l.gate_parts = parts_of(l.gate.tiles + l.up.tiles, g_.hidden);
    l.down_parts = parts_of(l.down.tiles, g_.ffn);
    return l;
  }

  std::vector<double> make_frequencies(LayerKind kind, const Weights& w) const {
    const bool full = kind == LayerKind::kFull;
    std::vector<double> f;
    for (const LayerGeometry& l : g_.layers) {
      if (l.kind != kind) continue;
      const std::size_t half = l.head_dim / 2;
      for (std::size_t i = 0; i < half; ++i) {
        f.push_back(std::pow(full ? g_.rope_base_full : g_.rope_base_sliding,
                             -static_cast<double>(i) / static_cast<double>(half)));
        if (full && !w.rope_divisors.empty()) f.back() /= double{w.rope_divisors[i]};
      }
      break;
    }
    return f;
  }

  // Rows of the round that follow each other and are of one kind.
  struct Range {
    std::uint32_t first = 0, rows = 0;
    bool prompt = false;
    std::uint32_t first_tile = 0, tiles = 0;  // prompt
  };

  void reserve() {
    std::uint32_t query = 0;
    std::size_t qkv_floats = 0;
    std::size_t branch_floats = 0;
    std::size_t both_floats = std::size_t{prompt_rows_} * 2 * g_.ffn;
    std::size_t sums = 0;
    std::size_t expanded = 0;
    // Rounded up, so that a graph serves many positions.
    chunk_limit_ = std::bit_ceil(std::max(attention_chunks(0, std::max(longest_, 1u)), 4u));
    for (const Layer& l : layers_) {
      query = std::max(query, l.query_width);
      const std::size_t width = l.qkv_width();
      qkv_floats = std::max(qkv_floats, rows_ * l.qkv_parts * width);
      branch_floats =
          std::max(branch_floats, std::size_t{rows_} * std::max(l.o_parts, l.down_parts) * g_.hidden);
      both_floats = std::max(both_floats, std::size_t{decode_rows_} * l.gate_parts * 2 * g_.ffn);
      sums = std::max(sums, std::size_t{chunks_of(l)} * l.query_width);
      expanded = std::max({expanded, width * g_.hidden, std::size_t{l.query_width} * g_.hidden});
    }
    expanded = std::max(expanded, std::size_t{2} * g_.ffn * g_.hidden);
    residual_.reserve(std::size_t{rows_} * g_.hidden);
    qkv_.reserve(qkv_floats);
    branch_.reserve(branch_floats);
    both_.reserve(both_floats);
    query_.reserve(std::size_t{rows_} * query);
    if (decode_rows_ > 0) {
      sums_.reserve(decode_rows_ * sums);
      stats_.reserve(std::size_t{decode_rows_} * g_.heads * chunk_limit_);
      normed_.reserve(rows_, g_.hidden);
      attended_.reserve(rows_, query);
      activated_.reserve(rows_, g_.ffn);
    }
    if (prompt_rows_ > 0) {
      prompt_x_.reserve(std::size_t{prompt_rows_} * g_.hidden);
      prompt_attended_.reserve(std::size_t{rows_} * query);
      prompt_activated_.reserve(std::size_t{rows_} * g_.ffn);
      expanded_.reserve(expanded);
    }
    final_.reserve(std::max(finals_, 1u), g_.hidden);
    head_in_.reserve(std::max(logit_count_, 1u), g_.hidden);
    logits_.reserve(std::size_t{logit_count_} * g_.vocab);
    logits_host_.reserve(std::size_t{logit_count_} * g_.vocab);
    head_.reserve(std::size_t{logit_count_} * head_parts_ * g_.vocab);
  }

  std::uint32_t chunks_of(const Layer& l) const {
    return attention_chunks(l.window, chunk_limit_ * kKeyChunk);
  }

  void upload_round() {
    const std::size_t rows_bytes = rows_ * sizeof(RowInfo);
    const std::size_t tiles_bytes = tiles_host_.size() * sizeof(PromptTile);
    const std::size_t bytes = rows_bytes + tiles_bytes + finals_ * sizeof(std::uint32_t);
    // The last round may still be reading its own.
    check(cudaStreamSynchronize(stream_), "running a round");
    round_host_.reserve(std::max<std::size_t>(bytes, kSmallestRound));
    round_device_.reserve(std::max<std::size_t>(bytes, kSmallestRound));
    std::memcpy(round_host_.data(), row_host_.data(), rows_bytes);
    std::memcpy(round_host_.data() + rows_bytes, tiles_host_.data(), tiles_bytes);
    std::memcpy(round_host_.data() + rows_bytes + tiles_bytes, final_host_.data(),
                finals_ * sizeof(std::uint32_t));
    copy_to(round_device_.data(), round_host_.data(), bytes);
    rows_device_ = reinterpret_cast<const RowInfo*>(round_device_.data());
    tiles_device_ = reinterpret_cast<const PromptTile*>(round_device_.data() + rows_bytes);
    finals_device_ = reinterpret_cast<const std::uint32_t*>(round_device_.data() + rows_bytes + tiles_bytes);
  }

  // A graph of a round's kernels serves every later round of the same rows and buffers.
  struct GraphKey {
    std::uint32_t rows, finals, logits, chunks;
    std::uint64_t buffers;
    auto operator<=>(const GraphKey&) const = default;
  };
  std::uint64_t buffer_sum() const {
    std::uint64_t sum = 0;
    for (const void* p :
         {static_cast<const void*>(residual_.data()), static_cast<const void*>(qkv_.data()),
          static_cast<const void*>(branch_.data()), static_cast<const void*>(both_.data()),
          static_cast<const void*>(query_.data()), static_cast<const void*>(sums_.data()),
          static_cast<const void*>(stats_.data()), static_cast<const void*>(head_.data()),
          static_cast<const void*>(logits_.data()), static_cast<const void*>(logits_host_.data()),
          static_cast<const void*>(normed_.halves.data()), static_cast<const void*>(attended_.halves.data()),
          static_cast<const void*>(activated_.halves.data()), static_cast<const void*>(final_.halves.data()),
          static_cast<const void*>(head_in_.halves.data()), static_cast<const void*>(round_device_.data())}) {
      sum = (sum ^ reinterpret_cast<std::uintptr_t>(p)) * 0x9e3779b97f4a7c15u;
      sum ^= sum >> 29;
    }
    return sum;
  }
  void enqueue_stages() {
    // Handing on operands (fused_) gave other tokens than the stages on a small model; until that is
    // understood, no.
    fused_ = false;
    embed();
    for (std::uint32_t l = 0; l < layers_.size(); ++l) {
      attn_input(l);
      qk_prep(l);
      attention(l);
      attn_output(l);
      ffn_input(l);
      ffn_output(l);
    }
    if (finals_ > 0) final_norm();
    if (logit_count_ > 0) enqueue_head();
    fused_ = false;
  }

  float* residual(const Range& range) { return residual_.data() + std::size_t{range.first} * g_.hidden; }
  Partials qkv(const Layer& l, const Range& range) const {
    const std::size_t row = std::size_t{l.qkv_parts} * l.qkv_width();
    return {qkv_.data() + range.first * row, range.prompt ? 1 : l.qkv_parts, range.rows, l.qkv_width()};
  }
  Partials branch(const Range& range, std::uint32_t parts) const {
    return {branch_.data(), range.prompt ? 1 : parts, range.rows, g_.hidden};
  }
  static OperandView operand(Operand& from, const Range& range, std::uint32_t width) {
    OperandView v = from.view(width);
    v.halves += std::size_t{range.first} * v.cols;
    v.scales += std::size_t{range.first} * v.cols / 32;
    return v;
  }

  // Adds a branch to the residual; in a fused round also makes the operand of the stage that follows.
  void finish_branch(const Range& range, const Partials& branch, const DeviceArray<float>& weight,
                     float scale, const DeviceArray<float>* next) {
    const bool fuse = fused_ && !range.prompt && next != nullptr;
    add_branch(branch, weight.data(), scale, g_.norm_epsilon, residual(range), fuse ? next->data() : nullptr,
               fuse ? operand(normed_, range, g_.hidden) : OperandView{}, stream_);
  }

  // Matrices of `cols` columns side by side times prompt rows; x null: the normed rows.
  void prompt_product(std::span<const PackedMatrix* const> matrices, std::uint32_t cols, std::uint32_t rows,
                      float* out, const std::uint16_t* x = nullptr) {
    std::uint32_t height = 0;
    for (const PackedMatrix* m : matrices) {
      expand_bf16(*m, expanded_.data() + std::size_t{height} * cols, stream_);
      height += m->rows;
    }
    gemm_.multiply(expanded_.data(), height, cols, x == nullptr ? prompt_x_.data() : x, rows, out, height,
                   stream_);
  }

  void copy_to(void* device, const void* host, std::size_t bytes) {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "upload");
  }

  // Stage borders: rows as the two kinds of ranges keep them.
  std::vector<float> read_rows(Operand& decode, const DeviceArray<std::uint16_t>& prompt,
                               std::uint32_t width) {
    std::vector<float> out;
    for (const Range& range : ranges_) {
      if (range.prompt) {
        std::vector<std::uint16_t> bits(std::size_t{range.rows} * width);
        check(cudaMemcpyAsync(bits.data(), prompt.data() + std::size_t{range.first} * width, bits.size() * 2,
                              cudaMemcpyDeviceToHost, stream_),
              "reading a stage");
        check(cudaStreamSynchronize(stream_), "reading a stage");
        for (const std::uint16_t b : bits) out.push_back(bf16_to_f32(b));
      } else {
        DeviceArray<float> plain(std::size_t{range.rows} * width);
        from_operand(operand(decode, range, width), range.rows, width, plain.data(), stream_);
        const std::vector<float> rows = plain.download(plain.size(), stream_);
        out.insert(out.end(), rows.begin(), rows.end());
      }
    }
    return out;
  }
  void write_rows(Operand& decode, DeviceArray<std::uint16_t>& prompt, std::uint32_t width,
                  std::span<const float> values) {
    DeviceArray<float> plain;
    plain.upload(values, stream_);
    for (const Range& range : ranges_) {
      const float* from = plain.data() + std::size_t{range.first} * width;
      if (range.prompt) {
        to_bf16(from, std::size_t{range.rows} * width, prompt.data() + std::size_t{range.first} * width,
                stream_);
      } else {
        to_operand(from, range.rows, width, operand(decode, range, width), stream_);
      }
    }
    check(cudaStreamSynchronize(stream_), "writing a stage");
  }
  // Columns of the q/k/v sums.
  std::vector<float> read_qkv(std::uint32_t first, std::uint32_t width) {
    std::vector<float> out;
    for (const Range& range : ranges_) {
      DeviceArray<float> sums(std::size_t{range.rows} * current_->qkv_width());
      sum_parts(qkv(*current_, range), sums.data(), stream_);
      const std::vector<float> all = sums.download(sums.size(), stream_);
      for (std::uint32_t r = 0; r < range.rows; ++r) {
        const auto at =
            all.begin() + static_cast<std::ptrdiff_t>(std::size_t{r} * current_->qkv_width() + first);
        out.insert(out.end(), at, at + width);
      }
    }
    return out;
  }
  // The first part takes the values, the others are zero.
  void write_qkv(std::uint32_t first, std::uint32_t width, std::span<const float> values) {
    for (const Range& range : ranges_) {
      const Partials p = qkv(*current_, range);
      const std::size_t pitch = std::size_t{p.width} * sizeof(float);
      for (std::uint32_t part = 0; part < p.parts; ++part) {
        float* to = p.data + std::size_t{part} * p.rows * p.width + first;
        if (part == 0) {
          check(cudaMemcpy2DAsync(to, pitch, values.data() + std::size_t{range.first} * width,
                                  width * sizeof(float), width * sizeof(float), range.rows,
                                  cudaMemcpyHostToDevice, stream_),
                "writing a stage");
        } else {
          check(cudaMemset2DAsync(to, pitch, 0, width * sizeof(float), range.rows, stream_),
                "writing a stage");
        }
      }
    }
    check(cudaStreamSynchronize(stream_), "writing a stage");
  }

  std::vector<float> read_final() {
    DeviceArray<float> plain(std::size_t{finals_} * g_.hidden);
    from_operand(final_.view(g_.hidden), finals_, g_.hidden, plain.data(), stream_);
    return plain.download(plain.size(), stream_);
  }

  std::vector<float> read_activation(Activation which) {
    const std::uint32_t query = current_ != nullptr ? current_->query_width : 0;
    const std::uint32_t kv = current_ != nullptr ? current_->kv_width : 0;
    switch (which) {
      case Activation::kResidual:
        return residual_.download(std::size_t{rows_} * g_.hidden, stream_);
      case Activation::kQuery:
        return prepared_ ? query_.download(std::size_t{rows_} * query, stream_) : read_qkv(0, query);
      case Activation::kKey:
        return read_qkv(query, kv);
      case Activation::kValue:
        return read_qkv(current_->shape.value_from_key ? query : query + kv, kv);
      case Activation::kAttention:
        return read_rows(attended_, prompt_attended_, query);
      case Activation::kFfn:
        return read_rows(activated_, prompt_activated_, g_.ffn);
      case Activation::kFinal:
        return read_final();
      case Activation::kLogits:
        return logits_.download(std::size_t{logit_count_} * g_.vocab, stream_);
      case Activation::kNext:
        break;  // assistants do not run here yet
    }
    fail(ErrorCode::kFailed, "no such activation");
  }

  const Geometry& g_;
  CudaDevice device_;
  Stream stream_;
  std::vector<Layer> layers_;
  PackedMatrix table_;
  DeviceArray<float> output_norm_;
  DeviceArray<double> frequencies_[2];  // sliding, full
  std::uint32_t head_parts_ = 1;

  // The round.
  std::uint32_t rows_ = 0, decode_rows_ = 0, prompt_rows_ = 0, finals_ = 0, logit_count_ = 0;
  std::uint32_t longest_ = 0;      // one past the highest position of a decode row
  std::uint32_t chunk_limit_ = 4;  // chunks of keys that a decode row may see
  std::vector<Range> ranges_;
  std::vector<PromptTile> tiles_host_;
  std::span<const float> embeddings_;
  std::vector<std::uint32_t> logit_rows_;
  const Layer* current_ = nullptr;  // of the last stage that has heads
  bool fused_ = false;              // run_all: stages hand on operands instead of f32 rows
  bool prepared_ = false;           // query_ holds the current layer's prepared queries
  // What the kernels of the round read: rows, tiles, final rows, in one copy.
  std::vector<RowInfo> row_host_;
  std::vector<std::uint32_t> final_host_;
  PinnedArray<std::byte> round_host_;
  DeviceArray<std::byte> round_device_;
  const RowInfo* rows_device_ = nullptr;
  const PromptTile* tiles_device_ = nullptr;
  const std::uint32_t* finals_device_ = nullptr;
  DeviceArray<float> residual_, qkv_, branch_, both_, query_, sums_, head_, logits_;
  DeviceArray<float2> stats_;
  Operand normed_, attended_, activated_, final_, head_in_;
  DeviceArray<std::uint16_t> prompt_x_, prompt_attended_, prompt_activated_, expanded_;
  Gemm gemm_;
  bool graphs_on_ =
      std::getenv("GEM_CUDA_GRAPHS") == nullptr || std::string(std::getenv("GEM_CUDA_GRAPHS")) != "0";
  std::map<GraphKey, Graph> graphs_;
  PinnedArray<float> logits_host_;
};

void CudaBackend::write(Activation which, std::span<const float> values) {
  const std::uint32_t query = current_ != nullptr ? current_->query_width : 0;
  const std::uint32_t kv = current_ != nullptr ? current_->kv_width : 0;
  switch (which) {
    case Activation::kResidual:
      copy_to(residual_.data(), values.data(), values.size_bytes());
      check(cudaStreamSynchronize(stream_), "writing a stage");
      return;
    case Activation::kQuery:
      if (!prepared_) return write_qkv(0, query, values);
      copy_to(query_.data(), values.data(), values.size_bytes());
      check(cudaStreamSynchronize(stream_), "writing a stage");
      return;
    case Activation::kKey:
      return write_qkv(query, kv, values);
    case Activation::kValue:
      if (!current_->shape.value_from_key) write_qkv(query + kv, kv, values);
      return;
    case Activation::kAttention:
      return write_rows(attended_, prompt_attended_, query, values);
    case Activation::kFfn:
      return write_rows(activated_, prompt_activated_, g_.ffn, values);
    case Activation::kFinal: {
      DeviceArray<float> plain;
      plain.upload(values, stream_);
      to_operand(plain.data(), finals_, g_.hidden, final_.view(g_.hidden), stream_);
      check(cudaStreamSynchronize(stream_), "writing a stage");
      return;
    }
    case Activation::kLogits:
    case Activation::kNext:
      return;
  }
}

}  // namespace

bool cuda_built() {
  return true;
}

std::vector<CudaDevice> cuda_devices() {
  std::vector<CudaDevice> devices;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return devices;
  }
  for (int id = 0; id < count; ++id) {
    cudaDeviceProp p = {};
    if (cudaGetDeviceProperties(&p, id) != cudaSuccess) continue;
    devices.push_back({id, p.name, p.major, p.minor, p.totalGlobalMem, 0});
  }
  return devices;
}

std::unique_ptr<Backend> make_cuda_backend(const Geometry& geometry, const Weights& weights,
                                           const CudaOptions& options) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail(ErrorCode::kFailed, "cuda: no usable device: {}", cudaGetErrorString(status));
  }
  const std::vector<CudaDevice> devices = cuda_devices();
  for (const CudaDevice& device : devices) {
    if (device.id != options.device) continue;
    if (device.major < 8) {
      fail(ErrorCode::kFailed, "cuda: {} has compute capability {}.{}, the backend needs 8.0", device.name,
           device.major, device.minor);
    }
    check(cudaSetDevice(device.id), "choosing the device");
    return std::make_unique<CudaBackend>(geometry, weights, device);
  }
  fail(ErrorCode::kUsage, "cuda: there is no device {} ({} found)", options.device, devices.size());
}

}  // namespace gem
