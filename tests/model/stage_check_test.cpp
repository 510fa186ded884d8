// The stage contract of the cpu backend on a small model: every stage within its bound, every planted fault
// found.
#include "model/stage_check.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"
#include "golden.h"
#include "model/model.h"

namespace gem {
namespace {

class StageCheck : public ::testing::TestWithParam<const char*> {};

TEST_P(StageCheck, CpuHoldsItsContract) {
  GEM_GOLDEN_OR_SKIP(path, std::string("models/dense-a/") + GetParam() + ".gguf");
  const auto model = Model::load(path, {.any_geometry = true});
  const CheckReport report = check_stages(
      model->geometry(), model->weights(),
      [](const Geometry& g, const Weights& w) { return make_cpu_backend(g, w, 1); }, 7);
  EXPECT_EQ(report.stages.size(), 4u * 9u);
  for (const StageResult& s : report.stages) {
    EXPECT_TRUE(s.passed()) << stage_name(s.stage) << " with " << s.rows << " rows: " << s.worst << " over "
                            << s.bound;
  }
  EXPECT_GE(report.controls.size(), 12u);
  for (const ControlResult& c : report.controls)
    EXPECT_TRUE(c.red()) << c.fault << ": " << c.worst << " within " << c.bound;
}

INSTANTIATE_TEST_SUITE_P(DenseA, StageCheck, ::testing::Values("q4_0", "q8_0", "f16"));

}  // namespace
}  // namespace gem
