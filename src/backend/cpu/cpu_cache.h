// One stream's keys and values in f32, [slots, kv_heads * head_dim] a layer.
#pragma once

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

 private:
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
