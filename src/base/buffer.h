// Memory for caches and activations: page-aligned, zeroed, and taken from the system only when first written,
// so that a cache planned for a long context costs what is in use.
#pragma once

#include <cstddef>
#include <utility>

namespace gem {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);  // Error(kTooLarge) when the system has no room for it
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // For large memory that is written as a whole: with pages of 2 MB it comes in a third of the time, and
  // neither address translation nor the prefetcher stops every 4 KB. Before it is written.
  void prefer_huge_pages();

  std::size_t size() const { return size_; }
  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace gem
