#include "base/parallel_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace gem {
namespace {

TEST(ParallelCopy, CopiesEveryByteAndNoOther) {
  std::mt19937 random(1);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4095},
                                  (std::size_t{4} << 20) + 1, (std::size_t{20} << 20) - 3}) {
    SCOPED_TRACE(bytes);
    std::vector<std::byte> from(bytes);
    for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(random());
    std::vector<std::byte> to(bytes + 2, std::byte{42});
    parallel_copy(to.data() + 1, from.data(), bytes);
    EXPECT_EQ(to.front(), std::byte{42});
    EXPECT_EQ(to.back(), std::byte{42});
    EXPECT_TRUE(bytes == 0 || std::memcmp(to.data() + 1, from.data(), bytes) == 0);
  }
}

}  // namespace
}  // namespace gem
