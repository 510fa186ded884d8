// gem check: the stages of a backend against the oracle, with planted faults that must be found.
#include <fmt/format.h>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "model/stage_check.h"

namespace gem::cli {
namespace {

// Runs the contract and prints its table; whether it holds.
bool check(const Model& model, const BackendMaker& make, std::uint64_t seed, Precision precision,
           std::optional<KvType> kv_type) {
  const CheckReport report = check_stages(model.geometry(), model.weights(), make, seed, precision, kv_type);
  fmt::print("KV type {}\n", kv_type_name(report.kv_type));
  fmt::print("{:<12} {:>5} {:>12} {:>10}\n", "stage", "rows", "worst", "bound");
  std::size_t passed = 0;
  for (const StageResult& s : report.stages) {
    passed += s.passed() ? 1 : 0;
    fmt::print("{:<12} {:>5} {:>12.2e} {:>10.0e}  {}\n", stage_name(s.stage), s.rows, s.worst, s.bound,
               s.passed() ? "ok" : "FAILED");
  }
  fmt::print("\n{:<48} {:<12} {:>10} {:>10}\n", "planted fault", "stage", "worst", "bound");
  std::size_t red = 0;
  for (const ControlResult& c : report.controls) {
    red += c.red() ? 1 : 0;
    fmt::print("{:<48} {:<12} {:>10.2e} {:>10.0e}  {}\n", c.fault, stage_name(c.stage), c.worst, c.bound,
               c.red() ? "found" : "NOT FOUND");
  }
  fmt::print("\nstages passed {}/{}, controls red {}/{}\n", passed, report.stages.size(), red,
             report.controls.size());
  return report.passed();
}

}  // namespace

void add_check(CLI::App& app) {
  struct Options {
    ModelOptions model;
    std::uint64_t seed = 1;
  };
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "check", "Every stage of a backend against the oracle, with controls that must fail");
  o->model.add_to(*sub);
  sub->add_option("--seed", o->seed, "Seed of the random tokens")->capture_default_str();
  sub->callback([o] {
    const BackendKind kind = parse_backend(o->model.backend);
    if (kind == BackendKind::kOracle)
      fail(ErrorCode::kUsage, "check compares a backend with the oracle: --backend cpu or cuda");
    require_user_of_device(kind, o->model.device);
    const auto model = Model::load(o->model.path(), {.any_geometry = o->model.any_geometry});
    const unsigned threads = o->model.threads;
    const BackendMaker make = [&](const Geometry& g, const Weights& w) {
      return kind == BackendKind::kCuda ? make_cuda_backend(g, w, {o->model.device})
                                        : make_cpu_backend(g, w, threads);
    };
    bool passed = true;
    if (kind == BackendKind::kCuda) {
      fmt::print("decode rows\n");
      passed = check(*model, make, o->seed, Precision::kF32, o->model.kv_type);
      fmt::print("\nprompt rows\n");
      passed = check(*model, make, o->seed, Precision::kBF16, o->model.kv_type) && passed;
    } else {
      passed = check(*model, make, o->seed, Precision::kF32, o->model.kv_type);
    }
    if (!passed) fail(ErrorCode::kFailed, "the backend does not hold its contract");
  });
}

}  // namespace gem::cli
