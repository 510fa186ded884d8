// One stream's keys and values in f32, [slots, kv_heads * head_dim] a layer.
#pragma once

#include <cstring>
#include <vector>

#include "backend/kv_cache.h"
#include "base/buffer.h"

namespace gem::cpu {

class CpuCache final : public KvCache {
 public:
  explicit CpuCache(KvPlan plan) : KvCache(std::move(plan)) {
    for (const KvPlan::Layer& layer : this->plan().layers) {
      const std::size_t bytes = std::size_t{layer.slots} * layer.width * sizeof(float);
      keys_.emplace_back(bytes);
      values_.emplace_back(bytes);
    }
  }

  float* key(std::size_t layer, std::uint32_t slot) { return keys_[layer].as<float>() + offset(layer, slot); }
  float* value(std::size_t layer, std::uint32_t slot) {
    return values_[layer].as<float>() + offset(layer, slot);
  }

  std::vector<float> read_key(std::uint32_t layer, std::uint32_t position) const override {
    return read(keys_, layer, position);
  }
  std::vector<float> read_value(std::uint32_t layer, std::uint32_t position) const override {
    return read(values_, layer, position);
  }

 protected:
  std::size_t slot_bytes(std::uint32_t layer) const override { return 2 * row_bytes(layer); }
  void save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const override {
    std::memcpy(out, keys_[layer].as<float>() + offset(layer, slot), row_bytes(layer));
    std::memcpy(out + row_bytes(layer), values_[layer].as<float>() + offset(layer, slot), row_bytes(layer));
  }
  void load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) override {
    std::memcpy(key(layer, slot), in, row_bytes(layer));
    std::memcpy(value(layer, slot), in + row_bytes(layer), row_bytes(layer));
  }

 private:
  std::size_t row_bytes(std::size_t layer) const { return plan().layers[layer].width * sizeof(float); }
  std::size_t offset(std::size_t layer, std::uint32_t slot) const {
    return std::size_t{slot} * plan().layers[layer].width;
  }
  std::vector<float> read(const std::vector<Buffer>& from, std::uint32_t layer,
                          std::uint32_t position) const {
    const KvPlan::Layer& l = plan().layers[layer];
    const float* row = from[layer].as<float>() + offset(layer, position % l.slots);
    return {row, row + l.width};
  }

  std::vector<Buffer> keys_, values_;
};

}  // namespace gem::cpu
