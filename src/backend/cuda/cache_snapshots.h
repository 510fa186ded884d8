// Rows of caches on their way to the prompt cache: put aside on the device, which takes no time, and brought
// to the host by a thread of its own while the device goes on with its rounds.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "backend/cuda/device.h"

namespace gem::cuda {

class CacheSnapshots {
 public:
  static constexpr std::size_t kBlock = std::size_t{64} << 20;

  // Takes `most` bytes of device memory in whole blocks, or as many as there are: at once, as the device
  // waits for all its work when memory is taken.
  CacheSnapshots(int device, std::size_t most);
  ~CacheSnapshots();  // when all that is under way has arrived
  CacheSnapshots(const CacheSnapshots&) = delete;
  CacheSnapshots& operator=(const CacheSnapshots&) = delete;

  struct Block {
    DeviceArray<std::byte> memory;
    std::size_t used = 0;
    unsigned under_way = 0;  // copies out of it
  };
  // Memory on the device, aligned to 256 bytes.
  struct Place {
    Block* block = nullptr;
    std::byte* data = nullptr;
  };
  // None when no block has that much now. Every place that is given must be fetched.
  std::optional<Place> reserve(std::size_t bytes);
  // Brings `bytes` at from, in `place`, as `stream` has written them by now, to `to`, which `owner` keeps.
  // One after the other: when the result is ready, so are those before. It holds what went wrong.
  std::shared_future<void> fetch(const Place& place, const std::byte* from, std::size_t bytes, std::byte* to,
                                 std::shared_ptr<const void> owner, cudaStream_t stream);

 private:
  struct Copy {
    Block* block;
    const std::byte* from;
    std::size_t bytes;
    std::byte* to;
    std::shared_ptr<const void> owner;
    std::promise<void> done;
  };
  struct Half {
    PinnedArray<std::byte> memory;
    cudaEvent_t arrived = nullptr;
  };
  void run();
  void bring(const Copy& copy);

  const int device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t written_ = nullptr;
  Half halves_[2];  // of the thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Block> blocks_;  // the one in use last
  std::deque<Copy> copies_;
  bool ends_ = false;
  std::thread thread_;  // the last member: it uses all others
};

}  // namespace gem::cuda
