// What the cpu backend's cache keeps of a row, in every storage type, and that a checkpoint gives it back.
#include "backend/cpu/cpu_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace gem::cpu {
namespace {

// A sliding layer of two heads of four, and a full one of one head of six.
Geometry small(std::uint32_t window) {
  Geometry g;
  g.window = window;
  g.heads = 2;
  g.layers = {{LayerKind::kSliding, 4, 2, false}, {LayerKind::kFull, 6, 1, true}};
  return g;
}

TEST(KvTypes, NamesAndStorage) {
  for (const char* name : {"f32", "bf16", "f16", "f16-full"}) {
    ASSERT_TRUE(kv_type_from_name(name)) << name;
    EXPECT_EQ(kv_type_name(*kv_type_from_name(name)), name);
  }
  for (const char* name : {"", "F16", "f16_full", "q8_0"}) EXPECT_FALSE(kv_type_from_name(name)) << name;
  EXPECT_EQ(kv_storage(KvType::kF16Full, LayerKind::kSliding), StorageType::kF32);
  EXPECT_EQ(kv_storage(KvType::kF16Full, LayerKind::kFull), StorageType::kF16);
  for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) {
    EXPECT_EQ(kv_storage(KvType::kF32, kind), StorageType::kF32);
    EXPECT_EQ(kv_storage(KvType::kF16, kind), StorageType::kF16);
    EXPECT_EQ(kv_storage(KvType::kBF16, kind), StorageType::kBF16);
  }
}

// One head of eight, at position 2.
std::vector<float> kept(KvType type, const std::vector<float>& row) {
  Geometry g = small(4);
  g.layers = {{LayerKind::kFull, static_cast<std::uint32_t>(row.size()), 1, false}};
  CpuCache cache(KvPlan::make(g, 8, 4, type), g);
  const std::vector<float> zero(row.size(), 0.0f);
  cache.store(0, 2, row.data(), zero.data());
  EXPECT_EQ(cache.read_value(0, 2), zero);
  const std::vector<float> key = cache.read_key(0, 2);
  cache.store(0, 2, zero.data(), row.data());
  const std::vector<float> value = cache.read_value(0, 2);
  for (std::size_t i = 0; i < row.size(); ++i)
    EXPECT_TRUE(key[i] == value[i] || (std::isnan(key[i]) && std::isnan(value[i])));
  return key;
}

// Halves of the last place go to the even neighbour.
TEST(CpuCache, RoundsToNearestEven) {
  const std::vector<float> row = {1 + 0x1p-11f, 1 + 0x3p-11f, 1 + 0x1p-8f, 1 + 0x3p-8f,
                                  -3.14159265f, 0x1p-24f,     65519.0f,    65520.0f};
  EXPECT_EQ(kept(KvType::kF32, row), row);
  EXPECT_EQ(kept(KvType::kF16, row),
            (std::vector<float>{1, 1 + 0x1p-9f, row[2], row[3], -3.140625f, 0x1p-24f, 65504, INFINITY}));
  EXPECT_EQ(kept(KvType::kF16Full, row), kept(KvType::kF16, row)) << "the layer is a full one";
  EXPECT_EQ(kept(KvType::kBF16, row),
            (std::vector<float>{1, 1, 1, 1 + 0x1p-6f, -3.140625f, 0x1p-24f, 65536, 65536}));
}

TEST(CpuCache, ANaNStaysOne) {
  for (const KvType type : {KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kF16Full}) {
    const std::vector<float> row =
        kept(type, {NAN, -NAN, 1, std::nanf("0x1"), -0.0f, INFINITY, -INFINITY, 2});
    for (const std::size_t i : {0u, 1u, 3u})
      EXPECT_TRUE(std::isnan(row[i])) << kv_type_name(type) << " " << i;
    EXPECT_TRUE(row[4] == 0 && std::signbit(row[4]));
    EXPECT_EQ(row[5], INFINITY);
    EXPECT_EQ(row[6], -INFINITY);
  }
}

class CpuCacheUndo : public ::testing::TestWithParam<KvType> {};

// The ring comes round several times after a checkpoint; what it held then comes back, bit for bit.
TEST_P(CpuCacheUndo, ACheckpointGivesTheRowsBack) {
  constexpr std::uint32_t kWindow = 20;
  constexpr std::uint32_t kSpan = 6;
  constexpr std::uint32_t kPrompt = 50;
  const Geometry g = small(kWindow);
  CpuCache cache(KvPlan::make(g, 400, kSpan, GetParam()), g);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  const auto write = [&](std::uint32_t to) {
    while (cache.length() < to) {
      const std::uint32_t rows = std::min(kSpan, to - cache.length());
      cache.prepare(rows);
      for (std::uint32_t p = cache.length(); p < cache.length() + rows; ++p) {
        for (std::uint32_t layer = 0; layer < 2; ++layer) {
          std::vector<float> key(g.kv_width(layer));
          std::vector<float> value(g.kv_width(layer));
          for (float& x : key) x = normal(random);
          for (float& x : value) x = normal(random);
          ASSERT_TRUE(cache.write_row(layer, p, key, value));
        }
      }
      cache.advance(rows);
    }
  };
  const auto window = [&] {
    std::vector<float> all;
    for (std::uint32_t p = kPrompt + 1 - kWindow; p < kPrompt; ++p) {
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        for (const std::vector<float>& row : {cache.read_key(layer, p), cache.read_value(layer, p)})
          all.insert(all.end(), row.begin(), row.end());
      }
    }
    return all;
  };
  write(kPrompt);
  const std::vector<float> before = window();
  cache.set_checkpoint();
  write(300);
  EXPECT_NE(window(), before);
  ASSERT_TRUE(cache.can_roll_back_to(kPrompt));
  cache.roll_back_to(kPrompt);
  EXPECT_EQ(window(), before);
}

INSTANTIATE_TEST_SUITE_P(Types, CpuCacheUndo,
                         ::testing::Values(KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kF16Full),
                         [](const auto& test) {
                           std::string name(kv_type_name(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace gem::cpu
