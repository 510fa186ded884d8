// gem bench: tokens a second of prompt and decode at given sizes, depths and stream counts.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/bench_drafts.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/timing.h"
#include "engine/draft/find.h"
#include "engine/draft/mtp.h"

namespace gem::cli {
namespace {

struct Options {
  ModelOptions model;
  std::vector<std::uint32_t> prompt = {128};
  std::vector<std::uint32_t> depths = {0};
  std::vector<std::uint32_t> streams = {1};
  std::vector<std::uint32_t> rows;
  std::vector<std::uint32_t> chains;
  std::uint32_t tokens = 16;
  std::uint32_t repeat = 3;
  bool json = false;
  DraftBenchOptions drafts;
};

struct Line {
  std::string test;
  std::uint32_t tokens = 0, depth = 0, streams = 1;
  double seconds = 0;     // median of the repeats
  double rate = 0;        // tokens a second, all streams
  double bandwidth = 0;   // decode and rows: bytes of weights and cache read a second
  double operations = 0;  // prompt: of the matrices a second, two a multiply-add
};

class Bench {
 public:
  explicit Bench(const Options& o)
      : o_(o),
        model_(Model::load(o.model.path(), {.any_geometry = o.model.any_geometry})),
        backend_(o.model.backend_for(*model_)),
        kv_type_(choose_kv_type(*backend_, o.model.kv_type)) {
    backend_->load_weights({});
  }

  const Model& model() const { return *model_; }
  const Backend& backend() const { return *backend_; }
  KvType kv_type() const { return kv_type_; }

  // Reads `tokens` prompt tokens after `depth` others.
  Line prompt(std::uint32_t tokens, std::uint32_t depth) {
    auto cache = new_cache(depth + tokens);
    fill(*cache, depth);
    std::vector<double> times;
    for (std::uint32_t i = 0; i < o_.repeat; ++i) {
      restore(cache, depth, depth + tokens);
      const double start = now();
      fill(*cache, tokens);
      times.push_back(now() - start);
    }
    Line line{"prompt", tokens, depth, 1, median(times)};
    line.rate = tokens / line.seconds;
    line.operations = operations_per_token() * line.rate;
    return line;
  }

  // Rounds of `rows` rows of one stream with all their logits, as a drafter's tokens are verified.
  Line verify(std::uint32_t rows, std::uint32_t depth) {
    auto cache = new_cache(depth + rows);
    fill(*cache, depth);
    std::vector<double> times;
    for (std::uint32_t i = 0; i < o_.repeat * std::max(o_.tokens, 1u); ++i) {
      restore(cache, depth, depth + rows);
      std::vector<std::int32_t> ids(rows);
      for (std::int32_t& id : ids) id = any_token();
      const Span span[] = {{cache.get(), ids, {}, Wanted::kAll, Wanted::kNothing}};
      const double start = now();
      run_round(*backend_, model_->geometry().layers.size(), span);
      times.push_back(now() - start);
    }
    Line line{"rows", rows, depth, 1, median(times)};
    line.rate = rows / line.seconds;
    line.bandwidth = (weight_bytes() + cache_bytes(depth)) / line.seconds;
    return line;
  }

  // `drafts` tokens proposed by the model's assistant, one after the other.
  Line chain(std::uint32_t drafts, std::uint32_t depth) {
    auto cache = new_cache(depth + 1);
    fill(*cache, depth);
    std::vector<std::int32_t> tokens(depth + 2);
    for (std::int32_t& id : tokens) id = any_token();
    const Span span[] = {{cache.get(), std::span(tokens).subspan(depth, 1), {}, Wanted::kAll, Wanted::kAll}};
    run_round(*backend_, model_->geometry().layers.size(), span);
    const std::vector<float> hidden = backend_->read(Activation::kFinal);
    MtpDrafter& drafter = this->drafter(drafts);
    const auto state = drafter.open();
    drafter.absorb(*state, {tokens, 1, hidden});
    SamplingParams greedy;
    greedy.temperature = 0;
    std::vector<double> times;
    for (std::uint32_t i = 0; i < o_.repeat * std::max(o_.tokens, 1u); ++i) {
      Sampler sampler(greedy, {});
      DraftTurn turn;
      turn.state = state.get();
      turn.cache = cache.get();
      turn.tokens = tokens;
      turn.most = drafts;
      turn.sampler = &sampler;
      const double start = now();
      drafter.propose(std::span(&turn, 1));
      times.push_back(now() - start);
      if (turn.drafts.size() != drafts)
        fail(ErrorCode::kFailed, "the assistant proposed {} tokens of {}", turn.drafts.size(), drafts);
    }
    Line line{"chain", drafts, depth, 1, median(times)};
    line.rate = drafts / line.seconds;
    return line;
  }

  // `o.tokens` steps of `streams` streams, each `depth` tokens long.
  Line decode(std::uint32_t depth, std::uint32_t streams) {
    std::vector<std::unique_ptr<KvCache>> caches;
    for (std::uint32_t s = 0; s < streams; ++s) {
      caches.push_back(new_cache(depth + o_.tokens));
      fill(*caches.back(), depth);
    }
    std::vector<double> times;
    for (std::uint32_t i = 0; i < o_.repeat; ++i) {
      for (auto& cache : caches) restore(cache, depth, depth + o_.tokens);
      const double start = now();
      for (std::uint32_t t = 0; t < o_.tokens; ++t) {
        std::vector<std::int32_t> tokens;
        for (std::uint32_t s = 0; s < streams; ++s) tokens.push_back(any_token());
        std::vector<Span> spans;
        for (std::uint32_t s = 0; s < streams; ++s) {
          spans.push_back(
              {caches[s].get(), std::span(tokens).subspan(s, 1), {}, Wanted::kLast, Wanted::kNothing});
        }
        run_round(*backend_, model_->geometry().layers.size(), spans);
      }
      times.push_back(now() - start);
    }
    Line line{"decode", o_.tokens, depth, streams, median(times)};
    line.rate = o_.tokens * streams / line.seconds;
    line.bandwidth = (weight_bytes() + streams * cache_bytes(depth)) * o_.tokens / line.seconds;
    return line;
  }

 private:
  MtpDrafter& drafter(std::uint32_t drafts) {
    if (!assistant_) {
      const auto& d = o_.model.drafts;
      FoundAssistant found =
          open_assistant(*model_, d.assistant, d.find, {.any_geometry = o_.model.any_geometry});
      if (!found.assistant) fail(ErrorCode::kUsage, "--chain needs an assistant (--mtp): {}", found.why_none);
      assistant_ = std::move(found.assistant);
    }
    drafter_ = std::make_unique<MtpDrafter>(*assistant_, *backend_, MtpOptions{.most = drafts});
    drafter_->load();
    return *drafter_;
  }

  std::int32_t any_token() { return static_cast<std::int32_t>(random_() % model_->geometry().vocab); }

  std::unique_ptr<KvCache> new_cache(std::uint32_t positions) {
    return backend_->new_cache(KvPlan::make(model_->geometry(), positions,
                                            std::min(o_.model.chunk_on(*backend_), positions), kv_type_));
  }

  // Back to `depth` positions: by rolling back where the rings allow it, else by reading the prefix again.
  void restore(std::unique_ptr<KvCache>& cache, std::uint32_t depth, std::uint32_t positions) {
    if (cache->can_roll_back_to(depth)) return cache->roll_back_to(depth);
    cache = new_cache(positions);
    fill(*cache, depth);
  }

  // Ends when the last round has: a backend may still be at work on one that asked for nothing.
  void fill(KvCache& cache, std::uint32_t tokens) {
    for (std::uint32_t at = 0; at < tokens;) {
      const std::uint32_t rows = std::min({o_.model.chunk_on(*backend_), tokens - at, cache.plan().max_span});
      std::vector<std::int32_t> ids(rows);
      for (std::int32_t& id : ids) id = any_token();
      const bool last = at + rows == tokens;
      const Span span[] = {
          {&cache, ids, {}, last ? Wanted::kLast : Wanted::kNothing, Wanted::kNothing, true}};
      run_round(*backend_, model_->geometry().layers.size(), span);
      at += rows;
    }
  }

  // Matrices of all layers and the head as the file has them, each read once a round. (The table is the head;
  // single rows of it as input. What a backend keeps may be more: matrices a second time for prompts.)
  double weight_bytes() const {
    double sum = 0;
    for (const TensorView& t : model_->checkpoint().tensors()) sum += static_cast<double>(t.bytes.size());
    return sum;
  }
  // Two for each weight of the layers' matrices; the head is needed once a prompt.
  double operations_per_token() const {
    double weights = 0;
    for (const LayerWeights& l : model_->weights().layers) {
      for (const Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
        weights += static_cast<double>(m->rows) * m->cols;
    }
    return 2 * weights;
  }
  // Keys and values that a row at this depth reads.
  double cache_bytes(std::uint32_t depth) const {
    const Geometry& g = model_->geometry();
    double sum = 0;
    for (std::size_t i = 0; i < g.layers.size(); ++i) {
      const std::uint32_t keys =
          g.layers[i].kind == LayerKind::kSliding ? std::min(depth + 1, g.window) : depth + 1;
      sum += 2.0 * keys * g.kv_width(i) * backend_->kv_element_bytes(kv_storage(kv_type_, g.layers[i].kind));
    }
    return sum;
  }

  const Options& o_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  KvType kv_type_;
  std::unique_ptr<Assistant> assistant_;
  std::unique_ptr<MtpDrafter> drafter_;
  std::mt19937_64 random_{1};
};

// From which share of drafts on, kept after kept ones, they pay: 1 + a + … + a^drafts is the tokens of a
// round.
std::string worth_it(std::uint32_t drafts, double cost) {
  if (cost >= drafts + 1) return "never";
  double low = 0;
  double high = 1;
  for (int i = 0; i < 40; ++i) {
    const double share = (low + high) / 2;
    double tokens = 0;
    for (std::uint32_t d = 0; d <= drafts; ++d) tokens = tokens * share + 1;
    (tokens < cost ? low : high) = share;
  }
  return fmt::format("where more than {:.0f} % are kept", 100 * high);
}

// Before anything is measured; the sums are formed in 64 bits.
void check_lengths(const Options& o, std::uint32_t trained) {
  std::uint64_t longest = o.tokens;
  for (const std::uint32_t tokens : o.prompt) longest = std::max<std::uint64_t>(longest, tokens);
  for (const std::uint32_t rows : o.rows) longest = std::max<std::uint64_t>(longest, rows);
  for (const std::uint32_t drafts : o.chains) longest = std::max<std::uint64_t>(longest, drafts + 1);
  for (const std::uint32_t depth : o.depths) {
    if (depth + longest > trained)
      fail(ErrorCode::kUsage, "{} tokens at a depth of {} were asked for, the model was trained for {}",
           longest, depth, trained);
  }
}

void run(const Options& o) {
  if (!o.drafts.prompts.empty()) {
    DraftBenchOptions drafts = o.drafts;
    drafts.json = o.json;
    return bench_drafts(o.model, drafts);
  }
  Bench bench(o);
  check_lengths(o, bench.model().geometry().context);
  std::vector<Line> lines;
  const auto add = [&](Line line) {
    lines.push_back(line);
    if (o.json) return;
    if (lines.size() == 1) {
      fmt::print("{}, {}, KV type {}\n{:<8} {:>7} {:>8} {:>8} {:>10} {:>12} {:>8} {:>9}\n",
                 bench.model().profile().title, bench.backend().description(), kv_type_name(bench.kv_type()),
                 "test", "tokens", "depth", "streams", "seconds", "tokens/s", "GB/s", "GFLOP/s");
    }
    fmt::print("{:<8} {:>7} {:>8} {:>8} {:>10.3f} {:>12.2f} {:>8} {:>9}\n", line.test, line.tokens,
               line.depth, line.streams, line.seconds, line.rate,
               line.bandwidth > 0 ? fmt::format("{:.1f}", line.bandwidth / 1e9) : "",
               line.operations > 0 ? fmt::format("{:.0f}", line.operations / 1e9) : "");
    std::fflush(stdout);
  };
  for (const std::uint32_t depth : o.depths) {
    for (const std::uint32_t tokens : o.prompt) {
      if (tokens > 0) add(bench.prompt(tokens, depth));
    }
    for (const std::uint32_t streams : o.streams) {
      if (o.tokens > 0) add(bench.decode(depth, streams));
    }
    for (const std::uint32_t rows : o.rows) add(bench.verify(rows, depth));
    for (const std::uint32_t drafts : o.chains) {
      const Line one = bench.verify(1, depth);
      const Line chain = bench.chain(drafts, depth);
      const Line window = bench.verify(drafts + 1, depth);
      add(one);
      add(chain);
      add(window);
      if (o.json) continue;
      const double cost = (chain.seconds + window.seconds) / one.seconds;
      fmt::print(
          "{} drafts and their verification cost {:.2f} steps (chain {:.2f}, {} rows {:.2f}): they pay {}\n",
          drafts, cost, chain.seconds / one.seconds, drafts + 1, window.seconds / one.seconds,
          worth_it(drafts, cost));
    }
  }
  if (!o.json) return;
  nlohmann::ordered_json j;
  j["model"] = o.model.path();
  j["profile"] = bench.model().profile().name;
  j["backend"] = bench.backend().description();
  j["kv_type"] = kv_type_name(bench.kv_type());
  j["threads"] = o.model.threads == 0 ? ThreadPool::default_threads() : o.model.threads;
  j["repeat"] = o.repeat;
  j["results"] = nlohmann::ordered_json::array();
  for (const Line& l : lines) {
    nlohmann::ordered_json r = {{"test", l.test},       {"tokens", l.tokens},
                                {"depth", l.depth},     {"streams", l.streams},
                                {"seconds", l.seconds}, {"tokens_per_second", l.rate}};
    if (l.bandwidth > 0) r["gigabytes_per_second"] = l.bandwidth / 1e9;
    if (l.operations > 0) r["gigaflops"] = l.operations / 1e9;
    j["results"].push_back(std::move(r));
  }
  fmt::print("{}\n", j.dump(2));
}

}  // namespace

void add_bench(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("bench", "Prompt and decode speed");
  o->model.add_to(*sub);
  o->model.add_drafts_to(*sub);
  sub->add_option("-p,--prompt", o->prompt, "Prompt sizes in tokens; 0 skips")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("-n,--tokens", o->tokens, "Decode steps; 0 skips")->capture_default_str();
  sub->add_option("-d,--depth", o->depths, "Tokens already in the cache")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--streams", o->streams, "Streams decoding in one round")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  sub->add_option("--rows", o->rows, "Rows of one stream in a round, all with logits (a verify window)")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  sub->add_option("--chain", o->chains,
                  "Drafts in a row by the MTP assistant, their verification, and from where on they pay")
      ->delimiter(',')
      ->check(CLI::Range(1, 15));
  sub->add_option("-r,--repeat", o->repeat, "Runs of each test; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI::Option* drafts = sub->add_option(
      "--drafts", o->drafts.prompts,
      "Instead: replies to the prompts of this file, plain and drafted in turn; JSON lines {\"prompt\": "
      "rendered text, \"task\": name}");
  sub->add_option("--draft-tokens", o->drafts.max_tokens, "--drafts: longest reply")
      ->needs(drafts)
      ->capture_default_str();
  sub->add_option("--draft-temperature", o->drafts.temperature, "--drafts: 0 is greedy")
      ->needs(drafts)
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  sub->add_flag("--draft-fixed", o->drafts.fixed, "--drafts: always as many drafts as can be")->needs(drafts);
  sub->add_flag("--json", o->json, "Machine-readable output");
  sub->callback([o] { run(*o); });
}

}  // namespace gem::cli
