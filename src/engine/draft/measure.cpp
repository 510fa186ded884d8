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

DraftCosts measure_costs(const Model& model, Backend& backend, Drafter& drafter, const KvPlan& plan,
                         std::uint32_t streams, std::uint32_t most) {
  constexpr std::uint32_t kRows[] = {1, 2, 4, 8, 16};
  constexpr std::uint32_t kSharedRows[] = {32, 64, 128, 256};
  constexpr std::uint32_t kStreams[] = {1, 2, 4, 8, 16};
  constexpr double kLongest = 1;  // seconds of a wide round
  const Geometry& g = model.geometry();
  const std::uint32_t longest = std::min({16u, plan.context - 1, plan.max_span});
  const KvPlan small = KvPlan::make(g, longest + 1, longest, plan.type);
  const std::vector<std::int32_t> tokens(longest + 1, 2);
  DraftCosts costs;
  std::vector<std::unique_ptr<KvCache>> caches;
  const bool hidden = drafter.wants().hidden;
  // `rows` rows of each of the first `n` streams.
  const auto round = [&](std::uint32_t n, std::uint32_t rows) {
    while (caches.size() < n) caches.push_back(backend.new_cache(small));
    std::vector<Span> spans;
    for (std::uint32_t i = 0; i < n; ++i) {
      caches[i]->roll_back_to(0);
      spans.push_back({caches[i].get(),
                       std::span(tokens).first(rows),
                       {},
                       Wanted::kAll,
                       hidden ? Wanted::kAll : Wanted::kNothing});
    }
    run_round(backend, g.layers.size(), spans);
  };
  round(1, 1);  // the weights are in memory, buffers have their size
  for (const std::uint32_t rows : kRows) {
    if (rows <= longest) costs.rounds.emplace_back(rows, time_of([&] { round(1, rows); }));
  }
  // Beyond 16 rows other kernels may serve, and the weights' bytes are no longer what a round waits for: no
  // line through narrow rounds says what that costs.
  const std::uint32_t window = std::min(longest, most + 1);
  for (const std::uint32_t rows : kSharedRows) {
    const std::uint32_t n = std::max(std::min(streams, rows / std::min(window, 8u)), 1u);
    const std::uint32_t each = (rows + n - 1) / n;
    if (each > window || costs.round(n * each) > kLongest) break;
    costs.rounds.emplace_back(n * each, time_of([&] { round(n, each); }));
  }

  for (const std::uint32_t n : kStreams) {
    if (n > 4 && n > streams) break;
    round(n, 1);
    std::vector<float> row;
    if (hidden) row = backend.read(Activation::kFinal);
    row.resize(hidden ? g.hidden : 0);
    std::vector<std::unique_ptr<DraftState>> states;
    for (std::uint32_t i = 0; i < n; ++i) {
      states.push_back(drafter.open());
      drafter.absorb(*states.back(), {std::span(tokens).first(2), 1, row});
    }
    const DraftOutlook outlook = drafter.outlook(*states.front(), std::span(tokens).first(2));
    if (!outlook.steps || outlook.most == 0) break;
    SamplingParams greedy;
    greedy.temperature = 0;
    std::vector<Sampler> samplers(n, Sampler(greedy, {}));
    const double seconds = time_of([&] {
      std::vector<DraftTurn> turns(n);
      for (std::uint32_t i = 0; i < n; ++i) {
        turns[i].state = states[i].get();
        turns[i].cache = caches[i].get();
        turns[i].tokens = std::span(tokens).first(2);
        turns[i].most = 1;
        turns[i].sampler = &samplers[i];
      }
      drafter.propose(turns);
    });
    costs.steps.emplace_back(n, seconds);
  }
  return costs;
}

}  // namespace gem
