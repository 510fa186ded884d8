// Halves, as far as gem uses them.
#pragma once

#include "base/numbers.h"
#include "cuda_runtime.h"

struct __half {
  std::uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
inline __half __float2half_rn(float x) {
  return {gem::f32_to_f16(x)};
}
namespace emulation {
inline const std::vector<float> kHalves = [] {
  std::vector<float> all(65536);
  for (unsigned bits = 0; bits < 65536; ++bits) all[bits] = gem::f16_to_f32(static_cast<std::uint16_t>(bits));
  return all;
}();
}  // namespace emulation
inline float __half2float(__half h) {
  return emulation::kHalves[h.bits];
}
inline __half2 __float2half2_rn(float x) {
  return {__float2half_rn(x), __float2half_rn(x)};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline float2 __half22float2(__half2 h) {
  return {__half2float(h.x), __half2float(h.y)};
}
inline __half2 __hsub2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) - __half2float(b.x), __half2float(a.y) - __half2float(b.y));
}
