// gem profile: time per stage of a decode row or of a prompt tile at a depth.
//
// The prefix is read once; every sample runs one round and rolls the cache back, so that a profile at a depth
// of many thousand tokens costs one prompt.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/timing.h"
#include "model/schedule.h"

namespace gem::cli {
namespace {

struct Options {
  ModelOptions model;
  std::uint32_t rows = 1;
  std::uint32_t depth = 0;
  std::uint32_t repeat = 5;
  bool json = false;
};

// A stage in one kind of layer; stages outside the layers count as full ones.
struct Place {
  Stage stage;
  LayerKind kind;
  bool operator<(const Place& o) const { return std::pair(stage, kind) < std::pair(o.stage, o.kind); }
};

bool in_layers(Stage stage) {
  return stage != Stage::kEmbed && stage != Stage::kFinalNorm && stage != Stage::kHead;
}

// Bytes of the matrices that a stage reads in all layers of a kind.
double weight_bytes(const Model& model, const Place& place) {
  if (place.stage == Stage::kHead) return static_cast<double>(model.weights().token_embd.bytes());
  double sum = 0;
  for (std::size_t i = 0; i < model.geometry().layers.size(); ++i) {
    if (model.geometry().layers[i].kind != place.kind) continue;
    const LayerWeights& l = model.weights().layers[i];
    const auto add = [&](std::initializer_list<const Matrix*> matrices) {
      for (const Matrix* m : matrices) sum += static_cast<double>(m->bytes());
    };
    if (place.stage == Stage::kAttnInput) add({&l.q, &l.k, &l.v});
    if (place.stage == Stage::kAttnOutput) add({&l.o});
    if (place.stage == Stage::kFfnInput) add({&l.gate, &l.up});
    if (place.stage == Stage::kFfnOutput) add({&l.down});
  }
  return sum;
}

void run(const Options& o) {
  const auto model = Model::load(o.model.path(), {.any_geometry = o.model.any_geometry});
  const Geometry& g = model->geometry();
  if (std::uint64_t{o.depth} + o.rows > g.context)
    fail(ErrorCode::kUsage, "{} rows at a depth of {} were asked for, the model was trained for {}", o.rows,
         o.depth, g.context);
  const auto backend = o.model.backend_for(*model);
  const KvType kv_type = choose_kv_type(*backend, o.model.kv_type);
  backend->load_weights({});
  const std::uint32_t span = std::max(o.rows, std::min(o.model.chunk_on(*backend), o.depth + 1));
  const auto cache =
      backend->new_cache(KvPlan::make(g, o.depth + o.rows, std::min(span, o.depth + o.rows), kv_type));

  std::mt19937_64 random(1);
  const auto round = [&](std::uint32_t rows, bool prompt, const StageObserver& observer) {
    std::vector<std::int32_t> ids(rows);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % g.vocab);
    const Span spans[] = {{cache.get(), ids, {}, Wanted::kLast, Wanted::kNothing, prompt}};
    run_round(*backend, g.layers.size(), spans, observer);
  };
  while (cache->length() < o.depth) round(std::min(span, o.depth - cache->length()), true, {});

  std::map<Place, std::vector<double>> samples;
  std::vector<double> totals;
  for (std::uint32_t i = 0; i <= o.repeat; ++i) {
    std::map<Place, double> times;
    double start = 0;
    const double begin = now();
    round(o.rows, o.rows > 1, [&](Stage stage, std::uint32_t layer, bool after) {
      if (!after) {
        start = now();
        return;
      }
      times[{stage, in_layers(stage) ? g.layers[layer].kind : LayerKind::kFull}] += now() - start;
    });
    const double total = now() - begin;
    cache->roll_back_to(o.depth);
    if (i == 0) continue;  // the first warms up
    totals.push_back(total);
    for (const auto& [place, seconds] : times) samples[place].push_back(seconds);
  }

  const double total = median(totals);
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  if (!o.json) {
    fmt::print(
        "{}, {}, KV type {}\n{} row{} at depth {}: {:.3f} ms (median of {})\n\n{:<12} {:<8} {:>10} {:>7} "
        "{:>8}\n",
        model->profile().title, backend->description(), kv_type_name(kv_type), o.rows, o.rows == 1 ? "" : "s",
        o.depth, total * 1e3, o.repeat, "stage", "layers", "ms", "share", "GB/s");
  }
  for (const auto& [place, seconds] : samples) {
    const double s = median(seconds);
    const double bytes = weight_bytes(*model, place);
    const char* kind = !in_layers(place.stage) ? "" : place.kind == LayerKind::kFull ? "full" : "sliding";
    if (!o.json) {
      fmt::print("{:<12} {:<8} {:>10.3f} {:>6.1f}% {:>8}\n", stage_name(place.stage), kind, s * 1e3,
                 100 * s / total, bytes > 0 ? fmt::format("{:.1f}", bytes / s / 1e9) : "");
      continue;
    }
    nlohmann::ordered_json j = {{"stage", stage_name(place.stage)}};
    if (*kind != 0) j["layers"] = kind;
    j["seconds"] = s;
    if (bytes > 0) j["gigabytes_per_second"] = bytes / s / 1e9;
    stages.push_back(std::move(j));
  }
  if (!o.json) return;
  const nlohmann::ordered_json j = {{"model", o.model.path()},
                                    {"profile", model->profile().name},
                                    {"backend", backend->description()},
                                    {"kv_type", kv_type_name(kv_type)},
                                    {"rows", o.rows},
                                    {"depth", o.depth},
                                    {"repeat", o.repeat},
                                    {"seconds", total},
                                    {"stages", std::move(stages)}};
  fmt::print("{}\n", j.dump(2));
}

}  // namespace

void add_profile(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("profile", "Time per stage of a decode row or a prompt tile");
  o->model.add_to(*sub);
  sub->add_option("--rows", o->rows, "1: a decode row; more: a prompt tile")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  sub->add_option("-d,--depth", o->depth, "Tokens already in the cache")->capture_default_str();
  sub->add_option("-r,--repeat", o->repeat, "Samples; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_flag("--json", o->json, "Machine-readable output");
  sub->callback([o] { run(*o); });
}

}  // namespace gem::cli
