#include "server/service.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <thread>

#include "base/error.h"
#include "server/api/api_error.h"
#include "server/service_work.h"

namespace gem::server {
namespace {

constexpr const char* kStopping = "the server is stopping";

struct Slot {
  KeptState state;  // idle: what a later prompt may resume
  bool busy = false;
  std::uint64_t last_used = 0;  // 0: never
  ServiceStatus::Slot shown;
  std::uint32_t positions = 0;  // busy: of its cache
};

// What the engine's thread and the clients' threads share. Generations keep it alive beyond the service.
struct Shared {
  std::mutex mutex;
  std::condition_variable work;  // for the engine's thread
  std::condition_variable idle;  // nothing runs or waits
  std::deque<std::shared_ptr<Work>> queue;
  std::vector<std::shared_ptr<Work>> withdrawn;  // left the queue unserved, to be concluded
  std::size_t arrivals = 0;                      // not yet told to the observer
  std::vector<Slot> slots;
  std::size_t running = 0;     // replies that have a slot
  bool woken = false;          // a kept prompt was read from disk, or a reply is to be cancelled
  std::size_t unfinished = 0;  // whose results are still to come
  std::uint64_t rounds = 0;
  PromptCache::Status prompt_cache;
  std::uint64_t uses = 0;
  double reply_seconds = 1;  // of recent replies, for Retry-After
  bool draining = false;
  bool stopping = false;
  std::string why_stopping = kStopping;

  void conclude(Work& which, FinishReason reason, std::string error) {
    which.conclude(reason, std::move(error));
    const std::lock_guard lock(mutex);
    if (--unfinished == 0) idle.notify_all();
  }
  // Its place in the queue is free at once; a running reply ends before the next round.
  void cancel(const std::shared_ptr<Work>& which) {
    which->ask_to_cancel();
    const std::lock_guard lock(mutex);
    const auto found = std::find(queue.begin(), queue.end(), which);
    if (found != queue.end()) {
      withdrawn.push_back(*found);
      queue.erase(found);
    }
    woken = true;
    work.notify_one();
  }
  void wake() {
    const std::lock_guard lock(mutex);
    woken = true;
    work.notify_one();
  }
};

class Handle : public Generation {
 public:
  Handle(std::shared_ptr<Work> work, std::shared_ptr<Shared> shared)
      : work_(std::move(work)), shared_(std::move(shared)) {}
  ~Handle() override {
    work_->forget_client();
    shared_->cancel(work_);
  }
  void on_ready(std::function<void()> wake) override { work_->on_ready(std::move(wake)); }
  GenerationUpdate take() override { return work_->take(); }
  void cancel() override { shared_->cancel(work_); }
  bool end_thought() override { return work_->end_thought(); }

 private:
  std::shared_ptr<Work> work_;
  std::shared_ptr<Shared> shared_;
};

// What a client may know of a failure.
std::string client_text(const std::exception& e) {
  if (dynamic_cast<const Error*>(&e) != nullptr) return e.what();
  if (dynamic_cast<const std::bad_alloc*>(&e) != nullptr) return "there is not enough memory for this reply";
  return "the reply failed";
}

}  // namespace

struct Service::Impl {
  Impl(Session& s, ServiceOptions o, ServiceObserver* watcher)
      : session(s), engine(s.engine()), options(o), observer(watcher), shared(std::make_shared<Shared>()) {
    shared->slots.resize(engine.options().max_streams);
    for (std::size_t i = 0; i < shared->slots.size(); ++i) shared->slots[i].shown.id = i;
    if (const PromptCache* kept = engine.options().prompt_cache) {
      shared->prompt_cache = kept->status();
      if (kept->store() != nullptr) kept->store()->on_loaded([shared = shared] { shared->wake(); });
    }
    thread = std::thread([this] { serve(); });
  }

  void serve();
  void admit();
  void start(const std::shared_ptr<Work>& work, KeptState state);
  void start_fetched();
  std::size_t choose_slot(Work& work) const;
  std::uint32_t at_hand(const Work& work) const;
  bool is_being_read(const Work& work) const;
  void round();
  void end(Work& work, FinishReason reason, std::string error, KeptState unused = {});
  void note_progress();
  void note_loss(const std::exception& e);
  void end_all();

  Session& session;
  Engine& engine;
  const ServiceOptions options;
  ServiceObserver* const observer;
  const std::shared_ptr<Shared> shared;
  // The engine's thread
  std::vector<std::shared_ptr<Work>> running;
  struct Fetching {  // a reply whose prompt is being read from disk; it has a slot, whose state this is
    std::shared_ptr<Work> work;
    KeptState state;
    std::shared_ptr<const CacheStore::Load> load;
  };
  std::vector<Fetching> fetching;
  std::string lost;  // why nothing can be served any more
  std::mutex join_mutex;
  std::thread thread;
};

// The engine's thread: it sleeps while there is nothing to do.
void Service::Impl::serve() {
  for (;;) {
    std::vector<std::shared_ptr<Work>> withdrawn;
    std::size_t arrivals = 0;
    bool stopping = false;
    {
      std::unique_lock lock(shared->mutex);
      shared->work.wait(lock, [&] {
        return shared->stopping || shared->woken || !shared->withdrawn.empty() || !running.empty() ||
               (!shared->queue.empty() && shared->running < shared->slots.size());
      });
      shared->woken = false;
      withdrawn.swap(shared->withdrawn);
      arrivals = std::exchange(shared->arrivals, 0);
      stopping = shared->stopping;
    }
    for (; observer != nullptr && arrivals > 0; --arrivals) observer->on_queued();
    for (const auto& work : withdrawn) shared->conclude(*work, FinishReason::kCancelled, {});
    if (stopping) {
      end_all();
      if (!lost.empty() && options.on_lost) options.on_lost(lost);
      return;
    }
    // Cancelled ones leave before others come, so that their slots are free.
    for (const auto& work : running) {
      if (!work->cancel_asked()) continue;
      engine.cancel(*work->stream());
      end(*work, FinishReason::kCancelled, {});
    }
    std::erase_if(running, [](const auto& work) { return work->finished(); });
    start_fetched();
    admit();
    if (!running.empty()) round();
  }
}

void Service::Impl::admit() {
  std::size_t passed_over = 0;  // that wait for a prompt which somebody reads: a round tells when it is read
  for (;;) {
    std::shared_ptr<Work> work;
    KeptState state;
    std::size_t slot = 0;
    {
      const std::lock_guard lock(shared->mutex);
      if (shared->queue.size() <= passed_over || shared->running == shared->slots.size()) return;
      const auto next = shared->queue.begin() + static_cast<std::ptrdiff_t>(passed_over);
      if (is_being_read(**next)) {
        ++passed_over;
        continue;
      }
      work = std::move(*next);
      shared->queue.erase(next);
      slot = choose_slot(*work);
      Slot& chosen = shared->slots[slot];
      chosen.busy = true;
      chosen.shown = {.id = slot, .busy = true, .prompt_tokens = work->prompt_tokens()};
      chosen.positions = 0;
      state = std::exchange(chosen.state, {});
      ++shared->running;
    }
    work->take_slot(slot);
    start(work, std::move(state));
  }
}

// Those whose prompts have been read from disk, or whose clients do not wait any more.
void Service::Impl::start_fetched() {
  for (Fetching& f : std::exchange(fetching, {})) {
    if (f.work->cancel_asked()) {
      end(*f.work, FinishReason::kCancelled, {}, std::move(f.state));
    } else if (f.load->done()) {
      start(f.work, std::move(f.state));
    } else {
      fetching.push_back(std::move(f));
    }
  }
}

// Tokens of its prompt that it would resume now.
std::uint32_t Service::Impl::at_hand(const Work& work) const {
  const GenerationJob& job = work.job();
  const PromptCache* const kept = engine.options().prompt_cache;
  std::uint32_t most = kept != nullptr ? kept->longest(engine.cache_plan(), job.request.prompt) : 0;
  for (const Slot& slot : shared->slots) {
    if (!slot.busy) most = std::max(most, engine.resumable(slot.state, job.request.prompt));
  }
  return most;
}

// Whether a running reply reads a prompt just now that this one begins with, as several replies to one
// request do: it will be kept when it has been read, and then need not be read again.
bool Service::Impl::is_being_read(const Work& work) const {
  if (engine.options().prompt_cache == nullptr || !work.job().reuse_prompt) return false;
  constexpr std::uint32_t kWorthWaiting = 32;  // tokens
  const std::vector<std::int32_t>& prompt = work.job().request.prompt;
  for (const auto& other : running) {
    const Stream& stream = *other->stream();
    if (!stream.keeps_prompt() || stream.position() >= other->prompt_tokens()) continue;
    const std::span<const std::int32_t> theirs(stream.tokens());
    const std::uint32_t common =
        std::min(common_tokens(theirs, prompt), static_cast<std::uint32_t>(prompt.size()) - 1);
    // Nearer to their prompt's end the state cannot be left.
    if (common + KvPlan::kCheckpointMargin < other->prompt_tokens() || common < stream.position()) continue;
    if (common >= at_hand(work) + kWorthWaiting) return true;
  }
  return false;
}

// The idle slot whose state gives the most of the prompt, else the one that has not been used for the longest
// time. A state that the prompt would keep less than half of is left alone while a slot without one is free.
std::size_t Service::Impl::choose_slot(Work& work) const {
  const std::vector<Slot>& slots = shared->slots;
  const GenerationJob& job = work.job();
  std::size_t oldest = slots.size(), best = slots.size();
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].busy) continue;
    if (oldest == slots.size() || slots[i].last_used < slots[oldest].last_used) oldest = i;
    const std::uint32_t gain = job.reuse_prompt ? engine.resumable(slots[i].state, job.request.prompt) : 0;
    if (gain > most) {
      most = gain;
      best = i;
    }
  }
  // What the prompt cache has goes into the slot that is missed the least.
  if (const PromptCache* kept = engine.options().prompt_cache;
      kept != nullptr && job.reuse_prompt &&
      (kept->longest(engine.cache_plan(), job.request.prompt) > most ||
       kept->longest_on_disk(engine.cache_plan(), job.request.prompt, most) > most))
    return oldest;
  if (best == slots.size()) return oldest;
  const bool spare = slots[oldest].state.tokens.empty();
  return spare && most < slots[best].state.prompt_rows / 2 ? oldest : best;
}

// Its slot is taken and `state` is that slot's.
void Service::Impl::start(const std::shared_ptr<Work>& work, KeptState state) {
  std::string error;
  try {
    if (work->job().reuse_prompt) {
      if (auto load = engine.fetch_for(state, work->job().request.prompt)) {
        fetching.push_back({work, std::move(state), std::move(load)});
        return;
      }
      engine.resume_from_cache(state, work->job().request.prompt);
    } else {
      state.tokens.clear();  // its memory serves, its contents do not
      work->job().request.keep_prompt = false;
    }
    work->started(engine.open(std::move(work->job().request), *work, std::move(state)));
    running.push_back(work);
    return;
  } catch (const std::exception& e) {
    spdlog::error("{} could not be started: {}", work->log_name(), e.what());
    note_loss(e);
    error = client_text(e);
  }
  end(*work, FinishReason::kFailed, std::move(error));
}

void Service::Impl::round() {
  std::string error;
  try {
    engine.step();
    if (observer != nullptr) {
      const RoundInfo& info = engine.last_round();
      observer->on_round(info.rows, info.streams, info.seconds);
      if (info.drafts.rounds > 0) observer->on_drafts(info.drafts);
    }
  } catch (const std::exception& e) {
    spdlog::error("a round failed, {} replies end with it: {}", running.size(), e.what());
    note_loss(e);
    error = client_text(e);
    for (const auto& work : running) engine.cancel(*work->stream());  // those that are still open
  }
  note_progress();
  for (const auto& work : running) {
    if (!error.empty()) {
      end(*work, FinishReason::kFailed, error);
    } else if (work->stream()->finished()) {
      end(*work, FinishReason::kStop, {});
    } else {
      work->publish();
    }
  }
  std::erase_if(running, [](const auto& work) { return work->finished(); });
}

// Before the clients hear of the round, so that what they then ask for includes it.
void Service::Impl::note_progress() {
  const std::lock_guard lock(shared->mutex);
  ++shared->rounds;
  if (const PromptCache* kept = engine.options().prompt_cache) shared->prompt_cache = kept->status();
  for (const auto& work : running) {
    Slot& slot = shared->slots[work->slot()];
    const StreamTimes& times = work->stream()->times();
    slot.shown.cached = times.reused;
    slot.shown.prompt_done = times.reused + times.prompt_tokens;
    slot.shown.generated = times.reply_tokens;
    slot.positions = work->stream()->position();
  }
}

// Frees the slot, keeping the state for a later prompt (`unused`: of a reply that did not begin), and hands
// the result over.
void Service::Impl::end(Work& work, FinishReason reason, std::string error, KeptState unused) {
  // After a failure it is not known what the cache holds.
  KeptState state = work.stream() != nullptr ? work.stream()->take_state() : std::move(unused);
  if (!error.empty()) state = {};
  if (!work.job().reuse_prompt) state.tokens.clear();
  {
    const std::lock_guard lock(shared->mutex);
    Slot& slot = shared->slots[work.slot()];
    slot.busy = false;
    slot.last_used = state.tokens.empty() ? 0 : ++shared->uses;
    slot.shown = {.id = work.slot(), .kept = static_cast<std::uint32_t>(state.tokens.size())};
    slot.positions = slot.shown.kept;
    slot.state = std::move(state);
    --shared->running;
    const double seconds = work.seconds_since_queued() - work.queue_seconds();
    shared->reply_seconds += (seconds - shared->reply_seconds) / 8;
  }
  shared->conclude(work, reason, std::move(error));
}

// Without its device nothing can be done: the service stops.
void Service::Impl::note_loss(const std::exception& e) {
  const auto* const error = dynamic_cast<const Error*>(&e);
  if (error == nullptr || error->code() != ErrorCode::kLost) return;
  lost = e.what();
  const std::lock_guard lock(shared->mutex);
  shared->stopping = true;
  shared->why_stopping = lost;
}

void Service::Impl::end_all() {
  std::deque<std::shared_ptr<Work>> queued;
  std::vector<std::shared_ptr<Work>> withdrawn;
  std::string why;
  {
    const std::lock_guard lock(shared->mutex);
    why = shared->why_stopping;
    queued.swap(shared->queue);
    withdrawn.swap(shared->withdrawn);
  }
  const FinishReason reason = lost.empty() ? FinishReason::kCancelled : FinishReason::kFailed;
  for (const auto& work : running) {
    try {
      engine.cancel(*work->stream());
    } catch (const std::exception& e) {  // a prompt's chunk could not be brought to its end
      spdlog::error("{} could not be cancelled: {}", work->log_name(), e.what());
    }
    end(*work, reason, why);
  }
  running.clear();
  for (Fetching& f : fetching) end(*f.work, reason, why);
  fetching.clear();
  for (const auto& work : withdrawn) shared->conclude(*work, FinishReason::kCancelled, {});
  for (const auto& work : queued) shared->conclude(*work, reason, why);
}

Service::Service() = default;

Service::Service(Session& session, ServiceOptions options, ServiceObserver* observer)
    : impl_(std::make_unique<Impl>(session, options, observer)) {}

Service::~Service() {
  Service::stop();
}

std::vector<std::unique_ptr<Generation>> Service::submit(std::vector<GenerationJob> jobs) {
  const std::uint32_t context = impl_->engine.options().context;
  for (const GenerationJob& job : jobs) {
    if (job.request.prompt.size() >= context)
      throw ApiError::context_exceeded(job.request.prompt.size(), context);
    try {
      impl_->engine.check(job.request);
    } catch (const Error& e) {
      throw ApiError::from(e);
    }
  }
  const auto& shared = impl_->shared;
  std::vector<std::shared_ptr<Work>> works;
  std::vector<std::unique_ptr<Generation>> generations;
  works.reserve(jobs.size());
  generations.reserve(jobs.size());
  for (GenerationJob& job : jobs) {
    works.push_back(std::make_shared<Work>(std::move(job), impl_->session.tokenizer(), impl_->observer));
  }
  {
    const std::lock_guard lock(shared->mutex);
    if (shared->draining || shared->stopping) throw ApiError::unavailable(shared->why_stopping);
    const std::size_t active = shared->running + shared->queue.size();
    if (active + works.size() > shared->slots.size() + impl_->options.queue) {
      const double wait = shared->reply_seconds * static_cast<double>(shared->queue.size() + 1) /
                          static_cast<double>(shared->slots.size());
      throw ApiError::queue_full(static_cast<unsigned>(std::clamp(std::ceil(wait), 1.0, 60.0)));
    }
    for (const auto& work : works) shared->queue.push_back(work);
    shared->arrivals += works.size();
    shared->unfinished += works.size();
  }
  shared->work.notify_one();
  for (auto& work : works) generations.push_back(std::make_unique<Handle>(std::move(work), shared));
  return generations;
}

ServiceStatus Service::status() const {
  const Shared& shared = *impl_->shared;
  ServiceStatus status;
  const std::lock_guard lock(impl_->shared->mutex);
  status.slots.reserve(shared.slots.size());
  for (const Slot& slot : shared.slots) {
    status.slots.push_back(slot.shown);
    status.kv_used += slot.positions;
  }
  status.kv_total = std::uint64_t{impl_->engine.options().context} * shared.slots.size();
  status.queued = shared.queue.size();
  status.running = shared.running;
  status.rounds = shared.rounds;
  status.prompt_cache = shared.prompt_cache;
  // What is on disk changes between rounds too.
  if (const PromptCache* kept = impl_->engine.options().prompt_cache;
      kept != nullptr && kept->store() != nullptr)
    status.prompt_cache.disk = kept->store()->status();
  status.stopping = shared.draining || shared.stopping;
  return status;
}

std::optional<std::uint32_t> Service::erase_slot(std::size_t id) {
  KeptState state;  // freed outside the lock
  const std::lock_guard lock(impl_->shared->mutex);
  if (id >= impl_->shared->slots.size()) return std::nullopt;
  Slot& slot = impl_->shared->slots[id];
  if (slot.busy) return std::nullopt;
  state = std::exchange(slot.state, {});
  slot.shown.kept = 0;
  slot.positions = 0;
  slot.last_used = 0;
  return static_cast<std::uint32_t>(state.tokens.size());
}

void Service::drain() {
  const std::lock_guard lock(impl_->shared->mutex);
  impl_->shared->draining = true;
}

bool Service::wait_idle(std::chrono::milliseconds limit) {
  std::unique_lock lock(impl_->shared->mutex);
  return impl_->shared->idle.wait_for(lock, limit, [&] { return impl_->shared->unfinished == 0; });
}

void Service::stop() {
  if (impl_ == nullptr) return;
  {
    const std::lock_guard lock(impl_->shared->mutex);
    impl_->shared->stopping = true;
  }
  impl_->shared->work.notify_one();
  const std::lock_guard lock(impl_->join_mutex);
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace gem::server
