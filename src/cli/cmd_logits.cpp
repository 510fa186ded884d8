// gem logits: the logits of given token ids, for comparison with other implementations.
#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "formats/safetensors.h"

namespace gem::cli {
namespace {

struct Options {
  ModelOptions model;
  std::string ids;
  std::string out;
  std::string rows = "all";
};

void run(const Options& o) {
  const auto model = Model::load(o.model.path(), {.any_geometry = o.model.any_geometry});
  const Geometry& g = model->geometry();
  const std::vector<std::int32_t> ids = read_token_ids(o.ids, g.vocab);
  const auto backend = o.model.backend_for(*model);
  const auto total = static_cast<std::uint32_t>(ids.size());
  const std::uint32_t chunk = std::min(o.model.chunk_on(*backend), total);
  const auto cache =
      backend->new_cache(KvPlan::make(g, total, chunk, choose_kv_type(*backend, o.model.kv_type)));
  const bool all = o.rows == "all";
  std::vector<float> logits;
  for (std::uint32_t at = 0; at < total; at += chunk) {
    const std::uint32_t rows = std::min(chunk, total - at);
    const Wanted wanted = all ? Wanted::kAll : at + rows == total ? Wanted::kLast : Wanted::kNothing;
    const Span span[] = {{cache.get(), std::span(ids).subspan(at, rows), {}, wanted, Wanted::kNothing}};
    run_round(*backend, g.layers.size(), span);
    if (wanted == Wanted::kNothing) continue;
    const std::vector<float> part = backend->read(Activation::kLogits);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  const std::uint64_t rows = all ? total : 1;
  write_safetensors(o.out, {{"logits", Dtype::kF32, {rows, g.vocab}, std::as_bytes(std::span(logits))}});
}

}  // namespace

void add_logits(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("logits", "Logits of given token ids, as a safetensors file");
  o->model.add_to(*sub, true);
  sub->add_option("--ids", o->ids, "File with a JSON array of token ids (- reads standard input)")
      ->required();
  sub->add_option("--out", o->out,
                  "Safetensors file to write: tensor 'logits', F32 [rows, vocab], after the soft cap")
      ->required();
  sub->add_option("--rows", o->rows, "all or last")
      ->check(CLI::IsMember({"all", "last"}))
      ->capture_default_str();
  sub->callback([o] { run(*o); });
}

}  // namespace gem::cli
