// One stream's keys and values on the device, in f16.
#pragma once

#include <vector>

#include "backend/cuda/cache_copy.h"
#include "backend/cuda/device.h"
#include "backend/cuda/rows.h"
#include "backend/kv_cache.h"

namespace gem::cuda {

class CudaCache final : public KvCache {
 public:
  CudaCache(const KvPlan& plan, const Geometry& geometry, cudaStream_t stream);

  const CacheLayer* layers() const { return table_.data(); }  // on the device
  const CacheLayer& layer(std::uint32_t index) const { return host_[index]; }

  void copy_out(Part which, std::uint32_t first, std::uint32_t count, std::byte* out) const override;
  void copy_in(Part which, std::uint32_t first, std::uint32_t count, const std::byte* in) override;

  std::vector<float> read_key(std::uint32_t layer, std::uint32_t position) const override;
  std::vector<float> read_value(std::uint32_t layer, std::uint32_t position) const override;

 protected:
  std::size_t slot_bytes(std::uint32_t layer) const override;
  void save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const override;
  void load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) override;

 private:
  struct Shape {
    std::uint32_t kv_heads, head_dim;
  };
  // Slots in whole chunks, so that a chunk's keys lie together.
  static KvPlan rounded(KvPlan plan);

  // Calls f(layers of a group, bytes of the group) with their places in `copied_`: as many layers at a time
  // as fit the staging memory, in the order of the copy.
  template <typename F>
  void by_groups(Part which, std::uint32_t count, F&& f) const;

  cudaStream_t stream_;
  mutable DeviceArray<__half> staging_;
  mutable DeviceArray<CopiedLayer> copied_;
  std::vector<Shape> shapes_;
  std::vector<CacheLayer> host_;
  DeviceArray<__half> memory_;
  DeviceArray<CacheLayer> table_;
};

}  // namespace gem::cuda
