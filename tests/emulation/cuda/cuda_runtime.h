// The part of CUDA's runtime and language that gem uses, for the emulated device (device.h). Everything is
// done at once: a stream is always idle.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "device.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define threadIdx (::emulation::thread_place())
#define blockIdx (::emulation::block_place())
#define blockDim (::emulation::block_size())
#define gridDim (::emulation::grid_size())

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
  operator emulation::Place() const { return {x, y, z}; }
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

// ---- the language's functions

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = static_cast<float>(std::sin(static_cast<double>(x) * 3.14159265358979323846));
  *cosine = static_cast<float>(std::cos(static_cast<double>(x) * 3.14159265358979323846));
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float __fmul_rn(float x, float y) {
  return x * y;
}
inline float __fadd_rn(float x, float y) {
  return x + y;
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
// To nearest, ties to even; what does not fit is the nearest that does, NaN 0.
inline int __float2int_rn(float x) {
  if (!(x == x)) return 0;
  return x >= 0x1p31f ? INT_MAX : x <= -0x1p31f ? INT_MIN : static_cast<int>(std::nearbyint(x));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{y} << 32 | x;
  unsigned out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (pick & 7))) & 0xff;
    if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
    out |= byte << (8 * i);
  }
  return out;
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
[[noreturn]] inline void __trap() {
  std::abort();
}

inline void __syncthreads() {
  emulation::block_barrier(0, 0);
}
inline void __syncwarp(unsigned mask = ~0u) {
  emulation::warp_meet(mask, nullptr, [](emulation::Brought) {});
}
namespace emulation {
// The values of all lanes of the mask; lane l gets that of source(l), its own where that is outside.
template <typename T, typename Source>
T exchange(unsigned mask, T value, Source source) {
  struct Mine {
    T in, out;
    unsigned from;
  };
  Mine mine = {value, value, source(thread_place().x % 32)};
  warp_meet(mask, &mine, [](Brought all) {
    for (void* lane : all) {
      if (lane == nullptr) continue;
      Mine& m = *static_cast<Mine*>(lane);
      if (m.from < 32 && all[m.from] != nullptr) m.out = static_cast<const Mine*>(all[m.from])->in;
    }
  });
  return mine.out;
}
}  // namespace emulation
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return emulation::exchange(mask, value, [&](unsigned lane) { return lane ^ static_cast<unsigned>(lanes); });
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return emulation::exchange(mask, value, [&](unsigned) { return static_cast<unsigned>(lane) % 32; });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes) {
  return emulation::exchange(mask, value, [&](unsigned lane) { return lane + lanes; });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes) {
  return emulation::exchange(mask, value, [&](unsigned lane) { return lane - lanes; });
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  struct Mine {
    bool in;
    unsigned out;
  };
  Mine mine = {predicate, 0};
  emulation::warp_meet(mask, &mine, [](emulation::Brought all) {
    unsigned votes = 0;
    for (unsigned l = 0; l < 32; ++l) {
      if (all[l] != nullptr && static_cast<const Mine*>(all[l])->in) votes |= 1u << l;
    }
    for (void* lane : all) {
      if (lane != nullptr) static_cast<Mine*>(lane)->out = votes;
    }
  });
  return mine.out;
}
inline bool __any_sync(unsigned mask, bool predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
template <typename T>
T atomicAdd(T* p, T v) {
  const T old = *p;
  *p += v;
  return old;
}
template <typename T>
T atomicMax(T* p, T v) {
  const T old = *p;
  *p = old < v ? v : old;
  return old;
}

// ---- the runtime

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorLaunchFailure = 719
};
inline const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaSuccess              ? "no error"
         : status == cudaErrorInvalidValue  ? "invalid argument"
         : status == cudaErrorLaunchFailure ? "unspecified launch failure"
                                            : "out of memory";
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
inline cudaError_t cudaPeekAtLastError() {
  return cudaSuccess;
}

using cudaStream_t = struct EmulatedStream*;
using cudaEvent_t = struct EmulatedEvent*;
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin };
struct cudaDeviceProp {
  char name[256];
  int major, minor;
  std::size_t totalGlobalMem;
};

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
// While a test says that the device is lost every wait for it fails.
inline cudaError_t cudaDeviceSynchronize() {
  return emulation::device_is_lost ? cudaErrorLaunchFailure : cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaDeviceSynchronize();
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}

// Memory as a device gives it out: with whatever was there, here NaNs (as far as that takes no time).
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff, std::min<std::size_t>(bytes, 16 << 20));
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes);
}
inline cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  if (bytes != 0) std::memmove(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                     std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t) {
  for (std::size_t row = 0; row < height; ++row)
    std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                static_cast<const std::byte*>(from) + row * from_pitch, width);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  if (bytes != 0) std::memset(to, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width,
                                     std::size_t height, cudaStream_t) {
  for (std::size_t row = 0; row < height; ++row)
    std::memset(static_cast<std::byte*>(to) + row * pitch, value, width);
  return cudaSuccess;
}

inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "emulated device");
  p->major = 9;
  p->totalGlobalMem = std::size_t{4} << 30;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = static_cast<int>(which == cudaDevAttrMultiProcessorCount ? emulation::kMultiprocessors
                                                                    : emulation::kSharedBytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{4} << 30;
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int bytes) {
  return bytes <= static_cast<int>(emulation::kSharedBytes) ? cudaSuccess : cudaErrorInvalidValue;
}
