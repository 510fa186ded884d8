// Whole rows of a device's cache to the host and back.
#include "backend/cuda/cuda_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "backend/cuda/cuda.h"
#include "base/numbers.h"

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
  for (const KvType type : {KvType::kF16, KvType::kF16Full}) {
    const KvPlan plan = KvPlan::make(g, 256, 16, type);
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
}

// What is to be kept is what was there when it was asked for, whatever is written afterwards; through device
// memory that holds it, through some that holds a part of it, and through none.
TEST(CudaCacheCopy, LaterIsAsOfNow) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  Geometry g;
  g.heads = 4;
  g.window = 64;
  for (int i = 0; i < 5; ++i) g.layers.push_back({LayerKind::kSliding, 64, 2, false, {}});
  g.layers.push_back({LayerKind::kFull, 64, 1, false, {}});
  const KvPlan plan = KvPlan::make(g, 256, 16, KvType::kF16);
  const auto random_rows = [](std::size_t bytes, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> rows(bytes);
    for (std::byte& b : rows) b = static_cast<std::byte>(random() & 0x3b);
    return rows;
  };
  const auto staging = std::make_shared<CacheStaging>();
  staging->most = 1;  // a layer at a time
  constexpr std::uint32_t kCount = 60;
  for (const std::size_t most :
       {CacheSnapshots::kBlock - 1, CacheSnapshots::kBlock, 3 * CacheSnapshots::kBlock}) {
    const auto snapshots = std::make_shared<CacheSnapshots>(0, most);
    CudaCache cache(plan, g, nullptr, staging, snapshots);
    for (unsigned round = 0; round < 6; ++round) {
      for (const KvCache::Part part : {KvCache::Part::kRings, KvCache::Part::kFixed}) {
        const std::vector<std::byte> rows = random_rows(kCount * cache.row_bytes(part), round);
        cache.copy_in(part, 0, kCount, rows.data());
        auto kept = std::make_shared<std::vector<std::byte>>(rows.size());
        const std::shared_future<void> arrival = cache.copy_out_later(part, 0, kCount, kept->data(), kept);
        EXPECT_EQ(arrival.valid(), most >= CacheSnapshots::kBlock);
        cache.copy_in(part, 0, kCount, random_rows(rows.size(), round + 100).data());
        if (arrival.valid()) arrival.get();
        EXPECT_EQ(*kept, rows);
      }
    }
  }
}

TEST(CudaSnapshots, PlacesAreGivenAgainWhenTheirCopiesHaveEnded) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  constexpr std::size_t kBytes = CacheSnapshots::kBlock / 4 * 3;
  CacheSnapshots snapshots(0, 2 * CacheSnapshots::kBlock);
  auto out = std::make_shared<std::vector<std::byte>>(kBytes);
  for (int round = 0; round < 3; ++round) {
    const auto first = snapshots.reserve(kBytes);
    const auto second = snapshots.reserve(kBytes);
    ASSERT_TRUE(first && second);
    EXPECT_NE(first->block, second->block);
    EXPECT_FALSE(snapshots.reserve(kBytes)) << "both blocks are in use";
    for (const auto& place : {*first, *second}) {
      check(cudaMemsetAsync(place.data, 1 + round, kBytes, nullptr), "test");
      snapshots.fetch(place, place.data, kBytes, out->data(), out, nullptr).get();
      EXPECT_EQ(out->front(), static_cast<std::byte>(1 + round));
      EXPECT_EQ(out->back(), static_cast<std::byte>(1 + round));
    }
  }
}

// Every type: rounded to nearest even once, key and value of one position beside others'.
TEST(CudaCacheRows, AreWhatTheTypeKeeps) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  Geometry g;
  g.heads = 2;
  g.window = 64;
  g.layers.push_back({LayerKind::kSliding, 48, 2, false, {}});
  g.layers.push_back({LayerKind::kFull, 64, 1, false, {}});
  for (const KvType type : {KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kF16Full}) {
    CudaCache cache(KvPlan::make(g, 256, 16, type), g, nullptr);
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const StorageType storage = kv_storage(type, g.layers[layer].kind);
      const auto kept = [&](float x) {
        return storage == StorageType::kF32    ? x
               : storage == StorageType::kBF16 ? bf16_to_f32(f32_to_bf16(x))
                                               : f16_to_f32(f32_to_f16(x));
      };
      const auto row = [&](float first) {
        std::vector<float> x(std::size_t{g.layers[layer].kv_heads} * g.layers[layer].head_dim);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = first + static_cast<float>(i) * 0.7003f;
        return x;
      };
      for (const std::uint32_t p : {10u, 11u, 9u})
        ASSERT_TRUE(cache.write_row(layer, p, row(static_cast<float>(p)), row(-static_cast<float>(p))));
      for (const std::uint32_t p : {9u, 10u, 11u}) {
        std::vector<float> key = row(static_cast<float>(p));
        std::vector<float> value = row(-static_cast<float>(p));
        std::transform(key.begin(), key.end(), key.begin(), kept);
        std::transform(value.begin(), value.end(), value.begin(), kept);
        EXPECT_EQ(cache.read_key(layer, p), key) << kv_type_name(type) << " " << p;
        EXPECT_EQ(cache.read_value(layer, p), value) << kv_type_name(type) << " " << p;
      }
    }
  }
}

}  // namespace
}  // namespace gem::cuda
