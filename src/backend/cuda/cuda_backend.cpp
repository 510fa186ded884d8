#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace gem::cuda {
namespace {

// Up to so many rows every block of the decode kernel makes the rows that it multiplies; more are shared out.
constexpr std::uint32_t kFusedRows = 2;
constexpr std::uint32_t kMostSteps = 16;          // of an assistant's chains, without a look in between
constexpr std::size_t kSmallestRound = 64 << 10;  // bytes of a round's description

}  // namespace

CudaBackend::CudaBackend(const Geometry& geometry, const Weights& weights, const CudaDevice& device,
                         std::shared_ptr<DeviceModel> model, std::shared_ptr<const DeviceModel> target)
    : g_(geometry),
      weights_(weights),
      device_(device),
      limits_(DecodeLimits::of(device.id)),
      shared_model_(std::move(model)),
      model_(*shared_model_),
      target_(std::move(target)) {}

std::unique_ptr<CudaBackend> CudaBackend::make(const Geometry& geometry, const Weights& weights,
                                               const CudaDevice& device) {
  auto model = std::make_shared<DeviceModel>(geometry, DecodeLimits::of(device.id));
  auto backend = std::make_unique<CudaBackend>(geometry, weights, device, model);
  // The matrices in bf16 beside the packed ones make prompts faster, above all short chunks of them; where
  // most of the memory is left then.
  constexpr double kMost = 0.65;
  const double free = static_cast<double>(backend->device_memory().value_or(0));
  model->keep_expanded = static_cast<double>(model->bytes(weights) + model->expanded_bytes()) <= kMost * free;
  return backend;
}

std::unique_ptr<Backend> CudaBackend::new_lane() {
  check(cudaSetDevice(device_.id), "choosing the device");
  auto lane = std::make_unique<CudaBackend>(g_, weights_, device_, shared_model_);
  lane->gemm_.emplace();  // what is missing for prompts shows now
  return lane;
}

bool CudaBackend::use_less_memory() {
  return !model_.loaded() && std::exchange(model_.keep_expanded, false);
}

std::string CudaBackend::description() const {
  return fmt::format("cuda ({})", device_.name);
}

std::unique_ptr<KvCache> CudaBackend::new_cache(const KvPlan& plan) {
  check(cudaSetDevice(device_.id), "choosing the device");
  if (staging_ == nullptr) {
    staging_ = std::make_shared<CacheStaging>();
    snapshots_ = std::make_shared<CacheSnapshots>(device_.id, snapshot_bytes());
  }
  return std::make_unique<CudaCache>(plan, g_, stream_, staging_, snapshots_);
}

// The rings of a stream, and the pages that a long prompt adds between two times that it is kept; a small
// part of the device at most, the rest is then waited for.
std::size_t CudaBackend::snapshot_bytes() const {
  constexpr std::size_t kFixedPositions = 8192;
  constexpr std::size_t kElement = 2;  // also where the cache keeps more
  std::size_t bytes = 0;
  for (const LayerGeometry& layer : g_.layers) {
    const std::size_t positions =
        layer.kind == LayerKind::kSliding ? g_.window + KvPlan::kCheckpointMargin : kFixedPositions;
    bytes += positions * layer.kv_heads * layer.head_dim * 2 * kElement;
  }
  return std::min<std::size_t>(bytes + 2 * CacheSnapshots::kBlock, device_.memory / 64);
}

std::unique_ptr<Backend> CudaBackend::new_assistant(const Geometry& geometry, const Weights& weights,
                                                    ReleaseWeights) {
  auto model = std::make_shared<DeviceModel>(geometry, limits_);
  return std::make_unique<CudaBackend>(geometry, weights, device_, std::move(model), shared_model_);
}

std::span<const KvType> CudaBackend::kv_types() const {
  static constexpr KvType kTypes[] = {KvType::kF16, KvType::kF16Full, KvType::kBF16, KvType::kF32};
  return kTypes;
}

std::uint32_t CudaBackend::pass_rows(std::uint32_t decode_rows, std::uint32_t logit_rows) const {
  return decode_pass_rows(limits_, std::max(decode_rows, logit_rows), model_.most_parts());
}

CudaBackend::RoundSizes CudaBackend::sizes_of(std::uint32_t decode_rows, std::uint32_t prompt_rows,
                                              std::uint32_t logit_rows, std::uint32_t final_rows,
                                              const std::uint32_t (&units)[2]) const {
  const std::uint32_t in_pass = pass_rows(decode_rows, logit_rows);
  const std::size_t pieces = decode_pieces(in_pass);
  const std::size_t padded = (std::max({decode_rows, logit_rows, 1u}) + in_pass - 1) / in_pass * in_pass;
  const auto parts = [&](std::uint32_t cols) { return std::size_t{limits_.parts_of(cols)}; };
  const auto chunks = [](std::uint32_t cols) { return (std::size_t{cols} + kChunkCols - 1) / kChunkCols; };
  std::size_t query = 0, qkv = 0, branch = parts(g_.ffn), steps = std::max(chunks(g_.hidden), chunks(g_.ffn));
  for (std::size_t i = 0; i < g_.layers.size(); ++i) {
    const std::uint32_t width = g_.query_width(i);
    query = std::max<std::size_t>(query, width);
    const LayerGeometry& layer = g_.layers[i];
    const std::uint32_t own = layer.kv_source ? 0u : layer.value_from_key ? 1u : 2u;
    qkv = std::max<std::size_t>(qkv, width + g_.kv_width(i) * own);
    branch = std::max(branch, parts(width));
    steps = std::max(steps, chunks(width));
  }
  RoundSizes n;
  n.residual = std::size_t{decode_rows + prompt_rows} * g_.hidden;
  n.query = (decode_rows + prompt_rows) * query;
  if (decode_rows > 0) {
    n.between = std::size_t{decode_rows} * g_.hidden;
    n.qkv = parts(g_.hidden) * qkv * pieces * decode_rows;
    n.branch = branch * g_.hidden * pieces * decode_rows;
    n.both = parts(g_.hidden) * 2 * g_.ffn * pieces * decode_rows;
    n.operand = steps * kChunkCols / 2 * padded;  // 16 bits a value
    n.origins = steps * 2 * padded;
    for (int kind = 0; kind < 2; ++kind)
      n.sums = std::max(n.sums, std::size_t{units[kind]} * g_.heads * model_.head_dims[kind]);
    n.turns = std::size_t{decode_rows} * 2 * kMostPairs;
    n.stats = std::size_t{std::max(units[0], units[1])} * g_.heads;
  }
  if (prompt_rows > 0) {
    n.prompt_qkv = prompt_rows * qkv;
    n.prompt_both = std::size_t{prompt_rows} * 2 * g_.ffn;
    n.prompt_hidden = std::size_t{prompt_rows} * g_.hidden;
    n.prompt_attended = prompt_rows * query;
    n.prompt_activated = std::size_t{prompt_rows} * g_.ffn;
    if (!model_.keep_expanded)
      n.expanded = std::max({qkv * g_.hidden, query * g_.hidden, std::size_t{2} * g_.ffn * g_.hidden});
  }
  n.finals = std::size_t{final_rows} * g_.hidden;
  n.head = parts(g_.hidden) * pieces * std::min(logit_rows, in_pass) * g_.vocab;
  n.logits = std::size_t{logit_rows} * g_.vocab;
  n.best = best_serves(g_.vocab) ? logit_rows : 0;
  n.best_rows = n.best * (is_assistant() ? kMostSteps : 1);
  if (is_assistant()) {
    n.pairs = std::size_t{decode_rows} * 2 * g_.backbone;
    n.next = std::size_t{final_rows} * g_.backbone;
  }
  return n;
}

std::uint64_t CudaBackend::RoundSizes::bytes() const {
  const std::size_t floats = residual + query + between + qkv + branch + both + operand + 2 * origins + sums +
                             2 * turns + 2 * stats + prompt_qkv + prompt_both + prompt_hidden + finals +
                             head + logits + pairs + next;
  return floats * sizeof(float) + best * kMostGroups * sizeof(float) + best_rows * sizeof(BestRow) +
         (prompt_hidden + prompt_attended + prompt_activated + expanded) * 2;
}

// As many decode rows as have logits, all of them at the end of a long context; and a prompt's chunk on a
// lane.
std::uint64_t CudaBackend::scratch_bytes(std::uint32_t rows, std::uint32_t logit_rows) const {
  std::uint32_t units[2];
  for (int kind = 0; kind < 2; ++kind)
    units[kind] = std::max(2u, kMostUnits / std::max(1u, model_.kv_heads[kind])) * logit_rows;
  const std::uint32_t none[2] = {};
  const std::uint64_t replies = sizes_of(logit_rows, 0, logit_rows, logit_rows, units).bytes();
  if (is_assistant()) return replies;
  return replies + sizes_of(0, rows, logit_rows, logit_rows, none).bytes() + Gemm::kWorkspace +
         snapshot_bytes();
}

std::optional<std::uint64_t> CudaBackend::device_memory() const {
  check(cudaSetDevice(device_.id), "choosing the device");
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the device's memory");
  return free;
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
  sources_.clear();
  prepares_ = false;
  halves_[0] = halves_[1] = true;
  std::uint32_t r = 0;
  std::uint32_t next_decode = 0;
  std::uint32_t next_prompt = decode_rows_;
  for (const RowSpan& span : round.spans) {
    std::uint32_t& next = span.prompt ? next_prompt : next_decode;
    const auto* cache = static_cast<const CudaCache*>(span.cache);
    for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) {
      if (kv_storage(cache->plan().type, kind) != StorageType::kF16)
        halves_[kind == LayerKind::kFull] = false;
    }
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
      info.last_key = is_assistant() ? cache->length() - 1 : info.position;
      if (span.prompt) continue;
      for (const LayerGeometry& l : g_.layers) {
        if (l.kv_source) sources_.push_back(cache->layer(*l.kv_source));
      }
      prepares_ = prepares_ || i >= 2;
    }
  }
  for (int kind = 0; kind < 2; ++kind) {
    work_[kind] = {};
    if (model_.head_dims[kind] == 0) continue;
    work_[kind] =
        plan_attention(std::span(row_host_).first(decode_rows_), kind,
                       {model_.head_dims[kind], g_.heads, model_.kv_heads[kind], kind == 0 ? g_.window : 0},
                       limits_.processors);
  }
  finals_ = static_cast<std::uint32_t>(round.final_rows.size());
  final_host_.clear();
  for (const std::uint32_t row : round.final_rows) final_host_.push_back(order_[row]);
  logit_rows_.assign(round.logit_rows.begin(), round.logit_rows.end());
  logit_count_ = static_cast<std::uint32_t>(logit_rows_.size());
  embeddings_ = round.embeddings;
  hidden_ = round.hidden;
  reserve();
  upload_round();
}

void CudaBackend::reserve() {
  const std::uint32_t units[2] = {work_[0].units, work_[1].units};
  const RoundSizes n = sizes_of(decode_rows_, prompt_rows_, logit_count_, finals_, units);
  residual_.reserve(n.residual);
  between_.reserve(n.between);
  qkv_.reserve(n.qkv);
  branch_.reserve(n.branch);
  both_.reserve(n.both);
  query_.reserve(n.query);
  operand_.reserve(n.operand);
  origins_.reserve(n.origins);
  sums_.reserve(n.sums);
  turns_.reserve(n.turns);
  stats_.reserve(n.stats);
  prompt_qkv_.reserve(n.prompt_qkv);
  prompt_branch_.reserve(n.prompt_hidden);
  prompt_both_.reserve(n.prompt_both);
  prompt_x_.reserve(n.prompt_hidden);
  prompt_attended_.reserve(n.prompt_attended);
  prompt_activated_.reserve(n.prompt_activated);
  expanded_.reserve(n.expanded);
  final_rows_.reserve(n.finals);
  head_.reserve(n.head);
  logits_.reserve(n.logits);
  finals_host_.reserve(n.finals);
  finals_fetched_ = false;
  maxima_.reserve(n.best * kMostGroups);
  best_.reserve(n.best_rows);
  best_host_.reserve(n.best_rows);
  pairs_.reserve(n.pairs);
  next_.reserve(n.next);
  next_host_.reserve(n.next);
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
  const std::size_t sources = place(sources_.size() * sizeof(CacheLayer));
  const std::size_t hidden = place(hidden_.size_bytes());
  round_host_.reserve(std::max(bytes, kSmallestRound));
  round_device_.reserve(std::max(bytes, kSmallestRound));
  std::memset(round_host_.data() + barrier, 0, sizeof(unsigned));
  const auto fill = [&](std::size_t at, const auto& values) {
    if (!values.empty())
      std::memcpy(round_host_.data() + at, values.data(), values.size() * sizeof(values[0]));
  };
  if (is_assistant()) {
    const auto* tables = reinterpret_cast<const CacheLayer*>(round_device_.data() + sources);
    for (std::uint32_t r = 0; r < rows_; ++r) row_host_[r].layers = tables + r * g_.layers.size();
  }
  fill(sources, sources_);
  fill(rows, row_host_);
  fill(tiles, tiles_host_);
  fill(finals, final_host_);
  fill(logits, logit_rows_);
  fill(hidden, hidden_);
  copy_to(round_device_.data(), round_host_.data(), bytes);
  std::byte* base = round_device_.data();
  barrier_ = reinterpret_cast<unsigned*>(base + barrier);
  rows_device_ = reinterpret_cast<RowInfo*>(base + rows);
  tiles_device_ = reinterpret_cast<const PromptTile*>(base + tiles);
  finals_device_ = reinterpret_cast<const std::uint32_t*>(base + finals);
  logits_device_ = reinterpret_cast<const std::uint32_t*>(base + logits);
  hidden_device_ = reinterpret_cast<const float*>(base + hidden);
}

DecodeJob CudaBackend::job(std::uint32_t phases) const {
  DecodeJob j;
  model_.describe(j);
  j.rows = rows_device_;
  j.row_count = decode_rows_;
  for (int kind = 0; kind < 2; ++kind) {
    j.units[kind] = work_[kind].units;
    j.tasks[kind] = work_[kind].tasks;
    j.chunks_of_task[kind] = work_[kind].chunks_of_task;
    j.longest[kind] = work_[kind].longest;
  }
  j.halves[0] = halves_[0];
  j.halves[1] = halves_[1];
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
  j.origins = origins_.data();
  j.final_rows = final_rows_.data();
  j.head = head_.data();
  j.logits = logits_.data();
  j.barrier = barrier_;
  return j;
}

void CudaBackend::run_stage(std::uint32_t layer, std::uint32_t phases) {
  if (decode_rows_ == 0) return;
  DecodeJob j = job(phases);
  const std::uint32_t which = phases & kPhaseQkv                                    ? 0
                              : phases & (kPhasePrepare | kPhaseAttend | kPhaseOut) ? 1
                              : phases & kPhaseGateUp                               ? 2
                                                                                    : 3;
  j.first_op = layer * kOpsOfLayer + which;
  // A branch is added, and the feed-forward activated, with what comes before the next product.
  j.end_op = j.first_op + (phases & (kPhaseAddOut | kPhaseAddDown | kPhaseActivate) ? 2 : 1);
  check(cudaMemsetAsync(barrier_, 0, sizeof(unsigned), stream_), "a stage");
  decode(j, limits_, model_.sizes, stream_);
}

void CudaBackend::embed() {
  if (is_assistant()) {
    // The target's embedding of the token, then the target's hidden row.
    const std::size_t row = std::size_t{g_.backbone} * sizeof(float);
    gather_rows(target_->table, rows_device_, rows_, weights_.target_multiplier, pairs_.data(),
                2 * g_.backbone, stream_);
    check(cudaMemcpy2DAsync(pairs_.data() + g_.backbone, 2 * row, hidden_device_, row, row, rows_,
                            cudaMemcpyDeviceToDevice, stream_),
          "an assistant's rows");
    multiply_rows(model_.pre, pairs_.data(), rows_, residual_.data(), stream_);
    return;
  }
  gather_rows(model_.table, rows_device_, rows_, g_.embedding_multiplier, residual_.data(), g_.hidden,
              stream_);
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
  fetch_results();
}

void CudaBackend::post_project() {
  multiply_rows(model_.post, final_rows_.data(), finals_, next_.data(), stream_);
  fetch(next_host_.data(), next_.data(), std::size_t{finals_} * g_.backbone);
}

template <typename T>
void CudaBackend::fetch(T* to, const T* from, std::size_t count) const {
  check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDeviceToHost, stream_), "reading results");
}

void CudaBackend::fetch_results() {
  logits_fetched_.assign(logit_count_, false);
  if (best_serves(g_.vocab)) {
    find_best(logits_.data(), logit_count_, g_.vocab, maxima_.data(), best_.data(), stream_);
    fetch(best_host_.data(), best_.data(), logit_count_);
  }
  // Drafters ask for these rows, and they are short beside the rest.
  fetch(finals_host_.data(), final_rows_.data(), std::size_t{finals_} * g_.hidden);
  finals_fetched_ = true;
  wait("running a round");
}

void CudaBackend::start_stages() {
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
  const std::uint32_t phases = (decode_rows_ > 0 ? static_cast<std::uint32_t>(kPhasesOfLayer) : 0u) |
                               (prepares_ ? kPhasePrepare : 0u) | (finals_ > 0 ? kPhaseFinal : 0u) |
                               (logit_count_ > 0 ? kPhaseHead : 0u);
  if (phases != 0) {
    DecodeJob j = job(phases);
    j.whole = true;
    j.fused = decode_rows_ <= kFusedRows;
    j.first_op = decode_rows_ > 0 ? 0 : j.layer_count * kOpsOfLayer;
    j.end_op = j.layer_count * kOpsOfLayer + (finals_ > 0 ? 1 : 0);
    decode(j, limits_, model_.sizes, stream_);
  }
}

bool CudaBackend::run_all() {
  start_stages();
  if (is_assistant()) post_project();
  if (logit_count_ > 0) fetch_results();
  return true;
}

bool CudaBackend::run_chain(std::uint32_t steps, std::span<const KeyedDraw> draws,
                            std::span<std::int32_t> tokens) {
  if (!is_assistant() || !best_serves(g_.vocab) || steps > kMostSteps || logit_count_ != rows_) return false;
  const std::size_t count = std::size_t{steps} * rows_;
  taken_.reserve(count);
  taken_host_.reserve(count);
  draws_.upload(draws, stream_);
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (step > 0) {
      multiply_rows(model_.post, final_rows_.data(), finals_, next_.data(), stream_);
      hidden_device_ = next_.data();
      check(cudaMemsetAsync(barrier_, 0, sizeof(unsigned), stream_), "a chain");
    }
    start_stages();
    const std::size_t at = std::size_t{step} * rows_;
    find_best(logits_.data(), rows_, g_.vocab, maxima_.data(), best_.data() + at, stream_);
    draw_best(best_.data() + at, draws_.data(), rows_, step, rows_device_, taken_.data() + at, stream_);
  }
  fetch(best_host_.data(), best_.data(), count);
  fetch(taken_host_.data(), taken_.data(), count);
  wait("running a chain");
  std::copy_n(taken_host_.data(), count, tokens.begin());
  return true;
}

// ---- prompt rows

void CudaBackend::prompt_attn_input(const DeviceLayer& l) {
  if (prompt_rows_ == 0) return;
  norm_to_bf16(prompt_residual(), prompt_rows_, g_.hidden, l.attn_norm.data(), g_.norm_epsilon,
               prompt_x_.data(), stream_);
  prompt_product(l, 0, g_.hidden, prompt_x_.data(), prompt_qkv_.data());
}

void CudaBackend::prompt_qk_prep(const DeviceLayer& l, std::uint32_t layer) {
  if (prompt_rows_ == 0) return;
  prepare_heads(prompt_qkv_.data(), prompt_rows_, l.qkv_width(), rows_device_ + decode_rows_, layer, l.shape,
                l.q_norm.data(), l.k_norm.data(), model_.frequencies(l), g_.norm_epsilon,
                query_.data() + std::size_t{decode_rows_} * l.query_width, stream_);
}

void CudaBackend::prompt_attention(const DeviceLayer& l, std::uint32_t layer) {
  if (prompt_rows_ == 0) return;
  attend_prompt({.query = query_.data() + std::size_t{decode_rows_} * l.query_width,
                 .rows = rows_device_ + decode_rows_,
                 .tiles = tiles_device_,
                 .tile_count = static_cast<std::uint32_t>(tiles_host_.size()),
                 .layer = layer,
                 .shape = l.shape,
                 .window = l.window,
                 .halves = halves_[g_.layers[layer].kind == LayerKind::kFull],
                 .out = prompt_attended_.data(),
                 .stream = stream_},
                limits_.block_bytes);
}

void CudaBackend::prompt_attn_output(const DeviceLayer& l) {
  if (prompt_rows_ == 0) return;
  prompt_product(l, 1, l.query_width, prompt_attended_.data(), prompt_branch_.data());
  add_branch(prompt_branch_.data(), prompt_rows_, g_.hidden, l.post_attention_norm.data(), 1.0f,
             g_.norm_epsilon, prompt_residual(), stream_);
}

void CudaBackend::prompt_ffn_input(const DeviceLayer& l) {
  if (prompt_rows_ == 0) return;
  norm_to_bf16(prompt_residual(), prompt_rows_, g_.hidden, l.ffn_norm.data(), g_.norm_epsilon,
               prompt_x_.data(), stream_);
  prompt_product(l, 2, g_.hidden, prompt_x_.data(), prompt_both_.data());
  activate_bf16(prompt_both_.data(), prompt_rows_, g_.ffn, prompt_activated_.data(), stream_);
}

void CudaBackend::prompt_ffn_output(const DeviceLayer& l) {
  if (prompt_rows_ == 0) return;
  prompt_product(l, 3, g_.ffn, prompt_activated_.data(), prompt_branch_.data());
  add_branch(prompt_branch_.data(), prompt_rows_, g_.hidden, l.post_ffw_norm.data(), l.scale, g_.norm_epsilon,
             prompt_residual(), stream_);
}

// The matrices of a product, of `cols` columns, side by side times the prompt rows x [rows, cols].
void CudaBackend::prompt_product(const DeviceLayer& l, std::size_t which, std::uint32_t cols,
                                 const std::uint16_t* x, float* out) {
  const std::uint16_t* w = l.expanded[which].data();
  std::uint32_t height = 0;
  for (const PackedMatrix* m : l.matrices(which)) {
    if (w == nullptr) expand_bf16(*m, expanded_.data() + std::size_t{height} * cols, stream_);
    height += m->rows;
  }
  if (!gemm_) gemm_.emplace();
  gemm_->multiply(w != nullptr ? w : expanded_.data(), height, cols, x, prompt_rows_, out, height, stream_);
}

void CudaBackend::copy_to(void* device, const void* host, std::size_t bytes) {
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "upload");
}

std::span<const float> CudaBackend::logits(std::uint32_t index) const {
  const std::size_t at = std::size_t{index} * g_.vocab;
  if (!logits_fetched_[index]) {
    // Room for all rows of the round with the first: growing forgets what was there.
    logits_host_.reserve(std::size_t{logit_count_} * g_.vocab);
    fetch(logits_host_.data() + at, logits_.data() + at, g_.vocab);
    wait("reading logits");
    logits_fetched_[index] = true;
  }
  return {logits_host_.data() + at, g_.vocab};
}

std::span<const ScoredToken> CudaBackend::best_logits(std::uint32_t index) const {
  if (!best_serves(g_.vocab)) return {};
  const BestRow& row = best_host_[index];
  return {row.best, row.count};
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
    if (cuda::kernels_run_on(GEM_CUDA_ARCHS, p.major, p.minor))
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
  const int wanted = options.device.value_or(0);
  if (wanted < 0 || wanted >= count)
    fail(ErrorCode::kUsage, "cuda: there is no device {} ({} found, counted from 0)", wanted, count);
  for (const CudaDevice& device : cuda_devices()) {
    if (options.device && device.id != wanted) continue;
    cuda::check(cudaSetDevice(device.id), "choosing the device");
    return cuda::CudaBackend::make(geometry, weights, device);
  }
  cudaDeviceProp p = {};
  cuda::check(cudaGetDeviceProperties(&p, wanted), "asking for the device");
  fail(ErrorCode::kFailed,
       "cuda: {} has compute capability {}.{}, this build has kernels for {}; build with "
       "-DGEM_CUDA_ARCHS={}{} "
       "(8.0 at least)",
       p.name, p.major, p.minor, GEM_CUDA_ARCHS, p.major, p.minor);
}

}  // namespace gem
