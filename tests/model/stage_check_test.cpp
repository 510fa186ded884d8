// The stage contract of the backends on a small model: every stage within its bound, every planted fault
// found.
#include "model/stage_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "base/numbers.h"
#include "emulated.h"
#include "engine/wrapped_backend.h"
#include "golden.h"
#include "model/model.h"

namespace gem {
namespace {

void expect_held(const CheckReport& report, KvType kv_type) {
  EXPECT_EQ(report.kv_type, kv_type);
  EXPECT_EQ(report.stages.size(), 4u * 9u);
  for (const StageResult& s : report.stages) {
    EXPECT_TRUE(s.passed()) << stage_name(s.stage) << " with " << s.rows << " rows: " << s.worst << " over "
                            << s.bound;
  }
  EXPECT_GE(report.controls.size(), kv_type == KvType::kF32 ? 12u : 13u);
  for (const ControlResult& c : report.controls)
    EXPECT_TRUE(c.red()) << c.fault << ": " << c.worst << " within " << c.bound;
}

class StageCheck : public ::testing::TestWithParam<std::tuple<const char*, KvType>> {};

TEST_P(StageCheck, CpuHoldsItsContract) {
  GEM_GOLDEN_OR_SKIP(path, std::string("models/dense-a/") + std::get<0>(GetParam()) + ".gguf");
  const KvType kv_type = std::get<1>(GetParam());
  const auto model = Model::load(path, {.any_geometry = true});
  const BackendMaker make = [](const Geometry& g, const Weights& w) { return make_cpu_backend(g, w, 1); };
  expect_held(check_stages(model->geometry(), model->weights(), make, 7, Precision::kF32, kv_type), kv_type);
}

const auto kName = [](const auto& test) {
  std::string name = std::get<0>(test.param);
  name += "_kv_" + std::string(kv_type_name(std::get<1>(test.param)));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
};

INSTANTIATE_TEST_SUITE_P(DenseA, StageCheck,
                         ::testing::Values(std::tuple("q4_0", KvType::kF32), std::tuple("q8_0", KvType::kF32),
                                           std::tuple("f16", KvType::kF32), std::tuple("q8_0", KvType::kF16),
                                           std::tuple("q8_0", KvType::kBF16),
                                           std::tuple("q4_0", KvType::kF16Full)),
                         kName);

class CudaStageCheck : public StageCheck {};

TEST_P(CudaStageCheck, HoldsItsContract) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  GEM_GOLDEN_OR_SKIP(path, std::string("models/dense-a/") + std::get<0>(GetParam()) + ".gguf");
  const KvType kv_type = std::get<1>(GetParam());
  const auto model = Model::load(path, {.any_geometry = true});
  const BackendMaker make = [](const Geometry& g, const Weights& w) { return make_cuda_backend(g, w, {}); };
  // The emulated device takes a minute for decode rows of one type.
  if (testing::kEmulated && (kv_type != KvType::kF16Full || testing::kSanitized))
    GTEST_SKIP() << "on a device";
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    if (testing::kEmulated && precision != Precision::kF32) continue;
    SCOPED_TRACE(precision == Precision::kF32 ? "decode rows" : "prompt rows");
    expect_held(check_stages(model->geometry(), model->weights(), make, 7, precision, kv_type), kv_type);
  }
}

INSTANTIATE_TEST_SUITE_P(DenseA, CudaStageCheck,
                         ::testing::Values(std::tuple("q4_0", KvType::kF16), std::tuple("q8_0", KvType::kF32),
                                           std::tuple("q4_0", KvType::kBF16),
                                           std::tuple("q8_0", KvType::kF16Full)),
                         kName);

// A cache that rounds another way than to nearest, or to another type, is found at its rounding point; what
// comes after it is measured from the oracle's own rows.
TEST(StageCheckRounding, OtherRoundingsAreFound) {
  GEM_GOLDEN_OR_SKIP(path, "models/dense-a/f16.gguf");
  const auto model = Model::load(path, {.any_geometry = true});
  const auto to_bf16 = [](float x) { return bf16_to_f32(f32_to_bf16(x)); };
  const auto towards_zero = [](float x) {
    const std::uint16_t nearest = f32_to_f16(x);
    return std::fabs(f16_to_f32(nearest)) > std::fabs(x) ? f16_to_f32(static_cast<std::uint16_t>(nearest - 1))
                                                         : f16_to_f32(nearest);
  };
  for (const std::function<float(float)>& round : {std::function<float(float)>(to_bf16), {towards_zero}}) {
    testing::BackendHooks hooks;
    hooks.after_qk_prep = [&](std::uint32_t layer, std::span<const RowSpan> spans, const Backend& backend) {
      std::vector<float> keys = backend.read(Activation::kKey);
      std::vector<float> values = backend.read(Activation::kValue);
      std::transform(keys.begin(), keys.end(), keys.begin(), round);
      std::transform(values.begin(), values.end(), values.begin(), round);
      const std::size_t width = model->geometry().kv_width(layer);
      for (std::uint32_t r = 0; r < spans[0].rows; ++r) {
        spans[0].cache->write_row(layer, spans[0].position + r, std::span(keys).subspan(r * width, width),
                                  std::span(values).subspan(r * width, width));
      }
    };
    const CheckReport report = check_stages(
        model->geometry(), model->weights(),
        [&](const Geometry& g, const Weights& w) -> std::unique_ptr<Backend> {
          return std::make_unique<testing::WrappedBackend>(make_cpu_backend(g, w, 1), hooks);
        },
        7, Precision::kF32, KvType::kF16);
    for (const StageResult& s : report.stages)
      EXPECT_EQ(s.passed(), s.stage != Stage::kQkPrep) << stage_name(s.stage) << " " << s.worst;
  }
}

}  // namespace
}  // namespace gem
