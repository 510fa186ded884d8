// One stream's keys and values on the device.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backend/cuda/cache_copy.h"
#include "backend/cuda/cache_snapshots.h"
#include "backend/cuda/device.h"
#include "backend/cuda/rows.h"
#include "backend/kv_cache.h"

namespace gem::cuda {

// By which a backend's caches are copied to and from the host, one at a time: rows gathered on the device,
// and the host's end of their way; two of each, so that one is filled while the other is emptied.
struct CacheStaging {
  struct Half {
    DeviceArray<std::byte> rows;
    DeviceArray<CopiedLayer> layers;
    PinnedArray<std::byte> host;
    cudaEvent_t done = nullptr;  // what was asked for last with this half
  };
  std::array<Half, 2> halves;
  std::size_t most = std::size_t{32} << 20;  // bytes of a half, unless a single layer needs more

  CacheStaging();
  ~CacheStaging();
  CacheStaging(const CacheStaging&) = delete;
  CacheStaging& operator=(const CacheStaging&) = delete;
};

class CudaCache final : public KvCache {
 public:
  CudaCache(const KvPlan& plan, const Geometry& geometry, cudaStream_t stream,
            std::shared_ptr<CacheStaging> staging = std::make_shared<CacheStaging>(),
            std::shared_ptr<CacheSnapshots> snapshots = nullptr);

  const CacheLayer* layers() const { return table_.data(); }  // on the device
  const CacheLayer& layer(std::uint32_t index) const { return host_[index]; }

  void copy_out(Part which, std::uint32_t first, std::uint32_t count, std::byte* out) const override;
  // Through snapshots, as far as there is memory for them.
  std::shared_future<void> copy_out_later(Part which, std::uint32_t first, std::uint32_t count,
                                          std::byte* out, std::shared_ptr<const void> owner) const override;
  void copy_in(Part which, std::uint32_t first, std::uint32_t count, const std::byte* in) override;

  std::vector<float> read_key(std::uint32_t layer, std::uint32_t position) const override;
  std::vector<float> read_value(std::uint32_t layer, std::uint32_t position) const override;
  bool write_row(std::uint32_t layer, std::uint32_t position, std::span<const float> key,
                 std::span<const float> value) override;

 protected:
  std::size_t slot_bytes(std::uint32_t layer) const override;
  void save_slot(std::uint32_t layer, std::uint32_t slot, std::byte* out) const override;
  void load_slot(std::uint32_t layer, std::uint32_t slot, const std::byte* in) override;

 private:
  struct Shape {
    std::uint32_t kv_heads, head_dim;
  };
  // A slot's copy holds the keys of all KV heads, key_stride elements each, then their values: where element
  // `index` of either lies.
  std::size_t key_place(std::uint32_t layer, std::size_t index) const;
  std::size_t value_place(std::uint32_t layer, std::size_t index) const;
  // Elements of either, of all KV heads.
  std::size_t width(std::uint32_t layer) const {
    return std::size_t{shapes_[layer].kv_heads} * shapes_[layer].head_dim;
  }
  // Slots in whole chunks, so that a chunk's keys lie together.
  static KvPlan rounded(KvPlan plan);

  // Layers that are copied together.
  struct Group {
    std::vector<CopiedLayer> layers;
    std::size_t bytes = 0;
  };
  // As many layers at a time as fit the staging memory, in the order of the copy.
  std::vector<Group> groups(Part which, std::uint32_t count) const;
  // A half of the staging memory, large enough for the group, when it is not in use any more.
  CacheStaging::Half& half_for(const Group& group, std::size_t index) const;
  // Groups `begin` .. of `all`, in order.
  void copy_groups(const std::vector<Group>& all, std::size_t begin, std::uint32_t first, std::uint32_t count,
                   std::byte* out) const;

  cudaStream_t stream_;
  std::shared_ptr<CacheStaging> staging_;
  std::shared_ptr<CacheSnapshots> snapshots_;
  std::vector<Shape> shapes_;
  std::vector<CacheLayer> host_;
  DeviceArray<std::byte> memory_;
  DeviceArray<CacheLayer> table_;
};

}  // namespace gem::cuda
