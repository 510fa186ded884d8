#include "formats/allocation_watch.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local bool watching = false;
thread_local std::size_t largest_bytes = 0;
thread_local std::size_t total_bytes = 0;

void* try_allocate(std::size_t size) noexcept {
  if (watching) {
    largest_bytes = std::max(largest_bytes, size);
    total_bytes += size;
  }
  return std::malloc(std::max<std::size_t>(1, size));
}

void* allocate(std::size_t size) {
  if (void* const memory = try_allocate(size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate(size);
}
void* operator new[](std::size_t size) {
  return allocate(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return try_allocate(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return try_allocate(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace gem::testing {

AllocationWatch::AllocationWatch() {
  largest_bytes = 0;
  total_bytes = 0;
  watching = true;
}
AllocationWatch::~AllocationWatch() {
  watching = false;
}
std::size_t AllocationWatch::largest() const {
  return largest_bytes;
}
std::size_t AllocationWatch::total() const {
  return total_bytes;
}

}  // namespace gem::testing
