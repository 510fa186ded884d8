// gem draft: what an MTP assistant proposes after given tokens, for comparison with other implementations.
#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "formats/safetensors.h"
#include "model/assistant.h"
#include "model/schedule.h"

namespace gem::cli {
namespace {

struct Options {
  ModelOptions model;
  std::string assistant;
  std::string ids;
  std::string out;
  std::uint32_t steps = 7;
  bool before = false;
};

std::int32_t best(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void run(const Options& o) {
  const auto model = Model::load(o.model.path(), {.any_geometry = o.model.any_geometry});
  const auto assistant = Assistant::load(o.assistant, *model, {.any_geometry = o.model.any_geometry});
  const Geometry& g = model->geometry();
  const std::vector<std::int32_t> ids = read_token_ids(o.ids, g.vocab);
  const auto backend = o.model.backend_for(*model);
  const auto drafter = make_assistant_backend(*backend, *assistant);

  const auto total = static_cast<std::uint32_t>(ids.size());
  const std::uint32_t chunk = std::min(o.model.chunk_on(*backend), total);
  const auto cache =
      backend->new_cache(KvPlan::make(g, total, chunk, choose_kv_type(*backend, o.model.kv_type)));
  for (std::uint32_t at = 0; at < total; at += chunk) {
    const std::uint32_t rows = std::min(chunk, total - at);
    const Wanted wanted = at + rows == total ? Wanted::kLast : Wanted::kNothing;
    const Span span[] = {{cache.get(), std::span(ids).subspan(at, rows), {}, wanted, wanted}};
    run_round(*backend, g.layers.size(), span);
  }

  std::vector<std::int32_t> tokens = {best(backend->logits(0))};
  std::vector<float> hidden = backend->read(Activation::kFinal);
  std::vector<float> logits;
  const std::uint32_t position = o.before ? total - 1 : total;
  for (std::uint32_t step = 0; step < o.steps; ++step) {
    const auto last = std::span(hidden).last(g.hidden);
    const ChainRow row[] = {{cache.get(), position, tokens.back(), last}};
    const std::vector<float> next = run_chain_step(*drafter, assistant->geometry(), row);
    const std::span<const float> of_step = drafter->logits(0);
    logits.insert(logits.end(), of_step.begin(), of_step.end());
    tokens.push_back(best(of_step));
    hidden.insert(hidden.end(), next.begin(), next.end());
  }
  const std::uint64_t steps = o.steps;
  write_safetensors(o.out,
                    {{"tokens", Dtype::kI32, {steps + 1}, std::as_bytes(std::span(tokens))},
                     {"logits", Dtype::kF32, {steps, g.vocab}, std::as_bytes(std::span(logits))},
                     {"hidden", Dtype::kF32, {steps + 1, g.hidden}, std::as_bytes(std::span(hidden))}});
}

}  // namespace

void add_draft(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("draft", "What an MTP assistant proposes after given tokens, as a safetensors file");
  o->model.add_to(*sub, true);
  sub->add_option("--assistant", o->assistant, "The model's MTP assistant")->required();
  sub->add_option("--ids", o->ids, "File with a JSON array of accepted token ids (- reads standard input)")
      ->required();
  sub->add_option("--steps", o->steps, "Steps of the chain")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  sub->add_option("--out", o->out,
                  "Safetensors file to write: 'tokens', I32 [steps + 1], the model's next token, then the "
                  "drafts; 'logits', F32 [steps, vocab]; 'hidden', F32 [steps + 1, width], the model's row "
                  "after the final norm, then the assistant's")
      ->required();
  sub->add_flag("--position-before", o->before,
                "Queries at the last accepted position instead of the one after it");
  sub->callback([o] { run(*o); });
}

}  // namespace gem::cli
