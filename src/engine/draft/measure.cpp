#include "engine/draft/measure.h"

#include <algorithm>
#include <chrono>

#include "model/schedule.h"

namespace gem {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The least of some runs: what disturbs a run makes it longer. A long one is not repeated.
template <typename Body>
double time_of(const Body& body) {
  constexpr double kLong = 0.1;  // seconds
  double least = 0;
  for (int run = 0; run < 4; ++run) {
    const double start = now();
    body();
    const double seconds = now() - start;
    if (run == 0 || seconds < least) least = seconds;
    if (seconds > kLong && run > 0) break;
  }
  return least;
}

}  // namespace

DraftCosts measure_costs(const Model& model, Backend& backend, Drafter& drafter, const KvPlan& plan) {
  constexpr std::uint32_t kRows[] = {1, 2, 4, 8, 16};
  constexpr std::uint32_t kStreams[] = {1, 2, 4};
  const Geometry& g = model.geometry();
  const std::uint32_t longest = std::min({16u, plan.context - 1, plan.max_span});
  const KvPlan small = KvPlan::make(g, longest + 1, longest, plan.type);
  const std::vector<std::int32_t> tokens(longest + 1, 2);
  DraftCosts costs;
  const auto cache = backend.new_cache(small);
  const bool hidden = drafter.wants().hidden;
  const auto round = [&](KvCache& into, std::uint32_t rows) {
    into.roll_back_to(0);
    const Span span[] = {
        {&into, std::span(tokens).first(rows), {}, Wanted::kAll, hidden ? Wanted::kAll : Wanted::kNothing}};
    run_round(backend, g.layers.size(), span);
  };
  round(*cache, 1);  // the weights are in memory, buffers have their size
  for (const std::uint32_t rows : kRows) {
    if (rows <= longest) costs.rounds.emplace_back(rows, time_of([&] { round(*cache, rows); }));
  }

  std::vector<float> row;
  if (hidden) row = backend.read(Activation::kFinal);
  for (const std::uint32_t streams : kStreams) {
    std::vector<std::unique_ptr<KvCache>> caches;
    std::vector<std::unique_ptr<DraftState>> states;
    for (std::uint32_t i = 0; i < streams; ++i) {
      caches.push_back(backend.new_cache(small));
      round(*caches.back(), 1);
      states.push_back(drafter.open());
      drafter.absorb(*states.back(),
                     {std::span(tokens).first(2), 1, std::span(row).first(hidden ? g.hidden : 0)});
    }
    const DraftOutlook outlook = drafter.outlook(*states.front(), std::span(tokens).first(2));
    if (!outlook.steps || outlook.most == 0) break;
    SamplingParams greedy;
    greedy.temperature = 0;
    std::vector<Sampler> samplers(streams, Sampler(greedy, {}));
    const double seconds = time_of([&] {
      std::vector<DraftTurn> turns(streams);
      for (std::uint32_t i = 0; i < streams; ++i) {
        turns[i].state = states[i].get();
        turns[i].cache = caches[i].get();
        turns[i].tokens = std::span(tokens).first(2);
        turns[i].most = 1;
        turns[i].sampler = &samplers[i];
      }
      drafter.propose(turns);
    });
    costs.steps.emplace_back(streams, seconds);
  }
  return costs;
}

}  // namespace gem
