// Signals as events of the main thread.
#pragma once

#include <csignal>

#include <chrono>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace gem::cli {

// While alive, the given signals are noted, in order, instead of doing what they do. One at a time in a
// process. Programs started meanwhile get them as they were before.
class SignalQueue {
 public:
  explicit SignalQueue(std::initializer_list<int> signals);
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // The next signal, or kWoken. Nothing when none came within `limit`.
  static constexpr int kWoken = 0;
  std::optional<int> wait(std::chrono::milliseconds limit);
  int wait();
  // From any thread: wait() returns kWoken.
  void wake();

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
  int read_end_ = -1;
};

// Ends the process by this signal, as if it had never been noted.
[[noreturn]] void die_of(int signal);

}  // namespace gem::cli
