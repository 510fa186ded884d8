#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace gem::cuda {
namespace {

// Up to so many rows every block of the decode kernel makes the rows that it multiplies; more are shared out.
constexpr std::uint32_t kFusedRows = 2;
constexpr std::size_t kSmallestRound = 64 << 10;  // bytes of a round's description

void print_trace(const std::vector<long long>& all, std::size_t layers, std::size_t blocks) {
  static int calls = 0;
  if (++calls != 12) return;
  const char* names[] = {"rows", "qkv", "bar", "attend", "bar", "merge", "o", "bar", "rows", "gateup", "bar", "act", "down", "bar"};
  const std::size_t points = layers * kTracePoints + 8;
  for (const std::size_t l : {3u, 5u, 20u}) {
    for (std::size_t p = 0; p + 1 < kTracePoints; ++p) {
      double sum = 0, most = 0, least = 1e30;
      for (std::size_t b = 0; b < blocks; ++b) {
        const long long* at = all.data() + b * points + l * kTracePoints + p;
        const double d = static_cast<double>(at[1] - at[0]);
        sum += d, most = std::max(most, d), least = std::min(least, d);
      }
      fmt::print("layer {} {:8} mean {:8.0f} least {:8.0f} most {:8.0f}\n", l, names[p], sum / static_cast<double>(blocks), least, most);
    }
  }
  fmt::print("layers {} cycles a layer\n", static_cast<double>(all[(layers - 1) * kTracePoints] - all[0]) / static_cast<double>(layers - 1));
}

}  // namespace

CudaBackend::CudaBackend(const Geometry& geometry, const Weights& weights, const CudaDevice& device)
    : g_(geometry),
      weights_(weights),
      device_(device),
      limits_(DecodeLimits::of(device.id)),
      model_(geometry, limits_) {}

std::string CudaBackend::description() const {
  return fmt::format("cuda ({})", device_.name);
}

std::unique_ptr<KvCache> CudaBackend::new_cache(const KvPlan& plan) {
  check(cudaSetDevice(device_.id), "choosing the device");
  return std::make_unique<CudaCache>(plan, g_, stream_);
}

std::span<const KvType> CudaBackend::kv_types() const {
  static constexpr KvType kTypes[] = {KvType::kF16};
  return kTypes;
}

std::uint64_t CudaBackend::scratch_bytes(std::uint32_t, std::uint32_t) const {
  return 0;
}

std::optional<std::uint64_t> CudaBackend::weight_bytes() const {
  return model_.bytes(weights_);
}

void CudaBackend::load_weights(const Progress& progress) {
  if (model_.loaded()) return;
  check(cudaSetDevice(device_.id), "choosing the device");
  model_.load(weights_, stream_, progress);
}

void CudaBackend::begin(const RoundRows& round) {
  check(cudaSetDevice(device_.id), "choosing the device");  // a setting of the calling thread
  load_weights({});
  rows_ = static_cast<std::uint32_t>(round.tokens.size());
  decode_rows_ = prompt_rows_ = 0;
  for (const RowSpan& span : round.spans) (span.prompt ? prompt_rows_ : decode_rows_) += span.rows;
  order_.assign(rows_, 0);
  row_host_.assign(rows_, {});
  tiles_host_.clear();
  units_[0] = units_[1] = 0;
  std::uint32_t r = 0;
  std::uint32_t next_decode = 0;
  std::uint32_t next_prompt = decode_rows_;
  for (const RowSpan& span : round.spans) {
    std::uint32_t& next = span.prompt ? next_prompt : next_decode;
    const auto* cache = static_cast<const CudaCache*>(span.cache);
    for (std::uint32_t at = 0; span.prompt && at < span.rows; at += kPromptTile)
      tiles_host_.push_back({next - decode_rows_ + at, std::min(kPromptTile, span.rows - at)});
    const std::uint32_t first = next;
    for (std::uint32_t i = 0; i < span.rows; ++i, ++r, ++next) {
      order_[r] = next;
      RowInfo& info = row_host_[next];
      info.token = round.tokens[r];
      info.position = span.position + i;
      info.layers = cache->layers();
      info.span_first = first;
      if (span.prompt) continue;
      for (int kind = 0; kind < 2; ++kind) {
        if (model_.head_dims[kind] == 0) continue;
        info.first_unit[kind] = units_[kind];
        units_[kind] +=
            key_chunks(info.position, kind == 0 ? g_.window : 0, key_block(model_.head_dims[kind])).count;
      }
    }
  }
  finals_ = static_cast<std::uint32_t>(round.final_rows.size());
  final_host_.clear();
  for (const std::uint32_t row : round.final_rows) final_host_.push_back(order_[row]);
  logit_rows_.assign(round.logit_rows.begin(), round.logit_rows.end());
  logit_count_ = static_cast<std::uint32_t>(logit_rows_.size());
  embeddings_ = round.embeddings;
  reserve();
  upload_round();
}

void CudaBackend::reserve() {
  const std::uint32_t most = std::max({decode_rows_, logit_count_, 1u});
  const std::uint32_t pass_rows = decode_pass_rows(limits_, most, model_.sizes.most_parts);
  const std::size_t pieces = decode_pieces(pass_rows);
  const std::size_t padded = (most + pass_rows - 1) / pass_rows * pass_rows;
  std::size_t qkv = 0, branch = 0, both = 0, query = 0, steps = 0, slices = 0, expanded = 0, prompt_qkv = 0;
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const DeviceLayer& l = model_.layers[i];
    const DecodeOp* ops = &model_.op(i, 0);
    qkv = std::max(qkv, std::size_t{ops[0].parts} * ops[0].width);
    branch = std::max(branch, std::max<std::size_t>(ops[1].parts, ops[3].parts) * g_.hidden);
    both = std::max(both, std::size_t{ops[2].parts} * ops[2].width);
    query = std::max<std::size_t>(query, l.query_width);
    for (std::size_t o = 0; o < kOpsOfLayer; ++o) {
      steps = std::max<std::size_t>(steps, ops[o].chunks);
      slices = std::max(slices, std::size_t{ops[o].parts} * kSlices);
    }
    prompt_qkv = std::max<std::size_t>(prompt_qkv, l.qkv_width());
    expanded = std::max({expanded, std::size_t{l.qkv_width()} * g_.hidden, std::size_t{l.query_width} * g_.hidden});
  }
  expanded = std::max(expanded, std::size_t{2} * g_.ffn * g_.hidden);
  residual_.reserve(std::size_t{rows_} * g_.hidden);
  if (decode_rows_ > 0) {
    between_.reserve(std::size_t{decode_rows_} * g_.hidden);
    qkv_.reserve(qkv * pieces * decode_rows_);
    branch_.reserve(branch * pieces * decode_rows_);
    both_.reserve(both * pieces * decode_rows_);
    operand_.reserve(steps * kChunkCols * padded);
    operand_sums_.reserve(steps * 2 * padded);
    operand_scales_.reserve(slices * padded);
    std::size_t sums = 0;
    for (int kind = 0; kind < 2; ++kind)
      sums = std::max(sums, std::size_t{units_[kind]} * g_.heads * model_.head_dims[kind]);
    sums_.reserve(sums);
    turns_.reserve(std::size_t{decode_rows_} * 2 * kMostPairs);
    stats_.reserve(std::size_t{std::max(units_[0], units_[1])} * g_.heads);
  }
  query_.reserve(std::size_t{rows_} * query);
  if (prompt_rows_ > 0) {
    prompt_qkv_.reserve(prompt_rows_ * prompt_qkv);
    prompt_branch_.reserve(std::size_t{prompt_rows_} * g_.hidden);
    prompt_both_.reserve(std::size_t{prompt_rows_} * 2 * g_.ffn);
    prompt_x_.reserve(std::size_t{prompt_rows_} * g_.hidden);
    prompt_attended_.reserve(std::size_t{prompt_rows_} * query);
    prompt_activated_.reserve(std::size_t{prompt_rows_} * g_.ffn);
    expanded_.reserve(expanded);
  }
  final_rows_.reserve(std::size_t{finals_} * g_.hidden);
  head_.reserve(model_.head().parts * pieces * std::min(logit_count_, pass_rows) * g_.vocab);
  logits_.reserve(std::size_t{logit_count_} * g_.vocab);
  logits_host_.reserve(std::size_t{logit_count_} * g_.vocab);
}

void CudaBackend::upload_round() {
  // The last round may still be reading its own.
  wait("running a round");
  std::size_t bytes = 0;
  const auto place = [&](std::size_t size) {
    const std::size_t at = bytes;
    bytes = (bytes + size + 15) / 16 * 16;
    return at;
  };
  const std::size_t barrier = place(sizeof(unsigned));
  const std::size_t rows = place(rows_ * sizeof(RowInfo));
  const std::size_t tiles = place(tiles_host_.size() * sizeof(PromptTile));
  const std::size_t finals = place(finals_ * sizeof(std::uint32_t));
  const std::size_t logits = place(logit_count_ * sizeof(std::uint32_t));
  round_host_.reserve(std::max(bytes, kSmallestRound));
  round_device_.reserve(std::max(bytes, kSmallestRound));
  std::memset(round_host_.data() + barrier, 0, sizeof(unsigned));
  const auto fill = [&](std::size_t at, const auto& values) {
    if (!values.empty()) std::memcpy(round_host_.data() + at, values.data(), values.size() * sizeof(values[0]));
  };
  fill(rows, row_host_);
  fill(tiles, tiles_host_);
  fill(finals, final_host_);
  fill(logits, logit_rows_);
  copy_to(round_device_.data(), round_host_.data(), bytes);
  std::byte* base = round_device_.data();
  barrier_ = reinterpret_cast<unsigned*>(base + barrier);
  rows_device_ = reinterpret_cast<const RowInfo*>(base + rows);
  tiles_device_ = reinterpret_cast<const PromptTile*>(base + tiles);
  finals_device_ = reinterpret_cast<const std::uint32_t*>(base + finals);
  logits_device_ = reinterpret_cast<const std::uint32_t*>(base + logits);
}

DecodeJob CudaBackend::job(std::uint32_t phases) const {
  DecodeJob j;
  model_.describe(j);
  j.rows = rows_device_;
  j.row_count = decode_rows_;
  j.units[0] = units_[0];
  j.units[1] = units_[1];
  j.finals = finals_device_;
  j.final_count = finals_;
  j.logit_rows = logits_device_;
  j.logit_count = logit_count_;
  j.phases = phases;
  j.residual = residual_.data();
  j.between = between_.data();
  j.qkv = qkv_.data();
  j.branch = branch_.data();
  j.both = both_.data();
  j.query = query_.data();
  j.sums = sums_.data();
  j.stats = stats_.data();
  j.turns = turns_.data();
  j.operand = operand_.data();
  j.operand_sums = operand_sums_.data();
  j.operand_scales = operand_scales_.data();
  j.final_rows = final_rows_.data();
  j.head = head_.data();
  j.logits = logits_.data();
  j.barrier = barrier_;
  return j;
}

void CudaBackend::run_stage(std::uint32_t layer, std::uint32_t phases) {
  if (decode_rows_ == 0) return;
  DecodeJob j = job(phases);
  const std::uint32_t which = phases & kPhaseQkv                      ? 0
                              : phases & (kPhasePrepare | kPhaseAttend | kPhaseOut) ? 1
                              : phases & kPhaseGateUp                 ? 2
                                                                      : 3;
  j.first_op = layer * kOpsOfLayer + which;
  // A branch is added, and the feed-forward activated, with what comes before the next product.
  j.end_op = j.first_op + (phases & (kPhaseAddOut | kPhaseAddDown | kPhaseActivate) ? 2 : 1);
  check(cudaMemsetAsync(barrier_, 0, sizeof(unsigned), stream_), "a stage");
  decode(j, limits_, model_.sizes, stream_);
}

void CudaBackend::embed() {
  gather_rows(model_.table, rows_device_, rows_, g_.embedding_multiplier, residual_.data(), stream_);
  std::size_t given = 0;
  for (std::uint32_t r = 0; r < rows_; ++r) {
    if (row_host_[order_[r]].token >= 0) continue;
    copy_to(residual_.data() + std::size_t{order_[r]} * g_.hidden, embeddings_.data() + given++ * g_.hidden,
            g_.hidden * sizeof(float));
  }
}

void CudaBackend::attn_input(std::uint32_t layer) {
  run_stage(layer, kPhaseNormIn | kPhaseQkv);
  prompt_attn_input(model_.layers[layer]);
  current_ = layer;
  prepared_ = false;
}

void CudaBackend::qk_prep(std::uint32_t layer) {
  run_stage(layer, kPhasePrepare);
  prompt_qk_prep(model_.layers[layer], layer);
  current_ = layer;
  prepared_ = true;
}

void CudaBackend::attention(std::uint32_t layer) {
  run_stage(layer, kPhaseAttend | kPhaseMerge);
  prompt_attention(model_.layers[layer], layer);
  current_ = layer;
}

void CudaBackend::attn_output(std::uint32_t layer) {
  run_stage(layer, kPhaseOut | kPhaseAddOut);
  prompt_attn_output(model_.layers[layer]);
}

void CudaBackend::ffn_input(std::uint32_t layer) {
  run_stage(layer, kPhaseNormFfn | kPhaseGateUp | kPhaseActivate);
  prompt_ffn_input(model_.layers[layer]);
}

void CudaBackend::ffn_output(std::uint32_t layer) {
  run_stage(layer, kPhaseDown | kPhaseAddDown);
  prompt_ffn_output(model_.layers[layer]);
}

void CudaBackend::final_norm() {
  DecodeJob j = job(kPhaseFinal);
  j.first_op = j.layer_count * kOpsOfLayer;
  j.end_op = j.first_op + 1;
  check(cudaMemsetAsync(barrier_, 0, sizeof(unsigned), stream_), "a stage");
  decode(j, limits_, model_.sizes, stream_);
}

void CudaBackend::head() {
  if (logit_count_ == 0) return;
  DecodeJob j = job(kPhaseHead);
  j.first_op = j.layer_count * kOpsOfLayer;
  j.end_op = j.first_op + 1;
  check(cudaMemsetAsync(barrier_, 0, sizeof(unsigned), stream_), "a stage");
  decode(j, limits_, model_.sizes, stream_);
  fetch_logits();
}

void CudaBackend::fetch_logits() {
  check(cudaMemcpyAsync(logits_host_.data(), logits_.data(), std::size_t{logit_count_} * g_.vocab * sizeof(float),
                        cudaMemcpyDeviceToHost, stream_),
        "reading logits");
  wait("running a round");
}

bool CudaBackend::run_all() {
  embed();
  for (std::uint32_t l = 0; prompt_rows_ > 0 && l < model_.layers.size(); ++l) {
    const DeviceLayer& layer = model_.layers[l];
    prompt_attn_input(layer);
    prompt_qk_prep(layer, l);
    prompt_attention(layer, l);
    prompt_attn_output(layer);
    prompt_ffn_input(layer);
    prompt_ffn_output(layer);
  }
  const std::uint32_t phases = (decode_rows_ > 0 ? static_cast<std::uint32_t>(kPhasesOfLayer) : 0u) | (finals_ > 0 ? kPhaseFinal : 0u) |
                               (logit_count_ > 0 ? kPhaseHead : 0u);
  if (phases != 0) {
    DecodeJob j = job(phases);
    j.whole = true;
    j.fused = decode_rows_ <= kFusedRows;
    j.first_op = decode_rows_ > 0 ? 0 : j.layer_count * kOpsOfLayer;
    j.end_op = j.layer_count * kOpsOfLayer + (finals_ > 0 ? 1 : 0);
    static const bool traced = std::getenv("GEM_CUDA_TRACE") != nullptr;
    DeviceArray<long long> trace;
    const std::size_t points = std::size_t{j.layer_count} * kTracePoints + 8;
    if (traced) {
      trace.resize(points * limits_.processors);
      check(cudaMemsetAsync(trace.data(), 0, trace.bytes(), stream_), "trace");
      j.trace = trace.data();
    }
    decode(j, limits_, model_.sizes, stream_);
    if (traced && j.fused) print_trace(trace.download(trace.size(), stream_), j.layer_count, limits_.processors);
  }
  if (logit_count_ > 0) fetch_logits();
  return true;
}

// ---- prompt rows

void CudaBackend::prompt_attn_input(const DeviceLayer& l) {
  if (prompt_rows_ == 0) return;
  norm_to_bf16(prompt_residual(), prompt_rows_, g_.hidden, l.attn_norm.data(), g_.norm_epsilon, prompt_x_.data(),
               stream_);
  const PackedMatrix* matrices[] = {&l.q, &l.k, &l.v};
  prompt_product({matrices, l.shape.value_from_key ? 2u : 3u}, g_.hidden, prompt_x_.data(), prompt_qkv_.data());
}

void CudaBackend::prompt_qk_prep(const DeviceLayer& l, std::uint32_t layer) {
  if (prompt_rows_ == 0) return;
  prepare_heads(prompt_qkv_.data(), prompt_rows_, l.qkv_width(), rows_device_ + decode_rows_, layer, l.shape,
                l.q_norm.data(), l.k_norm.data(), model_.frequencies(l), g_.norm_epsilon,
                query_.data() + std::size_t{decode_rows_} * l.query_width, stream_);
}

void CudaBackend::prompt_attention(const DeviceLayer& l, std::uint32_t layer) {
  if (prompt_rows_ == 0) return;
  attend_prompt(query_.data() + std::size_t{decode_rows_} * l.query_width, rows_device_ + decode_rows_, tiles_device_,
                static_cast<std::uint32_t>(tiles_host_.size()), layer, l.shape, l.window, prompt_attended_.data(),
                stream_);
}

void CudaBackend::prompt_attn_output(const DeviceLayer& l) {
  if (prompt_rows_ == 0) return;
  const PackedMatrix* matrices[] = {&l.o};
  prompt_product(matrices, l.query_width, prompt_attended_.data(), prompt_branch_.data());
  add_branch(prompt_branch_.data(), prompt_rows_, g_.hidden, l.post_attention_norm.data(), 1.0f, g_.norm_epsilon,
             prompt_residual(), stream_);
}

void CudaBackend::prompt_ffn_input(const DeviceLayer& l) {
  if (prompt_rows_ == 0) return;
  norm_to_bf16(prompt_residual(), prompt_rows_, g_.hidden, l.ffn_norm.data(), g_.norm_epsilon, prompt_x_.data(),
               stream_);
  const PackedMatrix* matrices[] = {&l.gate, &l.up};
  prompt_product(matrices, g_.hidden, prompt_x_.data(), prompt_both_.data());
  activate_bf16(prompt_both_.data(), prompt_rows_, g_.ffn, prompt_activated_.data(), stream_);
}

void CudaBackend::prompt_ffn_output(const DeviceLayer& l) {
  if (prompt_rows_ == 0) return;
  const PackedMatrix* matrices[] = {&l.down};
  prompt_product(matrices, g_.ffn, prompt_activated_.data(), prompt_branch_.data());
  add_branch(prompt_branch_.data(), prompt_rows_, g_.hidden, l.post_ffw_norm.data(), l.scale, g_.norm_epsilon,
             prompt_residual(), stream_);
}

// Matrices of `cols` columns side by side times the prompt rows x [rows, cols].
void CudaBackend::prompt_product(std::span<const PackedMatrix* const> matrices, std::uint32_t cols,
                                 const std::uint16_t* x, float* out) {
  std::uint32_t height = 0;
  for (const PackedMatrix* m : matrices) {
    expand_bf16(*m, expanded_.data() + std::size_t{height} * cols, stream_);
    height += m->rows;
  }
  gemm_.multiply(expanded_.data(), height, cols, x, prompt_rows_, out, height, stream_);
}

void CudaBackend::copy_to(void* device, const void* host, std::size_t bytes) {
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "upload");
}

std::span<const float> CudaBackend::logits(std::uint32_t index) const {
  return {logits_host_.data() + std::size_t{index} * g_.vocab, g_.vocab};
}

}  // namespace gem::cuda

namespace gem {

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
    cuda::check(cudaSetDevice(device.id), "choosing the device");
    return std::make_unique<cuda::CudaBackend>(geometry, weights, device);
  }
  fail(ErrorCode::kUsage, "cuda: there is no device {} ({} found)", options.device, devices.size());
}

}  // namespace gem
