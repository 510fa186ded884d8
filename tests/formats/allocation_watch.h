// What a piece of code takes from the heap, so that a test can say: no more than a few times the file.
#pragma once

#include <cstddef>

namespace gem::testing {

struct AllocationWatch {
  AllocationWatch();  // starts counting on this thread
  ~AllocationWatch();
  AllocationWatch(const AllocationWatch&) = delete;
  AllocationWatch& operator=(const AllocationWatch&) = delete;

  std::size_t largest() const;  // one allocation, bytes
  std::size_t total() const;    // all allocations, freed or not
};

}  // namespace gem::testing
