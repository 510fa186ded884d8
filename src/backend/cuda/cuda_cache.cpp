#include "backend/cuda/cuda_cache.h"

#include <bit>
#include <cstring>

#include "base/numbers.h"
#include "base/parallel_copy.h"

namespace gem::cuda {

KvPlan CudaCache::rounded(KvPlan plan) {
  for (KvPlan::Layer& layer : plan.layers)
    layer.slots = (layer.slots + kKeySlots - 1) / kKeySlots * kKeySlots;
  return plan;
}

CacheStaging::CacheStaging() {
  for (Half& half : halves)
    check(cudaEventCreateWithFlags(&half.done, cudaEventDisableTiming), "creating an event");
}

CacheStaging::~CacheStaging() {
  for (Half& half : halves) {
    if (half.done != nullptr) cudaEventDestroy(half.done);
  }
}

CudaCache::CudaCache(const KvPlan& plan, const Geometry& geometry, cudaStream_t stream,
                     std::shared_ptr<CacheStaging> staging, std::shared_ptr<CacheSnapshots> snapshots)
    : KvCache(rounded(plan)),
      stream_(stream),
      staging_(std::move(staging)),
      snapshots_(std::move(snapshots)) {
  std::size_t halves = 0;
  std::vector<std::size_t> offsets;
  for (std::size_t l = 0; l < geometry.layers.size(); ++l) {
    const LayerGeometry& g = geometry.layers[l];
    const std::uint32_t slots = this->plan().layers[l].slots;
    const std::uint32_t stride = (g.head_dim + 31) / 32 * 32;
    shapes_.push_back({g.kv_heads, g.head_dim});
    host_.push_back({nullptr, nullptr, slots, stride});
    offsets.push_back(halves);
    halves += std::size_t{g.kv_heads} * slots * stride;
    offsets.push_back(halves);
    halves += std::size_t{g.kv_heads} * slots * g.head_dim;
    halves = (halves + 127) / 128 * 128;
  }
  memory_.resize(halves);
  // A weight of zero times what was never written must be zero.
  check(cudaMemsetAsync(memory_.data(), 0, memory_.bytes(), stream_), "clearing a cache");
  for (std::size_t l = 0; l < host_.size(); ++l) {
    host_[l].keys = memory_.data() + offsets[2 * l];
    host_[l].values = memory_.data() + offsets[2 * l + 1];
  }
  table_.upload(host_, stream_);
  check(cudaStreamSynchronize(stream_), "making a cache");
}

std::size_t CudaCache::slot_bytes(std::uint32_t layer) const {
  return std::size_t{shapes_[layer].kv_heads} * (host_[layer].key_stride + shapes_[layer].head_dim) * 2;
}

void CudaCache::save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const {
  const CacheLayer& l = host_[layer];
  const Shape& s = shapes_[layer];
  const std::size_t row = std::size_t{l.key_stride} * 2;
  check(cudaMemcpy2DAsync(out, row, l.keys + std::size_t{slot} * l.key_stride, row * l.slots, row, s.kv_heads,
                          cudaMemcpyDeviceToHost, stream_),
        "reading a cache");
  check(cudaMemcpy2DAsync(out + row * s.kv_heads, 2, l.values + slot, std::size_t{l.slots} * 2, 2,
                          std::size_t{s.kv_heads} * s.head_dim, cudaMemcpyDeviceToHost, stream_),
        "reading a cache");
  check(cudaStreamSynchronize(stream_), "reading a cache");
}

void CudaCache::load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) {
  const CacheLayer& l = host_[layer];
  const Shape& s = shapes_[layer];
  const std::size_t row = std::size_t{l.key_stride} * 2;
  check(cudaMemcpy2DAsync(l.keys + std::size_t{slot} * l.key_stride, row * l.slots, in, row, row, s.kv_heads,
                          cudaMemcpyHostToDevice, stream_),
        "writing a cache");
  check(cudaMemcpy2DAsync(l.values + slot, std::size_t{l.slots} * 2, in + row * s.kv_heads, 2, 2,
                          std::size_t{s.kv_heads} * s.head_dim, cudaMemcpyHostToDevice, stream_),
        "writing a cache");
  check(cudaStreamSynchronize(stream_), "writing a cache");
}

std::vector<CudaCache::Group> CudaCache::groups(Part which, std::uint32_t count) const {
  std::vector<Group> all;
  for (std::uint32_t layer = 0; layer < host_.size(); ++layer) {
    if (!is(which, plan().layers[layer])) continue;
    const std::size_t more = slot_bytes(layer) * count;
    if (all.empty() || all.back().bytes + more > staging_->most) all.emplace_back();
    Group& group = all.back();
    group.layers.push_back(
        {layer, shapes_[layer].kv_heads, shapes_[layer].head_dim, group.bytes / sizeof(__half)});
    group.bytes += more;
  }
  return all;
}

CacheStaging::Half& CudaCache::half_for(const Group& group, std::size_t index) const {
  CacheStaging::Half& half = staging_->halves[index % 2];
  check(cudaEventSynchronize(half.done), "copying a cache");
  half.rows.reserve(group.bytes / sizeof(__half));
  half.host.reserve(group.bytes);
  half.layers.upload(group.layers, stream_);
  return half;
}

void CudaCache::copy_out(Part which, std::uint32_t first, std::uint32_t count, std::byte* out) const {
  if (count != 0) copy_groups(groups(which, count), 0, first, count, out);
}

std::shared_future<void> CudaCache::copy_out_later(Part which, std::uint32_t first, std::uint32_t count,
                                                   std::byte* out, std::shared_ptr<const void> owner) const {
  if (snapshots_ == nullptr) return KvCache::copy_out_later(which, first, count, out, std::move(owner));
  std::shared_future<void> last;
  if (count == 0) return last;
  const std::vector<Group> all = groups(which, count);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Group& group = all[i];
    const std::size_t rows_at = (group.layers.size() * sizeof(CopiedLayer) + 255) / 256 * 256;
    const std::optional<CacheSnapshots::Place> place = snapshots_->reserve(rows_at + group.bytes);
    if (!place) {
      copy_groups(all, i, first, count, out);
      break;
    }
    auto* layers = reinterpret_cast<CopiedLayer*>(place->data);
    auto* rows = reinterpret_cast<__half*>(place->data + rows_at);
    check(cudaMemcpyAsync(layers, group.layers.data(), group.layers.size() * sizeof(CopiedLayer),
                          cudaMemcpyHostToDevice, stream_),
          "keeping a cache");
    gather_cache(table_.data(), layers, static_cast<std::uint32_t>(group.layers.size()), first, count, rows,
                 stream_);
    last = snapshots_->fetch(*place, place->data + rows_at, group.bytes, out, owner, stream_);
    out += group.bytes;
  }
  return last;
}

// While a group comes from the device, the one before goes to its place.
void CudaCache::copy_groups(const std::vector<Group>& all, std::size_t begin, std::uint32_t first,
                            std::uint32_t count, std::byte* out) const {
  const auto arrived = [&](std::size_t index) {
    CacheStaging::Half& half = staging_->halves[index % 2];
    check(cudaEventSynchronize(half.done), "reading a cache");
    parallel_copy(out, half.host.data(), all[index].bytes);
    out += all[index].bytes;
  };
  for (std::size_t i = begin; i < all.size(); ++i) {
    CacheStaging::Half& half = half_for(all[i], i);
    gather_cache(table_.data(), half.layers.data(), static_cast<std::uint32_t>(all[i].layers.size()), first,
                 count, half.rows.data(), stream_);
    check(cudaMemcpyAsync(half.host.data(), half.rows.data(), all[i].bytes, cudaMemcpyDeviceToHost, stream_),
          "reading a cache");
    check(cudaEventRecord(half.done, stream_), "reading a cache");
    if (i > begin) arrived(i - 1);
  }
  if (begin < all.size()) arrived(all.size() - 1);
}

void CudaCache::copy_in(Part which, std::uint32_t first, std::uint32_t count, const std::byte* in) {
  if (count == 0) return;
  const std::vector<Group> all = groups(which, count);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CacheStaging::Half& half = half_for(all[i], i);
    parallel_copy(half.host.data(), in, all[i].bytes);
    in += all[i].bytes;
    check(cudaMemcpyAsync(half.rows.data(), half.host.data(), all[i].bytes, cudaMemcpyHostToDevice, stream_),
          "writing a cache");
    scatter_cache(table_.data(), half.layers.data(), static_cast<std::uint32_t>(all[i].layers.size()), first,
                  count, half.rows.data(), stream_);
    check(cudaEventRecord(half.done, stream_), "writing a cache");
  }
  check(cudaStreamSynchronize(stream_), "writing a cache");
}

std::vector<float> CudaCache::read_key(std::uint32_t layer, std::uint32_t position) const {
  std::vector<std::byte> slot(slot_bytes(layer));
  save_slot(layer, position % host_[layer].slots, slot.data());
  std::vector<float> out;
  for (std::uint32_t head = 0; head < shapes_[layer].kv_heads; ++head) {
    for (std::uint32_t i = 0; i < shapes_[layer].head_dim; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, slot.data() + (std::size_t{head} * host_[layer].key_stride + i) * 2, 2);
      out.push_back(f16_to_f32(bits));
    }
  }
  return out;
}

std::vector<float> CudaCache::read_value(std::uint32_t layer, std::uint32_t position) const {
  std::vector<std::byte> slot(slot_bytes(layer));
  save_slot(layer, position % host_[layer].slots, slot.data());
  const std::byte* values = slot.data() + std::size_t{shapes_[layer].kv_heads} * host_[layer].key_stride * 2;
  std::vector<float> out;
  for (std::uint32_t i = 0; i < shapes_[layer].kv_heads * shapes_[layer].head_dim; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, values + std::size_t{i} * 2, 2);
    out.push_back(f16_to_f32(bits));
  }
  return out;
}

}  // namespace gem::cuda
