#include "backend/cpu/cpu_cache.h"

#include <cstring>
#include <utility>

#include "base/numbers.h"

namespace gem::cpu {
namespace {

void round_row(StorageType storage, const float* x, std::byte* out, std::size_t n) {
  if (storage == StorageType::kF32) {
    std::memcpy(out, x, n * sizeof(float));
    return;
  }
  auto* halves = reinterpret_cast<std::uint16_t*>(out);
  if (storage == StorageType::kF16) {
    for (std::size_t i = 0; i < n; ++i) halves[i] = f32_to_f16(x[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) halves[i] = f32_to_bf16(x[i]);
  }
}

}  // namespace

CpuCache::CpuCache(KvPlan plan, const Geometry& geometry) : KvCache(std::move(plan)) {
  for (std::size_t l = 0; l < this->plan().layers.size(); ++l)
    add_layer(this->plan().layers[l], geometry.layers[l].head_dim);
}

CpuCache::CpuCache(KvPlan plan) : KvCache(std::move(plan)) {
  for (const KvPlan::Layer& layer : this->plan().layers) add_layer(layer, layer.width);
}

void CpuCache::add_layer(const KvPlan::Layer& layer, std::size_t dim) {
  const std::size_t row_bytes = dim * storage_info(layer.storage).block_bytes;
  const std::size_t heads = layer.width / dim;
  const std::size_t bytes = heads * layer.slots * row_bytes;
  layers_.push_back({Buffer(bytes), Buffer(bytes), heads, layer.slots, row_bytes});
}

void CpuCache::store(std::size_t layer, std::uint32_t slot, const float* key, const float* value) {
  Layer& l = layers_[layer];
  const std::size_t dim = plan().layers[layer].width / l.heads;
  for (std::size_t head = 0; head < l.heads; ++head) {
    round_row(storage(layer), key + head * dim, l.keys.as<std::byte>() + l.offset(head, slot), dim);
    round_row(storage(layer), value + head * dim, l.values.as<std::byte>() + l.offset(head, slot), dim);
  }
}

std::vector<float> CpuCache::read(const Buffer& from, std::uint32_t layer, std::uint32_t position) const {
  const Layer& l = layers_[layer];
  std::vector<float> row(plan().layers[layer].width);
  const std::size_t dim = row.size() / l.heads;
  for (std::size_t head = 0; head < l.heads; ++head) {
    dequantize(storage(layer), from.as<std::byte>() + l.offset(head, position % l.slots),
               row.data() + head * dim, dim);
  }
  return row;
}

std::size_t CpuCache::slot_bytes(std::uint32_t layer) const {
  return 2 * layers_[layer].heads * layers_[layer].row_bytes;
}

void CpuCache::save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const {
  const Layer& l = layers_[layer];
  for (const Buffer* from : {&l.keys, &l.values}) {
    for (std::size_t head = 0; head < l.heads; ++head, out += l.row_bytes)
      std::memcpy(out, from->as<std::byte>() + l.offset(head, slot), l.row_bytes);
  }
}

void CpuCache::load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) {
  Layer& l = layers_[layer];
  for (Buffer* to : {&l.keys, &l.values}) {
    for (std::size_t head = 0; head < l.heads; ++head, in += l.row_bytes)
      std::memcpy(to->as<std::byte>() + l.offset(head, slot), in, l.row_bytes);
  }
}

}  // namespace gem::cpu
