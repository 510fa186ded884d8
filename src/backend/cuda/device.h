// Owning handles of device memory, and the one place where CUDA's errors become gem's.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace gem::cuda {

// Throws Error(kTooLarge) when the device is out of memory, Error(kLost) when nothing can be done on it any
// more, else Error(kFailed), naming the call. (In a file of its own: the error header's formatting library is
// no code for the device compiler.)
[[noreturn]] void raise(cudaError_t status, const char* what);

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) raise(status, what);
}

// Whether kernels built for `archs` ("90a", "80,120": CMake's GEM_CUDA_ARCHS) run on a device of that compute
// capability: those with a letter on that one alone, others from theirs on; never below 8.0.
bool kernels_run_on(std::string_view archs, int major, int minor);

// How a kernel is started (launch.cuh).
struct LaunchShape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

inline void check_launch(const char* kernel) {
  check(cudaPeekAtLastError(), kernel);
}

// Device memory of T, not initialised.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t count) { resize(count); }
  ~DeviceArray() { release(); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  // Forgets what was there.
  void resize(std::size_t count) {
    release();
    if (count == 0) return;
    void* memory = nullptr;
    check(cudaMalloc(&memory, count * sizeof(T)), "allocating device memory");
    data_ = static_cast<T*>(memory);
    size_ = count;
  }
  // Grows when needed; forgets what was there then.
  void reserve(std::size_t count) {
    if (count > size_) resize(count);
  }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  bool empty() const { return size_ == 0; }

  void upload(std::span<const T> values, cudaStream_t stream) {
    reserve(values.size());
    check(cudaMemcpyAsync(data_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream),
          "upload");
  }
  std::vector<T> download(std::size_t count, cudaStream_t stream) const {
    std::vector<T> values(count);
    check(cudaMemcpyAsync(values.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost, stream),
          "download");
    check(cudaStreamSynchronize(stream), "download");
    return values;
  }

 private:
  void release() {
    if (data_ != nullptr) cudaFree(data_);
    data_ = nullptr;
    size_ = 0;
  }
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// Memory of the host that the device reads and writes at full rate.
template <typename T>
class PinnedArray {
 public:
  PinnedArray() = default;
  explicit PinnedArray(std::size_t count) { reserve(count); }
  ~PinnedArray() {
    if (data_ != nullptr) cudaFreeHost(data_);
  }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  void reserve(std::size_t count) {
    if (count <= size_) return;
    if (data_ != nullptr) cudaFreeHost(data_);
    data_ = nullptr;
    void* memory = nullptr;
    check(cudaMallocHost(&memory, count * sizeof(T)), "allocating pinned memory");
    data_ = static_cast<T*>(memory);
    size_ = count;
  }
  T* data() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace gem::cuda
