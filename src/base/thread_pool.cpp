#include "base/thread_pool.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace gem {
namespace {

// About 20-40 microseconds of polling: longer than the serial gaps between two stages of one token.
constexpr int kSpins = 2000;

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Waits until `value` differs from `old`: polls for a moment, then sleeps.
unsigned wait_for_change(const std::atomic<unsigned>& value, unsigned old) {
  for (int i = 0; i < kSpins; ++i) {
    const unsigned now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause_cpu();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

unsigned ThreadPool::default_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return std::max(1u, std::thread::hardware_concurrency());
  std::set<std::string> cores;  // "package core" of every allowed logical processor
  unsigned logical = 0;
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    ++logical;
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string package;
    std::string core;
    std::ifstream(folder + "physical_package_id") >> package;
    std::ifstream(folder + "core_id") >> core;
    cores.insert(core.empty() ? fmt::format("cpu {}", cpu) : fmt::format("{} {}", package, core));
  }
  return std::max(1u, std::min(logical, static_cast<unsigned>(cores.size())));
}

ThreadPool::ThreadPool(unsigned threads) {
  if (threads == 0) threads = default_threads();
  workers_.reserve(threads - 1);
  try {
    for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& e) {
    const std::size_t started = workers_.size() + 1;
    stop();  // a thread that is destroyed while it runs would end the process
    fail(ErrorCode::kFailed, "cannot start {} threads, only {}: {}", threads, started, e.what());
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_pieces(unsigned thread) {
  for (;;) {
    const std::size_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    (*body_)(begin, std::min(count_, begin + grain_), thread);
  }
}

void ThreadPool::work(unsigned thread) {
  unsigned seen = 0;
  for (;;) {
    seen = wait_for_change(generation_, seen);
    if (stopping_.load(std::memory_order_relaxed)) return;
    unsigned state = state_.load(std::memory_order_acquire);
    while ((state & kOpen) != 0) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire))
        continue;
      run_pieces(thread);
      if (state_.fetch_sub(1, std::memory_order_acq_rel) == 1) state_.notify_one();
      break;
    }
  }
}

void ThreadPool::parallel_for(std::size_t count, std::size_t grain, const Body& body) {
  if (count == 0) return;
  grain = std::max<std::size_t>(1, grain);
  if (workers_.empty() || count <= grain) {
    for (std::size_t begin = 0; begin < count; begin += grain) body(begin, std::min(count, begin + grain), 0);
    return;
  }
  count_ = count;
  grain_ = grain;
  body_ = &body;
  next_.store(0, std::memory_order_relaxed);
  state_.store(kOpen, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  run_pieces(0);
  // All pieces are taken. Who has not joined by now is not waited for: on a busy machine that may take long.
  unsigned joined = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  while (joined != 0) joined = wait_for_change(state_, joined);
}

}  // namespace gem
