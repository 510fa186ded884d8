// Elements of a cache's keys and values on the device: written from f32, read as operands of the tensor
// cores.
//
// A product takes f16. An element of f16 is one; of bf16 and f32 it is the sum of two, high + low, which is
// exact but for what lies below 2^-24, and to 22 bits of an f32 (a half's range: up to 65504, where norms
// with the weights of any known model keep keys and values below a few hundred).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/rows.h"

namespace gem::cuda {

__device__ __forceinline__ unsigned bits_of(const __half2& h) {
  return *reinterpret_cast<const unsigned*>(&h);
}

// Element `index` from `base` on.
__device__ __forceinline__ void store_element(std::byte* base, std::size_t index, KvElement element,
                                              float x) {
  switch (element) {
    case KvElement::kF32:
      reinterpret_cast<float*>(base)[index] = x;
      break;
    case KvElement::kBF16:
      reinterpret_cast<__nv_bfloat16*>(base)[index] = __float2bfloat16_rn(x);
      break;
    case KvElement::kF16:
      reinterpret_cast<__half*>(base)[index] = __float2half_rn(x);
      break;
  }
}
// Four neighbours, the first a multiple of four.
__device__ __forceinline__ void store_elements(std::byte* base, std::size_t index, KvElement element,
                                               float4 x) {
  switch (element) {
    case KvElement::kF32:
      *reinterpret_cast<float4*>(reinterpret_cast<float*>(base) + index) = x;
      break;
    case KvElement::kBF16: {
      const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
      *reinterpret_cast<uint2*>(reinterpret_cast<__nv_bfloat16*>(base) + index) =
          *reinterpret_cast<const uint2*>(pairs);
      break;
    }
    case KvElement::kF16: {
      const __half2 pairs[2] = {__floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w)};
      *reinterpret_cast<uint2*>(reinterpret_cast<__half*>(base) + index) =
          *reinterpret_cast<const uint2*>(pairs);
      break;
    }
  }
}

// Two elements' high halves, and low ones.
struct SplitPair {
  unsigned high, low;
};
__device__ __forceinline__ SplitPair split(float x, float y) {
  const __half2 high = __floats2half2_rn(x, y);
  const float2 back = __half22float2(high);
  return {bits_of(high), bits_of(__floats2half2_rn(x - back.x, y - back.y))};
}
__device__ __forceinline__ SplitPair split_bf16(unsigned pair) {
  return split(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// Eight neighbouring elements, the first a multiple of eight: `Halves`: of f16; else of any kind, in two
// halves.
template <bool Halves>
struct KvWords;
template <>
struct KvWords<true> {
  uint4 high;

  __device__ __forceinline__ void load(const std::byte* base, std::size_t index, KvElement) {
    high = __ldcg(reinterpret_cast<const uint4*>(reinterpret_cast<const __half*>(base) + index));
  }
  __device__ __forceinline__ void clear() { high = make_uint4(0, 0, 0, 0); }
};
template <>
struct KvWords<false> {
  uint4 high, low;

  __device__ __forceinline__ void load(const std::byte* base, std::size_t index, KvElement element) {
    const std::byte* at = base + index * element_bytes(element);
    const uint4 first = __ldcg(reinterpret_cast<const uint4*>(at));
    low = make_uint4(0, 0, 0, 0);
    if (element == KvElement::kF16) {
      high = first;
      return;
    }
    SplitPair pairs[4];
    if (element == KvElement::kF32) {
      const uint4 second = __ldcg(reinterpret_cast<const uint4*>(at) + 1);
      pairs[0] = split(__uint_as_float(first.x), __uint_as_float(first.y));
      pairs[1] = split(__uint_as_float(first.z), __uint_as_float(first.w));
      pairs[2] = split(__uint_as_float(second.x), __uint_as_float(second.y));
      pairs[3] = split(__uint_as_float(second.z), __uint_as_float(second.w));
    } else {
      pairs[0] = split_bf16(first.x);
      pairs[1] = split_bf16(first.y);
      pairs[2] = split_bf16(first.z);
      pairs[3] = split_bf16(first.w);
    }
    high = make_uint4(pairs[0].high, pairs[1].high, pairs[2].high, pairs[3].high);
    low = make_uint4(pairs[0].low, pairs[1].low, pairs[2].low, pairs[3].low);
  }
  __device__ __forceinline__ void clear() { high = low = make_uint4(0, 0, 0, 0); }
};

}  // namespace gem::cuda
