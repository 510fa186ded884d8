#include "backend/cuda/cuda_cache.h"

#include <bit>
#include <cstring>

#include "base/numbers.h"
#include "base/parallel_copy.h"

namespace gem::cuda {

namespace {

KvElement element_of(StorageType storage) {
  switch (storage) {
    case StorageType::kF32:
      return KvElement::kF32;
    case StorageType::kBF16:
      return KvElement::kBF16;
    default:
      return KvElement::kF16;
  }
}

float element_at(const std::byte* at, KvElement element) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, element_bytes(element));
  switch (element) {
    case KvElement::kF32:
      return std::bit_cast<float>(bits);
    case KvElement::kBF16:
      return bf16_to_f32(static_cast<std::uint16_t>(bits));
    case KvElement::kF16:
      return f16_to_f32(static_cast<std::uint16_t>(bits));
  }
  return 0;
}
void put_element(std::byte* at, KvElement element, float x) {
  const std::uint32_t bits = element == KvElement::kF32    ? std::bit_cast<std::uint32_t>(x)
                             : element == KvElement::kBF16 ? f32_to_bf16(x)
                                                           : f32_to_f16(x);
  std::memcpy(at, &bits, element_bytes(element));  // (a little-endian host)
}

}  // namespace

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
  std::size_t bytes = 0;
  std::vector<std::size_t> offsets;
  for (std::size_t l = 0; l < geometry.layers.size(); ++l) {
    const LayerGeometry& g = geometry.layers[l];
    const std::uint32_t slots = this->plan().layers[l].slots;
    const auto stride = static_cast<std::uint16_t>((g.head_dim + 31) / 32 * 32);
    const KvElement element = element_of(this->plan().layers[l].storage);
    shapes_.push_back({g.kv_heads, g.head_dim});
    host_.push_back({nullptr, nullptr, slots, stride, element});
    // (Slots are a multiple of 128, so that both begin at one of 256 bytes.)
    offsets.push_back(bytes);
    bytes += std::size_t{g.kv_heads} * slots * stride * element_bytes(element);
    offsets.push_back(bytes);
    bytes += std::size_t{g.kv_heads} * slots * g.head_dim * element_bytes(element);
  }
  memory_.resize(bytes);
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
  return std::size_t{shapes_[layer].kv_heads} * (host_[layer].key_stride + shapes_[layer].head_dim) *
         element_bytes(host_[layer].element);
}

void CudaCache::save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const {
  const CacheLayer& l = host_[layer];
  const Shape& s = shapes_[layer];
  const std::size_t element = element_bytes(l.element);
  const std::size_t row = l.key_stride * element;
  check(cudaMemcpy2DAsync(out, row, l.keys + slot * row, row * l.slots, row, s.kv_heads,
                          cudaMemcpyDeviceToHost, stream_),
        "reading a cache");
  check(cudaMemcpy2DAsync(out + row * s.kv_heads, element, l.values + slot * element, l.slots * element,
                          element, std::size_t{s.kv_heads} * s.head_dim, cudaMemcpyDeviceToHost, stream_),
        "reading a cache");
  check(cudaStreamSynchronize(stream_), "reading a cache");
}

void CudaCache::load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) {
  const CacheLayer& l = host_[layer];
  const Shape& s = shapes_[layer];
  const std::size_t element = element_bytes(l.element);
  const std::size_t row = l.key_stride * element;
  check(cudaMemcpy2DAsync(l.keys + slot * row, row * l.slots, in, row, row, s.kv_heads,
                          cudaMemcpyHostToDevice, stream_),
        "writing a cache");
  check(cudaMemcpy2DAsync(l.values + slot * element, l.slots * element, in + row * s.kv_heads, element,
                          element, std::size_t{s.kv_heads} * s.head_dim, cudaMemcpyHostToDevice, stream_),
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
    group.layers.push_back({layer, shapes_[layer].kv_heads, shapes_[layer].head_dim, group.bytes});
    group.bytes += more;
  }
  return all;
}

CacheStaging::Half& CudaCache::half_for(const Group& group, std::size_t index) const {
  CacheStaging::Half& half = staging_->halves[index % 2];
  check(cudaEventSynchronize(half.done), "copying a cache");
  half.rows.reserve(group.bytes);
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
    std::byte* rows = place->data + rows_at;
    check(cudaMemcpyAsync(layers, group.layers.data(), group.layers.size() * sizeof(CopiedLayer),
                          cudaMemcpyHostToDevice, stream_),
          "keeping a cache");
    gather_cache(table_.data(), layers, static_cast<std::uint32_t>(group.layers.size()), first, count, rows,
                 stream_);
    last = snapshots_->fetch(*place, rows, group.bytes, out, owner, stream_);
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

std::size_t CudaCache::key_place(std::uint32_t layer, std::size_t index) const {
  const std::size_t d = shapes_[layer].head_dim;
  return (index / d * host_[layer].key_stride + index % d) * element_bytes(host_[layer].element);
}

std::size_t CudaCache::value_place(std::uint32_t layer, std::size_t index) const {
  return (std::size_t{shapes_[layer].kv_heads} * host_[layer].key_stride + index) *
         element_bytes(host_[layer].element);
}

std::vector<float> CudaCache::read_key(std::uint32_t layer, std::uint32_t position) const {
  std::vector<std::byte> slot(slot_bytes(layer));
  save_slot(layer, position % host_[layer].slots, slot.data());
  std::vector<float> out;
  for (std::size_t i = 0; i < width(layer); ++i)
    out.push_back(element_at(slot.data() + key_place(layer, i), host_[layer].element));
  return out;
}

std::vector<float> CudaCache::read_value(std::uint32_t layer, std::uint32_t position) const {
  std::vector<std::byte> slot(slot_bytes(layer));
  save_slot(layer, position % host_[layer].slots, slot.data());
  std::vector<float> out;
  for (std::size_t i = 0; i < width(layer); ++i)
    out.push_back(element_at(slot.data() + value_place(layer, i), host_[layer].element));
  return out;
}

bool CudaCache::write_row(std::uint32_t layer, std::uint32_t position, std::span<const float> key,
                          std::span<const float> value) {
  std::vector<std::byte> slot(slot_bytes(layer));
  for (std::size_t i = 0; i < width(layer); ++i) {
    put_element(slot.data() + key_place(layer, i), host_[layer].element, key[i]);
    put_element(slot.data() + value_place(layer, i), host_[layer].element, value[i]);
  }
  load_slot(layer, position % host_[layer].slots, slot.data());
  return true;
}

}  // namespace gem::cuda
