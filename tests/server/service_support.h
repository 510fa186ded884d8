// What the tests of the service share: a gate that lets rounds pass one by one, clients that take what comes,
// a session over a tiny model.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/session.h"
#include "engine/wrapped_backend.h"
#include "golden.h"
#include "server/service.h"
#include "server/service_work.h"

namespace gem::server::testing {

inline constexpr std::chrono::seconds kPatience{120};  // before a test gives up

// Rounds wait at the gate until they are let through. The test sees the rows of each round that has come.
class Gate {
 public:
  // From the engine's thread.
  void pass(const RoundRows& rows) {
    std::unique_lock lock(mutex_);
    seen_.emplace_back();
    for (const RowSpan& span : rows.spans) seen_.back().push_back(span.rows);
    changed_.notify_all();
    changed_.wait(lock, [&] { return seen_.size() <= allowed_; });
    if (fail_at_ == seen_.size()) {
      if (loses_) fail(ErrorCode::kLost, "the device is lost: a test");
      throw std::bad_alloc();
    }
  }
  void allow(std::size_t rounds) {
    const std::lock_guard lock(mutex_);
    allowed_ += rounds;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    allowed_ = ~std::size_t{0} >> 1;
    changed_.notify_all();
  }
  // The n-th round (from 1) fails for want of memory.
  void fail_at(std::size_t round) {
    const std::lock_guard lock(mutex_);
    fail_at_ = round;
  }
  // Or because the device is lost.
  void lose_at(std::size_t round) {
    const std::lock_guard lock(mutex_);
    fail_at_ = round;
    loses_ = true;
  }
  // Waits until the n-th round (from 1) is at the gate or past it; the rows of its spans.
  std::vector<std::uint32_t> round(std::size_t n) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return seen_.size() >= n; })) {
      ADD_FAILURE() << "round " << n << " did not come";
      return {};
    }
    return seen_[n - 1];
  }
  std::size_t rounds() {
    const std::lock_guard lock(mutex_);
    return seen_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::uint32_t>> seen_;
  std::size_t allowed_ = 0;
  std::size_t fail_at_ = 0;
  bool loses_ = false;
};

inline std::unique_ptr<Session> gated_session(const std::string& model, Gate& gate, std::uint32_t streams,
                                              std::uint32_t context = 1024, std::uint32_t chunk = 24,
                                              std::uint64_t prompt_cache = 0, SessionOptions options = {}) {
  options.prompt_cache = prompt_cache;
  options.model = model;
  options.threads = 1;
  options.context = context;
  options.chunk = chunk;
  options.streams = streams;
  options.any_geometry = true;
  options.wrap_backend = [&gate](std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
    gem::testing::BackendHooks hooks;
    hooks.before_round = [&gate](const RoundRows& rows) { gate.pass(rows); };
    return std::make_unique<gem::testing::WrappedBackend>(std::move(inner), std::move(hooks));
  };
  return Session::open(options);
}

// Takes what a generation brings.
class Client {
 public:
  explicit Client(std::unique_ptr<Generation> generation)
      : generation_(std::move(generation)), bell_(std::make_shared<Bell>()) {
    generation_->on_ready([bell = bell_] {
      const std::lock_guard lock(bell->mutex);
      ++bell->rings;
      bell->rung = true;
      bell->changed.notify_all();
    });
  }

  Generation& generation() { return *generation_; }
  void leave() { generation_.reset(); }
  // Takes until `enough` or the end.
  const GenerationUpdate& take_until(const std::function<bool(const GenerationUpdate&)>& enough) {
    while (!all_.result && !enough(all_)) {
      {
        std::unique_lock lock(bell_->mutex);
        if (!bell_->changed.wait_for(lock, kPatience, [&] { return bell_->rung; })) {
          ADD_FAILURE() << "nothing came";
          return all_;
        }
        bell_->rung = false;
      }
      join(all_, generation_->take());
    }
    return all_;
  }
  const GenerationResult& finish() {
    take_until([](const auto&) { return false; });
    static const GenerationResult kNothing;
    return all_.result ? *all_.result : kNothing;
  }
  const GenerationUpdate& all() const { return all_; }
  std::vector<std::int32_t> tokens() const {
    std::vector<std::int32_t> ids;
    for (const TokenDetail& t : all_.tokens) ids.push_back(t.token);
    return ids;
  }
  std::size_t rings() const {
    const std::lock_guard lock(bell_->mutex);
    return bell_->rings;
  }

 private:
  struct Bell {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t rings = 0;
    bool rung = false;
  };
  std::unique_ptr<Generation> generation_;
  std::shared_ptr<Bell> bell_;
  GenerationUpdate all_;
};

// Waits for what another thread brings about and no call announces.
inline bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace gem::server::testing
