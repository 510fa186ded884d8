// One stream's keys and values, a layer's heads one after the other: [kv_heads][slots][head_dim] in the
// layer's storage type (f32, f16 or bf16), so that the keys of a head are one stream of memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/geometry.h"
#include "backend/kv_cache.h"
#include "base/buffer.h"

namespace gem::cpu {

class CpuCache final : public KvCache {
 public:
  CpuCache(KvPlan plan, const Geometry& geometry);
  // One head of a layer's whole width.
  explicit CpuCache(KvPlan plan);

  // The rows of one slot of all heads, [kv_heads * head_dim], rounded to the layer's storage type: to nearest
  // even, beyond its range to infinity; a NaN stays one.
  void store(std::size_t layer, std::uint32_t slot, const float* key, const float* value);

  StorageType storage(std::size_t layer) const { return plan().layers[layer].storage; }
  // Slot `slot` of a head and those after it, head_dim elements apart.
  const std::byte* keys(std::size_t layer, std::size_t head, std::uint32_t slot) const {
    return layers_[layer].keys.as<std::byte>() + layers_[layer].offset(head, slot);
  }
  const std::byte* values(std::size_t layer, std::size_t head, std::uint32_t slot) const {
    return layers_[layer].values.as<std::byte>() + layers_[layer].offset(head, slot);
  }

  std::vector<float> read_key(std::uint32_t layer, std::uint32_t position) const override {
    return read(layers_[layer].keys, layer, position);
  }
  std::vector<float> read_value(std::uint32_t layer, std::uint32_t position) const override {
    return read(layers_[layer].values, layer, position);
  }
  bool write_row(std::uint32_t layer, std::uint32_t position, std::span<const float> key,
                 std::span<const float> value) override {
    store(layer, position % plan().layers[layer].slots, key.data(), value.data());
    return true;
  }

 protected:
  std::size_t slot_bytes(std::uint32_t layer) const override;
  void save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const override;
  void load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) override;

 private:
  struct Layer {
    Buffer keys, values;
    std::size_t heads = 0;
    std::size_t slots = 0;
    std::size_t row_bytes = 0;  // of one head's key (= value) in a slot
    std::size_t offset(std::size_t head, std::size_t slot) const { return (head * slots + slot) * row_bytes; }
  };
  void add_layer(const KvPlan::Layer& layer, std::size_t dim);
  std::vector<float> read(const Buffer& from, std::uint32_t layer, std::uint32_t position) const;

  std::vector<Layer> layers_;
};

}  // namespace gem::cpu
