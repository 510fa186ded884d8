#include "backend/cuda/device_model.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace gem::cuda {
namespace {

DecodeOp make_op(std::span<const PackedMatrix* const> matrices, std::uint32_t cols,
                 const DecodeLimits& limits) {
  DecodeOp op;
  op.parts = static_cast<std::uint16_t>(limits.parts_of(cols));
  std::size_t count = 0;
  std::uint32_t tiles = 0;
  for (const PackedMatrix* m : matrices) {
    op.data[count] = m->data.data();
    op.rows[count] = m->rows;
    op.format[count] = static_cast<std::uint8_t>(m->format);
    op.unit[count] = static_cast<std::uint8_t>(chunk_bytes(m->format) / 16);
    op.tiles_end[count++] = tiles += m->tiles;
    op.width += m->rows;
    op.chunks = static_cast<std::uint16_t>(m->chunks);
  }
  for (; count < 3; ++count) {
    op.tiles_end[count] = tiles;
    op.format[count] = op.format[count - 1];
    op.unit[count] = op.unit[count - 1];
  }
  const auto place = [](const PackedMatrix* m) {
    return reinterpret_cast<std::uintptr_t>(m->data.data()) / 16;
  };
  for (const PackedMatrix* m : matrices) {
    const std::uintptr_t last = place(m) + std::uint64_t{m->tiles} * m->chunks * chunk_bytes(m->format) / 16;
    for (const PackedMatrix* other : matrices) {
      if (last > place(other) && last - place(other) > 0x7fff'ffff) op.near = false;
    }
  }
  return op;
}

}  // namespace

DeviceModel::DeviceModel(const Geometry& geometry, const DecodeLimits& limits)
    : g_(geometry), limits_(limits) {
  for (const LayerGeometry& l : g_.layers) {
    if (g_.heads / l.kv_heads > kMaxGroup)
      fail(ErrorCode::kRefused, "the cuda backend shares keys among at most {} query heads", kMaxGroup);
    if (l.head_dim > 512 || l.head_dim % 8 != 0)
      fail(ErrorCode::kRefused, "the cuda backend has no attention for heads {} wide", l.head_dim);
    const int kind = l.kind == LayerKind::kSliding ? 0 : 1;
    std::uint32_t& known = head_dims[kind];
    if (known != 0 && known != l.head_dim)
      fail(ErrorCode::kRefused,
           "the cuda backend runs one head width for all layers of a kind, here are {} and {}", known,
           l.head_dim);
    known = l.head_dim;
    kv_heads[kind] = std::max(kv_heads[kind], l.kv_heads);
  }
  if (g_.hidden > kWidestRow || g_.hidden % 4 != 0 || g_.ffn % 4 != 0 || g_.vocab % 4 != 0)
    fail(ErrorCode::kRefused, "the cuda backend has no kernels for a hidden width of {}, {} and {}",
         g_.hidden, g_.ffn, g_.vocab);
}

std::uint32_t DeviceModel::most_parts() const {
  std::uint32_t most = std::max(limits_.parts_of(g_.hidden), limits_.parts_of(g_.ffn));
  for (std::size_t i = 0; i < g_.layers.size(); ++i)
    most = std::max(most, limits_.parts_of(g_.query_width(i)));
  return most;
}

std::vector<const PackedMatrix*> DeviceLayer::matrices(std::size_t which) const {
  if (which == 1) return {&o};
  if (which == 2) return {&gate, &up};
  if (which == 3) return {&down};
  if (v.empty()) return k.empty() ? std::vector{&q} : std::vector{&q, &k};
  return {&q, &k, &v};
}

std::uint64_t DeviceModel::expanded_bytes() const {
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < g_.layers.size(); ++i) {
    const LayerGeometry& l = g_.layers[i];
    const std::uint64_t width = g_.query_width(i);
    const std::uint64_t own = l.kv_source ? 0 : std::uint64_t{g_.kv_width(i)} * (l.value_from_key ? 1 : 2);
    elements += g_.hidden * (2 * width + own + 3 * std::uint64_t{g_.ffn});
  }
  return elements * sizeof(std::uint16_t);
}

std::uint64_t DeviceModel::bytes(const Weights& w) const {
  std::uint64_t sum = keep_expanded ? expanded_bytes() : 0;
  for (const Matrix* m : {&w.token_embd, &w.pre_projection, &w.post_projection})
    sum += packed_bytes(*m, precision());
  for (const LayerWeights& l : w.layers) {
    for (const Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      sum += packed_bytes(*m, precision());
    sum += (4 * std::uint64_t{g_.hidden} + l.q_norm.size() + l.k_norm.size()) * sizeof(float);
  }
  return sum;
}

void DeviceModel::load(const Weights& weights, cudaStream_t stream, const Progress& progress) {
  const std::uint64_t total = bytes(weights);
  std::uint64_t done = 0;
  const auto note = [&](std::uint64_t more) {
    done += more;
    if (progress) progress(done, total);
  };
  std::vector<DeviceLayer> made;
  {
    Packer packer(stream, precision());
    for (std::size_t l = 0; l < g_.layers.size(); ++l) {
      made.push_back(make_layer(weights.layers[l], l, packer, stream));
      const DeviceLayer& d = made.back();
      note(d.q.data.bytes() + d.k.data.bytes() + d.v.data.bytes() + d.o.data.bytes() + d.gate.data.bytes() +
           d.up.data.bytes() + d.down.data.bytes());
      if (keep_expanded) expand(made.back(), stream);
    }
    table = packer.pack(weights.token_embd);
    pre = packer.pack(weights.pre_projection);
    post = packer.pack(weights.post_projection);
    check(cudaStreamSynchronize(stream), "packing the weights");
  }
  output_norm.upload(weights.output_norm, stream);
  frequency_tables[0].upload(make_frequencies(LayerKind::kSliding, weights), stream);
  frequency_tables[1].upload(make_frequencies(LayerKind::kFull, weights), stream);
  layers = std::move(made);
  make_tables(stream);
  check(cudaStreamSynchronize(stream), "packing the weights");
  note(total - done);
}

DeviceLayer DeviceModel::make_layer(const LayerWeights& w, std::size_t index, Packer& packer,
                                    cudaStream_t stream) const {
  const LayerGeometry& lg = g_.layers[index];
  DeviceLayer l;
  l.q = packer.pack(w.q);
  l.k = packer.pack(w.k);
  l.v = packer.pack(w.v);
  l.o = packer.pack(w.o);
  l.gate = packer.pack(w.gate);
  l.up = packer.pack(w.up);
  l.down = packer.pack(w.down);
  l.attn_norm.upload(w.attn_norm, stream);
  l.q_norm.upload(w.q_norm, stream);
  l.k_norm.upload(w.k_norm, stream);
  l.post_attention_norm.upload(w.post_attention_norm, stream);
  l.ffn_norm.upload(w.ffn_norm, stream);
  l.post_ffw_norm.upload(w.post_ffw_norm, stream);
  l.scale = w.output_scale;
  l.shape = {g_.heads, lg.kv_heads, lg.head_dim, lg.value_from_key, !lg.kv_source};
  l.window = lg.kind == LayerKind::kSliding ? g_.window : 0;
  l.query_width = g_.query_width(index);
  l.kv_width = g_.kv_width(index);
  return l;
}

void DeviceModel::expand(DeviceLayer& l, cudaStream_t stream) const {
  for (std::size_t which = 0; which < kOpsOfLayer; ++which) {
    std::size_t elements = 0;
    for (const PackedMatrix* m : l.matrices(which)) elements += std::size_t{m->rows} * m->cols;
    l.expanded[which].resize(elements);
    std::uint16_t* to = l.expanded[which].data();
    for (const PackedMatrix* m : l.matrices(which)) {
      expand_bf16(*m, to, stream);
      to += std::size_t{m->rows} * m->cols;
    }
  }
}

void DeviceModel::make_tables(cudaStream_t stream) {
  std::vector<DecodeLayer> decode_layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const DeviceLayer& l = layers[i];
    DecodeLayer d;
    d.attn_norm = l.attn_norm.data();
    d.q_norm = l.q_norm.data();
    d.k_norm = l.k_norm.data();
    d.post_attention_norm = l.post_attention_norm.data();
    d.ffn_norm = l.ffn_norm.data();
    d.post_ffw_norm = l.post_ffw_norm.data();
    d.shape = l.shape;
    d.window = l.window;
    d.kind = l.window == 0 ? 1 : 0;
    d.scale = l.scale;
    decode_layers.push_back(d);
    const std::uint32_t cols[] = {g_.hidden, l.query_width, g_.hidden, g_.ffn};
    for (std::size_t which = 0; which < kOpsOfLayer; ++which)
      host_ops.push_back(make_op(l.matrices(which), cols[which], limits_));
    if (std::find(sizes.shapes.begin(), sizes.shapes.end(), l.shape) == sizes.shapes.end())
      sizes.shapes.push_back(l.shape);
  }
  const PackedMatrix* const head[] = {&table};
  host_ops.push_back(make_op(head, g_.hidden, limits_));
  for (DecodeOp& op : host_ops) {
    const DecodeCut cut = {op.chunks, op.parts};
    const auto known = std::find(cuts_.begin(), cuts_.end(), cut);
    op.cut = static_cast<std::uint8_t>(known - cuts_.begin());
    if (known == cuts_.end()) cuts_.push_back(cut);
    const std::uint32_t part_chunks = (std::uint32_t{op.chunks} + op.parts - 1) / op.parts;
    sizes.most_part_chunks = std::max(sizes.most_part_chunks, part_chunks);
    for (std::size_t i = 0; i < std::size(op.data); ++i) {
      if (op.data[i] == nullptr) continue;
      const std::uint32_t bytes = chunk_bytes(static_cast<Format>(op.format[i]));
      sizes.least_chunk_bytes = std::min(sizes.least_chunk_bytes, bytes);
      sizes.most_chunk_bytes = std::max(sizes.most_chunk_bytes, bytes);
    }
  }
  sizes.most_parts = most_parts();
  if (cuts_.size() > kMostCuts)
    fail(ErrorCode::kRefused, "this model has products of more than {} widths", kMostCuts);
  if (sizes.most_parts > limits_.processors)
    fail(ErrorCode::kRefused, "this model needs a device with more than {} multiprocessors",
         limits_.processors);
  decode_layers_.upload(decode_layers, stream);
  decode_ops_.upload(host_ops, stream);
  check(cudaStreamSynchronize(stream), "uploading tables");
}

std::vector<double> DeviceModel::make_frequencies(LayerKind kind, const Weights& w) const {
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

void DeviceModel::describe(DecodeJob& job) const {
  job.layers = decode_layers_.data();
  job.ops = decode_ops_.data();
  job.layer_count = static_cast<std::uint32_t>(layers.size());
  job.hidden = g_.hidden;
  job.ffn = g_.ffn;
  job.vocab = g_.vocab;
  job.epsilon = g_.norm_epsilon;
  job.softcap = g_.softcap;
  for (int kind = 0; kind < 2; ++kind) {
    job.frequencies[kind] = frequency_tables[kind].data();
    job.head_dims[kind] = head_dims[kind];
    job.kv_heads[kind] = kv_heads[kind];
  }
  std::copy(cuts_.begin(), cuts_.end(), job.cuts);
  job.output_norm = output_norm.data();
}

}  // namespace gem::cuda
