#include "backend/cuda/cuda_cache.h"

#include <bit>
#include <cstring>

#include "base/numbers.h"

namespace gem::cuda {

KvPlan CudaCache::rounded(KvPlan plan) {
  for (KvPlan::Layer& layer : plan.layers)
    layer.slots = (layer.slots + kKeySlots - 1) / kKeySlots * kKeySlots;
  return plan;
}

CudaCache::CudaCache(const KvPlan& plan, const Geometry& geometry, cudaStream_t stream)
    : KvCache(rounded(plan)), stream_(stream) {
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

template <typename F>
void CudaCache::by_groups(Part which, std::uint32_t count, F&& f) const {
  constexpr std::size_t kStaging = std::size_t{64} << 20;  // bytes
  std::vector<CopiedLayer> group;
  std::size_t bytes = 0;
  const auto flush = [&] {
    if (group.empty()) return;
    check(cudaStreamSynchronize(stream_), "copying a cache");  // the last group may still be read
    staging_.reserve(bytes / sizeof(__half));
    copied_.upload(group, stream_);
    f(static_cast<std::uint32_t>(group.size()), bytes);
    group.clear();
    bytes = 0;
  };
  for (std::uint32_t layer = 0; layer < host_.size(); ++layer) {
    if (!is(which, plan().layers[layer])) continue;
    const std::size_t more = slot_bytes(layer) * count;
    if (bytes + more > kStaging) flush();
    group.push_back({layer, shapes_[layer].kv_heads, shapes_[layer].head_dim, bytes / sizeof(__half)});
    bytes += more;
  }
  flush();
}

void CudaCache::copy_out(Part which, std::uint32_t first, std::uint32_t count, std::byte* out) const {
  if (count == 0) return;
  by_groups(which, count, [&](std::uint32_t layers, std::size_t bytes) {
    gather_cache(table_.data(), copied_.data(), layers, first, count, staging_.data(), stream_);
    check(cudaMemcpyAsync(out, staging_.data(), bytes, cudaMemcpyDeviceToHost, stream_), "reading a cache");
    out += bytes;
  });
  check(cudaStreamSynchronize(stream_), "reading a cache");
}

void CudaCache::copy_in(Part which, std::uint32_t first, std::uint32_t count, const std::byte* in) {
  if (count == 0) return;
  by_groups(which, count, [&](std::uint32_t layers, std::size_t bytes) {
    check(cudaMemcpyAsync(staging_.data(), in, bytes, cudaMemcpyHostToDevice, stream_), "writing a cache");
    scatter_cache(table_.data(), copied_.data(), layers, first, count, staging_.data(), stream_);
    in += bytes;
  });
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
