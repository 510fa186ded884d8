// A fixed pool of worker threads for short parallel loops.
//
// A decode step of a 12B model runs some 400 loops of 0.1-1 ms each, so a wake-up through the kernel (tens of
// microseconds) at every loop would cost several per cent. Workers therefore spin for a moment after each
// loop and then sleep, so that an idle program uses no processor time.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace gem {

class ThreadPool {
 public:
  // `threads` counts the caller, which works too; 0 takes default_threads(). Error(kFailed) when the system
  // refuses to start one.
  explicit ThreadPool(unsigned threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const { return static_cast<unsigned>(workers_.size()) + 1; }

  // Calls body(begin, end, thread) over [0, count) in pieces of at most `grain`, `thread` in [0, threads()).
  // Pieces are taken in any order by any thread, so a result must not depend on the cut. One caller at a
  // time; `body` must not throw and must not call parallel_for.
  using Body = std::function<void(std::size_t begin, std::size_t end, unsigned thread)>;
  void parallel_for(std::size_t count, std::size_t grain, const Body& body);

  // Physical cores this process may run on (hyper-threads share one set of arithmetic units).
  static unsigned default_threads();

 private:
  void work(unsigned thread);
  void stop();
  void run_pieces(unsigned thread);

  std::vector<std::thread> workers_;
  std::atomic<unsigned> generation_{0};  // counts loops; workers wait for it to change
  static constexpr unsigned kOpen = 1u << 31;
  std::atomic<unsigned> state_{0};    // workers in the current loop, and whether others may still join
  std::atomic<std::size_t> next_{0};  // first index not yet taken
  std::atomic<bool> stopping_{false};
  std::size_t count_ = 0;
  std::size_t grain_ = 1;
  const Body* body_ = nullptr;
};

}  // namespace gem
