// The memory of caches on the published geometries, in bytes.
#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"
#include "backend/oracle/oracle.h"
#include "base/error.h"
#include "model/model.h"

namespace gem {
namespace {

constexpr std::uint64_t kContext = 131072;
constexpr std::uint64_t kWindow = 1024;

// Elements of one slot, keys and values of all layers of a kind.
struct Case {
  const char* profile;
  std::uint64_t sliding;
  std::uint64_t full;
  std::uint64_t f16_full_envelope;  // requirement 43: rings of exactly the window
};
constexpr Case kCases[] = {
    {"12b", 40 * 2 * 8 * 256, 8 * 2 * 1 * 512, 2'818'572'288},
    {"31b", 50 * 2 * 16 * 256, 10 * 2 * 4 * 512, 12'415'139'840},
};

class CachePlan : public ::testing::TestWithParam<Case> {
 protected:
  const Geometry& geometry() const { return find_profile(GetParam().profile)->geometry; }
  MemoryPlan plan(KvType type, std::uint32_t chunk, std::uint32_t context = kContext) const {
    const Weights none;
    return plan_caches(geometry(), *make_cpu_backend(geometry(), none, 1),
                       {.context = context, .chunk = chunk, .kv_type = type});
  }
};

// Our rings hold the rows of a round beside the window; the plan tells those slots apart.
TEST_P(CachePlan, F16FullKeepsItsEnvelopesAndCountsSpansBesideThem) {
  for (const std::uint32_t chunk : {1u, 256u, 8192u}) {
    const MemoryPlan p = plan(KvType::kF16Full, chunk);
    EXPECT_EQ(p.kv_type, KvType::kF16Full);
    EXPECT_EQ(p.kv_stream - p.kv_spans, GetParam().f16_full_envelope) << chunk;
    EXPECT_EQ(p.kv_spans, chunk * GetParam().sliding * 4) << chunk;
  }
}

TEST_P(CachePlan, EveryTypeTakesItsBytes) {
  const auto& [profile, sliding, full, envelope] = GetParam();
  const std::uint64_t ring = kWindow + 256;
  const std::uint64_t undo = kWindow - 1 + KvPlan::kCheckpointMargin;
  const auto expect = [&](KvType type, std::uint64_t sliding_bytes, std::uint64_t full_bytes) {
    const MemoryPlan p = plan(type, 256);
    EXPECT_EQ(p.kv_stream, ring * sliding * sliding_bytes + kContext * full * full_bytes)
        << kv_type_name(type);
    EXPECT_EQ(p.kv_undo, undo * sliding * sliding_bytes) << kv_type_name(type);
  };
  expect(KvType::kF32, 4, 4);
  expect(KvType::kBF16, 2, 2);
  expect(KvType::kF16, 2, 2);
  expect(KvType::kF16Full, 4, 2);
  EXPECT_EQ(2 * plan(KvType::kF16, 256).kv_stream, plan(KvType::kF32, 256).kv_stream);
}

// A context below the window has no slot to spare, one a little above it not a whole span.
TEST_P(CachePlan, ShortContextsHaveFewerSlotsToSpare) {
  EXPECT_EQ(plan(KvType::kF32, 256, 512).kv_spans, 0u);
  EXPECT_EQ(plan(KvType::kF32, 256, 512).kv_stream, 512 * (GetParam().sliding + GetParam().full) * 4);
  EXPECT_EQ(plan(KvType::kF16, 256, kWindow + 10).kv_spans, 10 * GetParam().sliding * 2);
  EXPECT_EQ(plan(KvType::kF16, 256, kWindow + 10).kv_undo, 0u);
}

INSTANTIATE_TEST_SUITE_P(Published, CachePlan, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return "g" + std::string(test.param.profile); });

// float64, whatever it rounds to.
TEST(CachePlans, TheOracleTakesEightBytesAnElement) {
  const Geometry& g = find_profile("12b")->geometry;
  const Weights none;
  const auto backend = make_oracle_backend(g, none);
  const auto bytes = [&](KvType type) {
    return plan_caches(g, *backend, {.context = 4096, .kv_type = type}).kv_stream;
  };
  EXPECT_EQ(bytes(KvType::kF32), 8 * (1280 * kCases[0].sliding + 4096 * kCases[0].full));
  EXPECT_EQ(bytes(KvType::kF16), bytes(KvType::kF32));
}

}  // namespace
}  // namespace gem
