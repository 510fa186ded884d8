// A large copy by several threads: where the target is new and the system has to find its pages, two take
// half the time of one.
#pragma once

#include <cstddef>

namespace gem {

void parallel_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace gem
