// The contract of a backend: every stage lies within a stated bound of the oracle, and planted faults are
// found.
//
// A prefix longer than the window fills the caches of both backends; then rounds of 1, 2, 7 and 16 rows run
// stage by stage, each from the oracle's own inputs (rounded to f32) and cache rows, so that an error shows
// in the stage that makes it. The measure is the largest difference in a row over the root mean square of the
// oracle's row. Cache rows stored in 16 bits are measured at their rounding point: how far the oracle's
// element, before it is rounded, lies from the nearest number that rounds to what was stored; what was stored
// must be a number of the type. So a bound of f32 arithmetic holds for them too, and a rounding that is left
// out, or goes another way than to nearest, shows.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/schedule.h"

namespace gem {

using BackendMaker = std::function<std::unique_ptr<Backend>(const Geometry&, const Weights&)>;

struct StageResult {
  Stage stage;
  std::uint32_t rows;
  double worst;  // largest measure over the layers
  double bound;
  bool passed() const { return worst <= bound; }  // false for NaN
};

struct ControlResult {
  std::string fault;
  Stage stage;  // the stage that must exceed its bound
  double worst;
  double bound;
  bool red() const { return !(worst <= bound); }
};

struct CheckReport {
  KvType kv_type = KvType::kF32;
  std::vector<StageResult> stages;
  std::vector<ControlResult> controls;
  bool passed() const;
};

// The roundings of activations that a path states, by which its bounds follow.
enum class Precision : std::uint8_t {
  kF32,   // f32, or as good (cpu; cuda, decode rows)
  kBF16,  // bf16 (cuda, prompt rows)
};

// How far a stage may be from the oracle, and why (docs/architecture.md, "Bounds").
double stage_bound(Stage stage, Precision precision = Precision::kF32);

// kBF16 sends the rows as prompt, else they are decode rows. The oracle's cache has the same KV type as the
// backend's. Error(kUsage) for a KV type that the backend does not have; nothing: its first.
CheckReport check_stages(const Geometry& geometry, const Weights& weights, const BackendMaker& make,
                         std::uint64_t seed, Precision precision = Precision::kF32,
                         std::optional<KvType> kv_type = {});

}  // namespace gem
