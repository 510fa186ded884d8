#include "engine/session.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/system_memory.h"
#include "engine/cache_identity.h"
#include "engine/cache_store.h"
#include "engine/draft/combined.h"
#include "engine/draft/find.h"
#include "engine/draft/mtp.h"

namespace gem {

std::uint32_t default_streams(const Model& model, const Backend& backend, MemoryOptions options,
                              std::optional<std::uint64_t> room, std::uint32_t most) {
  for (options.streams = most; options.streams > 1; --options.streams) {
    if (!room || plan_memory(model, backend, options).total() <= *room) break;
  }
  return std::max(options.streams, 1u);
}

std::uint64_t default_prompt_cache(const MemoryPlan& plan, std::optional<std::uint64_t> room) {
  constexpr std::uint64_t kMost = std::uint64_t{8} << 30;
  const std::uint64_t total = plan.total();
  if (!room) return kMost;
  return *room > total ? std::min(kMost, (*room - total) / 2) : 0;
}

// Null where nobody drafts; sets drafting_ in both cases.
std::unique_ptr<Drafter> Session::make_drafter(const SessionOptions& options) {
  const SessionDrafts& d = options.drafts;
  drafting_ = "none";
  if (!d.on || d.most == 0u) return nullptr;
  if (!backend_->drafts()) {
    if (!d.assistant.empty())
      fail(ErrorCode::kUsage, "the {} backend does not draft yet: no assistant can be used",
           backend_->name());
    drafting_ = fmt::format("none (the {} backend does not draft yet)", backend_->name());
    return nullptr;
  }
  const AdmissionOptions admission{.any_geometry = options.any_geometry};
  FoundAssistant found = open_assistant(*model_, d.assistant, d.find, admission);
  assistant_ = std::move(found.assistant);
  std::unique_ptr<Drafter> drafter;
  const CopyOptions copies{.most = d.most.value_or(CopyOptions{}.most)};
  if (assistant_ != nullptr) {
    drafter = std::make_unique<MtpDrafter>(*assistant_, *backend_,
                                           MtpOptions{.most = d.most.value_or(MtpOptions{}.most)});
    if (d.copy) drafter = std::make_unique<CombinedDrafter>(std::move(drafter), copies);
  } else if (d.copy) {
    drafter = std::make_unique<CopyDrafter>(copies);
  }
  drafting_ = drafter != nullptr ? drafter->description() : "none";
  if (assistant_ == nullptr) drafting_ += fmt::format(" (no assistant: {})", found.why_none);
  return drafter;
}

// Completes `plan` and sets memory_, with what can be given up given up where it must be. False: it does not
// fit all the same.
bool Session::fit(const SessionOptions& options, MemoryOptions& plan) {
  // Where the weights, caches and scratch go; the prompt cache and the undo logs are always in the host's
  // memory.
  const auto device = backend_->device_memory();
  const auto room = device ? device : available_memory();
  if (options.streams == 0) plan.streams = default_streams(*model_, *backend_, plan, room);
  memory_ = plan_memory(*model_, *backend_, plan);
  if (room && memory_.total() > *room && backend_->use_less_memory())
    memory_ = plan_memory(*model_, *backend_, plan);
  if (room && memory_.total() > *room) {
    plan.checkpoints = false;
    memory_ = plan_memory(*model_, *backend_, plan);
  }
  return !room || memory_.total() <= *room;
}

std::unique_ptr<Session> Session::open(const SessionOptions& options) {
  std::unique_ptr<Session> s(new Session());
  s->model_ = Model::load(options.model, {.any_geometry = options.any_geometry});
  const Geometry& g = s->model_->geometry();
  if (options.context > g.context) {
    fail(ErrorCode::kUsage, "a context of {} was asked for, {} was trained for {}", options.context,
         s->model_->profile().title, g.context);
  }
  const std::uint32_t wanted = options.context != 0 ? options.context : std::min(g.context, kDefaultContext);
  const auto notice = [&](const std::string& text) {
    if (options.notice) options.notice(text);
  };
  std::unique_ptr<Drafter> drafter;
  MemoryOptions plan;
  // Takes the backend and the longest context that fits. What was wanted and does not fit where none does.
  const auto open_backend = [&](BackendKind kind, std::optional<int> device) {
    drafter.reset();  // it uses the backend
    s->backend_ = make_backend(kind, *s->model_, options.threads, device);
    if (options.wrap_backend) s->backend_ = options.wrap_backend(std::move(s->backend_));
    drafter = s->make_drafter(options);
    std::optional<MemoryPlan> refused;
    for (std::uint32_t context = wanted;; context /= 2) {
      const std::uint32_t chunk =
          std::clamp(options.chunk != 0 ? options.chunk : s->backend_->preferred_chunk(), 1u, context);
      plan = {.context = context, .streams = options.streams, .chunk = chunk, .kv_type = options.kv_type};
      if (drafter != nullptr) {
        plan.drafts = std::min(options.drafts.most.value_or(CopyOptions{}.most), chunk - 1);
        plan.drafter = drafter->memory(options.streams == 0 ? kMostDefaultStreams : options.streams);
      }
      if (s->fit(options, plan)) {
        if (refused)
          notice(fmt::format("a context of {}: the memory does not hold one of {}", context, wanted));
        return std::optional<MemoryPlan>();
      }
      if (!refused) refused = s->memory_;
      if (options.context != 0 || context / 2 < kLeastDefaultContext) return refused;
    }
  };
  std::optional<MemoryPlan> refused = open_backend(options.backend, options.device);
  if (refused && options.backend_is_default && !options.device && s->backend_->device_memory()) {
    notice(
        fmt::format("{} runs on the cpu: it needs {} bytes of the device's memory at a context of {}, {} are "
                    "available",
                    options.model, refused->total(), wanted, *s->backend_->device_memory()));
    refused = open_backend(BackendKind::kCpu, std::nullopt);
  }
  const auto device = s->backend_->device_memory();
  if (refused) {
    fail(ErrorCode::kRefused,
         "{} at a context of {} needs {} bytes of {}memory, {} are available; a shorter --context needs less",
         options.model, wanted, refused->total(), device ? "the device's " : "",
         device ? *device : available_memory().value_or(0));
  }
  const std::uint32_t context = plan.context;
  const std::uint32_t chunk = plan.chunk;
  s->tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::from_checkpoint(s->model_->checkpoint()));
  if (static_cast<std::uint32_t>(s->tokenizer_->size()) > g.vocab) {
    fail(ErrorCode::kRefused, "{}: the tokenizer has {} pieces, the table {} rows", options.model,
         s->tokenizer_->size(), g.vocab);
  }
  MemoryPlan on_host = s->memory_;
  if (device) on_host.weights = on_host.kv_stream = on_host.scratch = 0;
  const auto host_room = available_memory();
  on_host.prompt_cache = options.prompt_cache.value_or(default_prompt_cache(on_host, host_room));
  s->memory_.prompt_cache = on_host.prompt_cache;
  if (host_room && on_host.total() > *host_room) {
    fail(ErrorCode::kRefused,
         "a prompt cache of {} bytes beside the {} that the model needs: {} are available",
         on_host.prompt_cache, on_host.total() - on_host.prompt_cache, *host_room);
  }
  std::unique_ptr<CacheStore> store;
  if (!options.cache_folder.empty()) {
    if (s->memory_.prompt_cache == 0)
      fail(ErrorCode::kUsage, "prompts kept in {} need a prompt cache in memory too, and there is none",
           options.cache_folder);
    const KvPlan kv = KvPlan::make(g, context, chunk, s->memory_.kv_type);
    store = std::make_unique<CacheStore>(
        CacheStoreOptions{.folder = options.cache_folder,
                          .budget = options.cache_disk,
                          .identity = cache_identity(*s->model_, *s->backend_, kv),
                          .plan = kv,
                          .log = options.cache_log,
                          .before_load = options.before_cache_load});
  }
  if (s->memory_.prompt_cache != 0)
    s->prompt_cache_ = std::make_unique<PromptCache>(s->memory_.prompt_cache, std::move(store));
  // Now that nothing is refused any more, and not with the first reply: whoever waits for the model to be
  // ready waits for this.
  s->backend_->load_weights(options.load_progress);
  if (drafter != nullptr) drafter->load();
  s->engine_ = std::make_unique<Engine>(*s->model_, *s->backend_,
                                        EngineOptions{.context = context,
                                                      .chunk = chunk,
                                                      .max_streams = plan.streams,
                                                      .checkpoints = plan.checkpoints,
                                                      .kv_type = s->memory_.kv_type,
                                                      .prompt_cache = s->prompt_cache_.get()});
  if (drafter != nullptr) {
    s->engine_->draft_with(std::move(drafter), {.most = options.drafts.most,
                                                .sampling = options.drafts.sampling,
                                                .adaptive = options.drafts.adaptive,
                                                .warn = options.drafts.warn});
  }
  return s;
}

void Session::abandon_cache_writes() {
  if (prompt_cache_ != nullptr && prompt_cache_->store() != nullptr) prompt_cache_->store()->abandon();
}

SamplingParams Session::default_sampling() const {
  SamplingParams p;
  const Checkpoint& c = model_->checkpoint();
  if (const auto t = c.number("general.sampling.temp"); t && *t >= 0 && *t <= 100) p.temperature = *t;
  if (const auto k = c.integer("general.sampling.top_k"); k && *k >= 0 && *k <= 1 << 24)
    p.top_k = static_cast<std::uint32_t>(*k);
  if (const auto q = c.number("general.sampling.top_p"); q && *q >= 0 && *q <= 1) p.top_p = *q;
  if (const auto q = c.number("general.sampling.min_p"); q && *q >= 0 && *q <= 1) p.min_p = *q;
  if (const auto r = c.number("general.sampling.penalty_repeat"); r && *r > 0 && *r <= 100)
    p.repetition_penalty = *r;
  return p;
}

GenerationRequest Session::request(std::vector<std::int32_t> prompt, SamplingParams sampling) const {
  GenerationRequest r;
  r.prompt = std::move(prompt);
  r.sampling = std::move(sampling);
  r.end_tokens.assign(tokenizer_->end_of_generation().begin(), tokenizer_->end_of_generation().end());
  r.suppressed.assign(tokenizer_->suppressed().begin(), tokenizer_->suppressed().end());
  // Rows of the table without a piece are never drawn.
  for (std::uint32_t id = static_cast<std::uint32_t>(tokenizer_->size()); id < model_->geometry().vocab;
       ++id) {
    r.suppressed.push_back(static_cast<std::int32_t>(id));
  }
  return r;
}

}  // namespace gem
