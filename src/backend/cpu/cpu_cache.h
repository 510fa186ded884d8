// One stream's keys and values in f32, a layer's heads one after the other: [kv_heads][slots][head_dim], so
// that the keys of a head are one stream of memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/geometry.h"
#include "backend/kv_cache.h"
#include "base/buffer.h"

namespace gem::cpu {

class CpuCache final : public KvCache {
 public:
  CpuCache(KvPlan plan, const Geometry& geometry) : KvCache(std::move(plan)) {
    for (std::size_t l = 0; l < this->plan().layers.size(); ++l)
      add_layer(this->plan().layers[l], geometry.layers[l].head_dim);
  }
  // One head of a layer's whole width.
  explicit CpuCache(KvPlan plan) : KvCache(std::move(plan)) {
    for (const KvPlan::Layer& layer : this->plan().layers) add_layer(layer, layer.width);
  }

  // The rows of one slot of all heads, [kv_heads * head_dim].
  void store(std::size_t layer, std::uint32_t slot, const float* key, const float* value) {
    Layer& l = layers_[layer];
    for (std::size_t at = 0; at < plan().layers[layer].width; at += l.dim) {
      std::copy_n(key + at, l.dim, l.keys.as<float>() + l.offset(at / l.dim, slot));
      std::copy_n(value + at, l.dim, l.values.as<float>() + l.offset(at / l.dim, slot));
    }
  }

  // Slot `slot` of a head and those after it, head_dim apart.
  const float* keys(std::size_t layer, std::size_t head, std::uint32_t slot) const {
    return layers_[layer].keys.as<float>() + layers_[layer].offset(head, slot);
  }
  const float* values(std::size_t layer, std::size_t head, std::uint32_t slot) const {
    return layers_[layer].values.as<float>() + layers_[layer].offset(head, slot);
  }

  std::vector<float> read_key(std::uint32_t layer, std::uint32_t position) const override {
    return read(layers_[layer].keys, layer, position);
  }
  std::vector<float> read_value(std::uint32_t layer, std::uint32_t position) const override {
    return read(layers_[layer].values, layer, position);
  }

 protected:
  std::size_t slot_bytes(std::uint32_t layer) const override {
    return 2 * plan().layers[layer].width * sizeof(float);
  }
  void save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const override {
    for (const Buffer* from : {&layers_[layer].keys, &layers_[layer].values}) {
      const std::vector<float> row = read(*from, layer, slot);
      std::memcpy(out, row.data(), row.size() * sizeof(float));
      out += row.size() * sizeof(float);
    }
  }
  void load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) override {
    std::vector<float> rows(2 * plan().layers[layer].width);
    std::memcpy(rows.data(), in, rows.size() * sizeof(float));
    store(layer, slot, rows.data(), rows.data() + rows.size() / 2);
  }

 private:
  struct Layer {
    Buffer keys, values;
    std::size_t dim = 0;
    std::size_t slots = 0;
    std::size_t offset(std::size_t head, std::size_t slot) const { return (head * slots + slot) * dim; }
  };
  void add_layer(const KvPlan::Layer& layer, std::size_t dim) {
    const std::size_t bytes = std::size_t{layer.slots} * layer.width * sizeof(float);
    layers_.push_back({Buffer(bytes), Buffer(bytes), dim, layer.slots});
  }
  std::vector<float> read(const Buffer& from, std::uint32_t layer, std::uint32_t position) const {
    const Layer& l = layers_[layer];
    std::vector<float> row(plan().layers[layer].width);
    for (std::size_t at = 0; at < row.size(); at += l.dim)
      std::copy_n(from.as<float>() + l.offset(at / l.dim, position % l.slots), l.dim, row.data() + at);
    return row;
  }

  std::vector<Layer> layers_;
};

}  // namespace gem::cpu
