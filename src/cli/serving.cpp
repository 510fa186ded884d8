#include "cli/serving.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <chrono>
#include <ctime>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/error.h"

namespace gem::cli {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kSlice =
    50ms;  // between looks at the signals while something is waited for

// prefix + 32 letters and digits, from the system's own source of randomness.
std::string new_id(const char* prefix) {
  static constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  static std::mutex mutex;
  static std::mt19937_64 generator{[] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }()};
  std::uniform_int_distribution<std::size_t> pick(0, kLetters.size() - 1);
  std::string id = prefix;
  const std::lock_guard lock(mutex);
  for (int i = 0; i < 32; ++i) id += kLetters[pick(generator)];
  return id;
}

}  // namespace

Serving::Serving(const ServerOptions& options)
    : options_(options),
      name_(options.model_name()),
      metrics_({.vllm_names = options.vllm_names, .model_name = name_}),
      app_(options.app(), metrics_, server::AccessLog(options.log.format)),
      http_(std::make_unique<server::HttpServer>(app_, options.http)) {
  http_->start();
}

Serving::~Serving() {
  stop();
}

void Serving::load() {
  SessionOptions session = options_.model.session();
  session.streams = options_.parallel;
  session.prompt_cache.reset();
  if (options_.cache_ram) session.prompt_cache = *options_.cache_ram << 20;
  session.cache_folder = options_.cache_folder;
  if (options_.cache_disk) session.cache_disk = *options_.cache_disk << 20;
  session.cache_log = [](const std::string& line) { spdlog::warn("{}", line); };
  const auto start = std::chrono::steady_clock::now();
  auto last = start;
  session.load_progress = [&](std::uint64_t done, std::uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last < std::chrono::seconds(5)) return;
    last = now;
    spdlog::info("loading weights: {} of {}, {:.0f} s", human_bytes(done), human_bytes(total),
                 std::chrono::duration<double>(now - start).count());
  };
  session.drafts.warn = session.notice = [](const std::string& text) { spdlog::warn("{}", text); };
  session_ = Session::open(session);
  spdlog::info("drafts: {}", session_->drafting());
  if (const PromptCache* kept = session_->prompt_cache(); kept != nullptr && kept->store() != nullptr) {
    const CacheStore::Status disk = kept->store()->status();
    spdlog::info("kept prompts in {}: {} of this model, {} of at most {}", options_.cache_folder, disk.states,
                 human_bytes(disk.bytes), human_bytes(disk.budget));
  }
  const auto on_lost = [this](const std::string& why) {
    const std::lock_guard lock(mutex_);
    lost_ = why;
    if (wake_) wake_();
  };
  service_ = std::make_unique<server::Service>(
      *session_, server::ServiceOptions{.queue = options_.queue, .on_lost = on_lost}, &metrics_);
  server::RequestDefaults defaults;
  defaults.sampling = options_.sampling.over(session_->default_sampling());
  defaults.sampling.validate(session_->model().geometry().vocab);
  defaults.thinking = options_.think;
  defaults.thinking_budget = options_.thinking_budget;
  defaults.max_n = session_->memory().streams;
  defaults.vocab = session_->model().geometry().vocab;
  app_.serve({.session = *session_,
              .service = *service_,
              .card = {.id = name_, .created = std::time(nullptr), .fingerprint = "gem-" GEM_VERSION},
              .defaults = std::move(defaults),
              .new_id = new_id,
              .now = [] { return static_cast<std::int64_t>(std::time(nullptr)); }});
}

void Serving::load(SignalQueue& signals) {
  std::exception_ptr failure;
  std::thread loader([&] {
    try {
      load();
    } catch (...) {
      failure = std::current_exception();
    }
    signals.wake();
  });
  if (const int signal = signals.wait(); signal != SignalQueue::kWoken) {
    // Nothing is being served yet, and opening a model cannot be cut short.
    http_->stop();
    die_of(signal);
  }
  loader.join();
  if (failure) std::rethrow_exception(failure);
  const std::lock_guard lock(mutex_);
  wake_ = [&signals] { signals.wake(); };
  if (!lost_.empty()) wake_();
}

std::string Serving::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

std::string Serving::description() const {
  const MemoryPlan& m = session_->memory();
  return fmt::format(
      "{} ({}), context {}, {} slot{}, queue {}; memory {}: weights {}, KV cache {}, scratch {}, drafter {}, "
      "tables {}, "
      "kept prompts up to {}",
      name_, session_->model().profile().title, m.context, m.streams, m.streams == 1 ? "" : "s",
      options_.queue, human_bytes(m.total()), human_bytes(m.weights),
      human_bytes((m.kv_stream + m.kv_undo) * m.streams), human_bytes(m.scratch), human_bytes(m.drafter),
      human_bytes(m.tables), human_bytes(m.prompt_cache));
}

bool Serving::drain(std::chrono::milliseconds limit, SignalQueue& signals) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  // Stays reachable while replies run, so that late requests are told; then the connections go.
  app_.drain();
  service_->drain();
  const auto ended = [&](const auto& wait_for) {
    while (!wait_for(kSlice)) {
      if (signals.wait(0ms) || std::chrono::steady_clock::now() >= deadline) return false;
    }
    return true;
  };
  bool done = ended([&](auto slice) { return service_->wait_idle(slice); });
  if (done) {
    http_->drain();
    done = ended([&](auto slice) { return http_->wait_until_drained(slice); });
  }
  // Whoever is in a hurry does not wait for the disk either.
  if (!done) session_->abandon_cache_writes();
  return done;
}

void Serving::stop() {
  // The transport first: its replies hold on to the service.
  if (http_ != nullptr) http_->stop();
  if (service_ != nullptr) service_->stop();
}

}  // namespace gem::cli
