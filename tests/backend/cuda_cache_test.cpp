// Whole rows of a device's cache to the host and back.
#include "backend/cuda/cuda_cache.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/cuda/cuda.h"

namespace gem::cuda {
namespace {

TEST(CudaCacheCopy, IsTheSameThroughStagingMemoryOfAnySize) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  Geometry g;
  g.heads = 4;
  g.window = 64;
  for (const std::uint32_t head_dim : {32u, 64u, 48u, 32u, 256u})
    g.layers.push_back({LayerKind::kSliding, head_dim, 2, false, {}});
  for (int i = 0; i < 3; ++i) g.layers.push_back({LayerKind::kFull, 64, 1, false, {}});
  const KvPlan plan = KvPlan::make(g, 256, 16, KvType::kF16);
  const auto staging = [](std::size_t most) {
    auto made = std::make_shared<CacheStaging>();
    made->most = most;
    return made;
  };
  CudaCache small(plan, g, nullptr, staging(1));  // a layer at a time
  CudaCache middle(plan, g, nullptr, staging(40000));
  CudaCache large(plan, g, nullptr);
  std::mt19937 random(3);
  for (const KvCache::Part part : {KvCache::Part::kRings, KvCache::Part::kFixed}) {
    constexpr std::uint32_t kFirst = 5, kCount = 50;
    std::vector<std::byte> rows(kCount * large.row_bytes(part));
    for (std::byte& b : rows) b = static_cast<std::byte>(random() & 0x3b);  // no NaN
    for (CudaCache* cache : {&small, &middle, &large}) {
      cache->copy_in(part, kFirst, kCount, rows.data());
      std::vector<std::byte> back(rows.size());
      cache->copy_out(part, kFirst, kCount, back.data());
      EXPECT_EQ(back, rows);
    }
    // And each row lies where its position says.
    EXPECT_EQ(small.read_key(part == KvCache::Part::kRings ? 4 : 6, kFirst + 7),
              large.read_key(part == KvCache::Part::kRings ? 4 : 6, kFirst + 7));
    EXPECT_EQ(middle.read_value(part == KvCache::Part::kRings ? 2 : 7, kFirst + 40),
              large.read_value(part == KvCache::Part::kRings ? 2 : 7, kFirst + 40));
  }
}

}  // namespace
}  // namespace gem::cuda
