// Chunks of packed weights (packed.h) as operands of the tensor cores.
#pragma once

#include "backend/cuda/decode_operand.cuh"

namespace gem::cuda {

__device__ __forceinline__ unsigned half_pair(float value) {
  const __half2 h = __float2half2_rn(value);
  return *reinterpret_cast<const unsigned*>(&h);
}
__device__ __forceinline__ unsigned subtract(unsigned a, unsigned b) {
  const __half2 r = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<const unsigned*>(&r);
}

// A chunk of 64 columns of 16 rows as the A operand. step() gives the four registers of 16 columns: rows r
// and r + 8 (r = lane / 4) alternating; scale() those two rows' scales. Codes become f16 without arithmetic
// where their bits are those of a subnormal: code * 2^-24. What that leaves out (kUnit, and the offset times
// the sum of the activations) is made good on the f32 sums.
template <Format F>
struct Fragment;

// The lane's nibbles of a chunk as registers.
__device__ __forceinline__ void nibbles_step(const uint4& words, int step, unsigned (&a)[4]) {
  const unsigned w = step == 0 ? words.x : step == 1 ? words.y : step == 2 ? words.z : words.w;
  const unsigned v = w >> 8;
  a[0] = w & 0x000f000fu;
  a[1] = w & 0x00f000f0u;
  a[2] = v & 0x000f000fu;
  a[3] = v & 0x00f000f0u;
}
// Its bytes: in the mantissa of 1024 a byte is 1024 + byte; a signed one is taken plus 128.
template <bool Signed>
__device__ __forceinline__ void bytes_step(const uint4 (&words)[2], int step, unsigned (&a)[4]) {
  const uint4& q = words[step / 2];
  constexpr unsigned kFlip = Signed ? 0x80808080u : 0u;
  const unsigned first = (step % 2 == 0 ? q.x : q.z) ^ kFlip;
  const unsigned second = (step % 2 == 0 ? q.y : q.w) ^ kFlip;
  const unsigned bias = half_pair(Signed ? 1152.0f : 1024.0f);
  a[0] = subtract(__byte_perm(first, 0x64646464u, 0x4240), bias);
  a[1] = subtract(__byte_perm(first, 0x64646464u, 0x4341), bias);
  a[2] = subtract(__byte_perm(second, 0x64646464u, 0x4240), bias);
  a[3] = subtract(__byte_perm(second, 0x64646464u, 0x4341), bias);
}

// Two f16 scales of block k.
__device__ __forceinline__ float2 both_scales(uint2 scales, int k) {
  return __half22float2(*reinterpret_cast<const __half2*>(k == 0 ? &scales.x : &scales.y));
}

template <>
struct Fragment<Format::kQ4> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = true, kMinima = false;
  // A code c of row r stands as c 2^-24, of row r + 8 as c 2^-20; c - 8 is meant.
  static constexpr float kUnit0 = 0x1p24f, kUnit1 = 0x1p20f;
  static_assert(kSumUnit == -8 / kUnit0 && 16 * kSumUnit == -8 / kUnit1);  // the offset
  uint4 words;
  uint2 scales;  // f16, rows {r, r + 8} of each 32-block
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    scales = *reinterpret_cast<const uint2*>(chunk + 512 + (lane >> 2) * 8);
  }
  __device__ float2 scale(int k) const { return both_scales(scales, k); }
  __device__ void step(int i, unsigned (&a)[4]) const { nibbles_step(words, i, a); }
};

template <>
struct Fragment<Format::kQ8> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = false;
  static constexpr float kUnit0 = 1, kUnit1 = 1;
  uint4 words[2];
  uint2 scales;
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
    scales = *reinterpret_cast<const uint2*>(chunk + 1024 + (lane >> 2) * 8);
  }
  __device__ float2 scale(int k) const { return both_scales(scales, k); }
  __device__ void step(int i, unsigned (&a)[4]) const { bytes_step<true>(words, i, a); }
};

template <>
struct Fragment<Format::kH16> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = false;
  static constexpr float kUnit0 = 1, kUnit1 = 1;
  uint4 words[4];
  float2 scales[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
#pragma unroll
    for (int s = 0; s < 4; ++s) words[s] = *reinterpret_cast<const uint4*>(chunk + s * 512 + lane * 16);
    const float4 s = *reinterpret_cast<const float4*>(chunk + 2048 + (lane >> 2) * 16);
    scales[0] = make_float2(s.x, s.y);
    scales[1] = make_float2(s.z, s.w);
  }
  __device__ float2 scale(int k) const {
    return scales[k];
  }
  __device__ void step(int i, unsigned (&a)[4]) const {
    a[0] = words[i].x;
    a[1] = words[i].y;
    a[2] = words[i].z;
    a[3] = words[i].w;
  }
};

// Scales and minima {r, r + 8} of both blocks, at `from` of the chunk; the minima in units of the sums.
__device__ __forceinline__ void load_affine(const std::uint8_t* from, int lane, float down0, float down1,
                                            float2 (&scale)[2], float2 (&minimum)[2]) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const float4 v = *reinterpret_cast<const float4*>(from + (block * 8 + (lane >> 2)) * 16);
    scale[block] = make_float2(v.x, v.y);
    minimum[block] = make_float2(v.z * (down0 / kSumUnit), v.w * (down1 / kSumUnit));
  }
}

template <>
struct Fragment<Format::kA4> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = true;
  static constexpr float kUnit0 = 0x1p24f, kUnit1 = 0x1p20f;
  uint4 words;
  float2 scales[2], minimum[2];  // minima as what the operand keeps of its sums is multiplied by them
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    load_affine(chunk + 512, lane, 0x1p-24f, 0x1p-20f, scales, minimum);
  }
  __device__ float2 scale(int k) const { return scales[k]; }
  __device__ void step(int i, unsigned (&a)[4]) const { nibbles_step(words, i, a); }
};

template <>
struct Fragment<Format::kA8> {
  static constexpr int kScales = 2;  // of a row
  static constexpr bool kOffset = false, kMinima = true;
  static constexpr float kUnit0 = 1, kUnit1 = 1;
  uint4 words[2];
  float2 scales[2], minimum[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
    load_affine(chunk + 1024, lane, 1, 1, scales, minimum);
  }
  __device__ float2 scale(int k) const { return scales[k]; }
  __device__ void step(int i, unsigned (&a)[4]) const { bytes_step<false>(words, i, a); }
};

template <>
struct Fragment<Format::kS8> {
  static constexpr int kScales = 4;
  static constexpr bool kOffset = false, kMinima = false;
  static constexpr float kUnit0 = 1, kUnit1 = 1;
  uint4 words[2];
  float2 scales[4];  // of each 16 columns
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      scales[s] = *reinterpret_cast<const float2*>(chunk + 1024 + (s * 8 + (lane >> 2)) * 8);
  }
  __device__ float2 scale(int k) const {
    return scales[k];
  }
  __device__ void step(int i, unsigned (&a)[4]) const {
    bytes_step<true>(words, i, a);
  }
};

}  // namespace gem::cuda
