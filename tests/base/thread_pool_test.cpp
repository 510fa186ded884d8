#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

namespace gem {
namespace {

TEST(ThreadPool, VisitsEveryIndexOnce) {
  for (const unsigned threads : {1u, 2u, 5u}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t count : {0u, 1u, 2u, 7u, 1000u}) {
      for (const std::size_t grain : {0u, 1u, 3u, 5000u}) {
        std::vector<std::atomic<int>> visits(count);
        pool.parallel_for(count, grain, [&](std::size_t begin, std::size_t end, unsigned thread) {
          EXPECT_LT(thread, threads);
          EXPECT_LE(end - begin, std::max<std::size_t>(1, grain));
          for (std::size_t i = begin; i < end; ++i) ++visits[i];
        });
        for (const auto& v : visits) EXPECT_EQ(v.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, ManyShortLoopsInARow) {
  ThreadPool pool(4);
  std::vector<std::size_t> sums(64);
  for (std::size_t round = 0; round < 3000; ++round) {
    pool.parallel_for(sums.size(), 1,
                      [&](std::size_t begin, std::size_t, unsigned) { sums[begin] += begin; });
  }
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], 3000 * i);
}

TEST(ThreadPool, DefaultIsAtLeastOneAndAtMostTheLogicalProcessors) {
  EXPECT_GE(ThreadPool::default_threads(), 1u);
  EXPECT_LE(ThreadPool::default_threads(), std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace gem
