// bfloat16, as far as gem uses it.
#pragma once

#include "base/numbers.h"
#include "cuda_runtime.h"

struct __nv_bfloat16 {
  std::uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {gem::f32_to_bf16(x)};
}
inline float __bfloat162float(__nv_bfloat16 x) {
  return gem::bf16_to_f32(x.bits);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
