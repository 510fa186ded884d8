#include "base/parallel_copy.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace gem {

void parallel_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  constexpr std::size_t kLeast = std::size_t{2} << 20;  // bytes that are worth a thread
  constexpr std::size_t kMostThreads = 8;
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t threads = std::clamp<std::size_t>(bytes / kLeast, 1, std::min(cores, kMostThreads));
  const std::size_t share = (bytes / threads + 4095) / 4096 * 4096;
  std::vector<std::jthread> others;
  std::size_t mine = bytes;  // from here on, by this thread
  try {
    for (std::size_t i = 1; i < threads; ++i) {
      const std::size_t begin = mine - std::min(mine, share);
      if (begin == 0) break;
      others.emplace_back([=] { std::memcpy(to + begin, from + begin, mine - begin); });
      mine = begin;
    }
  } catch (const std::system_error&) {  // no more threads
  }
  std::memcpy(to, from, mine);
}

}  // namespace gem
