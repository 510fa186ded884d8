// Chunks of packed weights (packed.h) as operands of the tensor cores.
#pragma once

#include "backend/cuda/decode_operand.cuh"

namespace gem::cuda {

// A chunk of 64 columns of 16 rows, of which a lane has its part. block() gives the A operand of 32 columns:
// four bytes each of rows r and r + 8 (r = lane / 4) in the first 16 columns, then in the second. (H16 has
// halves of 16 columns instead.) scale() gives those two rows' scales.
//   kScales   of a row: one for 32 columns, or for 16
//   kMinima   rows have minima: values are scale * code + minimum
//   kSigned   codes are signed bytes
template <Format F>
struct Fragment;

// Codes 0 .. 15, of row r in the low nibbles and of row r + 8 in the high ones.
__device__ __forceinline__ void nibbles_block(const uint4& words, int block, unsigned (&a)[4]) {
  const unsigned first = block == 0 ? words.x : words.z;
  const unsigned second = block == 0 ? words.y : words.w;
  a[0] = first & 0x0f0f0f0fu;
  a[1] = first >> 4 & 0x0f0f0f0fu;
  a[2] = second & 0x0f0f0f0fu;
  a[3] = second >> 4 & 0x0f0f0f0fu;
}
__device__ __forceinline__ void words_of(const uint4& words, unsigned (&a)[4]) {
  a[0] = words.x;
  a[1] = words.y;
  a[2] = words.z;
  a[3] = words.w;
}
__device__ __forceinline__ uint4 read16(const std::uint8_t* p) {
  return *reinterpret_cast<const uint4*>(p);
}

// Two f16 scales of block k.
__device__ __forceinline__ float2 both_scales(uint2 scales, int k) {
  return __half22float2(*reinterpret_cast<const __half2*>(k == 0 ? &scales.x : &scales.y));
}

template <>
struct Fragment<Format::kQ4> {
  static constexpr int kScales = 2;
  static constexpr bool kMinima = false, kSigned = true;
  uint4 words;
  uint2 scales;  // f16, rows {r, r + 8} of each 32-block
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words = read16(chunk + lane * 16);
    scales = *reinterpret_cast<const uint2*>(chunk + 512 + (lane >> 2) * 8);
  }
  __device__ float2 scale(int k) const { return both_scales(scales, k); }
  __device__ void block(int i, unsigned (&a)[4]) const { nibbles_block(words, i, a); }
};

template <>
struct Fragment<Format::kQ8> {
  static constexpr int kScales = 2;
  static constexpr bool kMinima = false, kSigned = true;
  uint4 words[2];
  uint2 scales;
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = read16(chunk + lane * 16);
    words[1] = read16(chunk + 512 + lane * 16);
    scales = *reinterpret_cast<const uint2*>(chunk + 1024 + (lane >> 2) * 8);
  }
  __device__ float2 scale(int k) const { return both_scales(scales, k); }
  __device__ void block(int i, unsigned (&a)[4]) const { words_of(words[i], a); }
};

template <>
struct Fragment<Format::kH16> {
  static constexpr int kScales = 2;
  static constexpr bool kMinima = false, kSigned = true;
  uint4 words[4];
  float2 scales[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
#pragma unroll
    for (int s = 0; s < 4; ++s) words[s] = read16(chunk + s * 512 + lane * 16);
    const float4 s = *reinterpret_cast<const float4*>(chunk + 2048 + (lane >> 2) * 16);
    scales[0] = make_float2(s.x, s.y);
    scales[1] = make_float2(s.z, s.w);
  }
  __device__ float2 scale(int k) const {
    return scales[k];
  }
  // Of 16 columns.
  __device__ void step(int i, unsigned (&a)[4]) const {
    words_of(words[i], a);
  }
};

// Scales and minima {r, r + 8} of both blocks, at `from` of the chunk; the minima as what Origin::offset() is
// multiplied by. `offset`: of the codes, which is in their sums.
template <int Offset>
__device__ __forceinline__ void load_affine(const std::uint8_t* from, int lane, float2 (&scale)[2],
                                            float2 (&minimum)[2]) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const float4 v = *reinterpret_cast<const float4*>(from + (block * 8 + (lane >> 2)) * 16);
    scale[block] = make_float2(v.x, v.y);
    minimum[block] = make_float2(fmaf(v.x, Offset, v.z) * kPerOffset, fmaf(v.y, Offset, v.w) * kPerOffset);
  }
}

template <>
struct Fragment<Format::kA4> {
  static constexpr int kScales = 2;
  static constexpr bool kMinima = true, kSigned = true;
  uint4 words;
  float2 scales[2], minimum[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words = read16(chunk + lane * 16);
    load_affine<8>(chunk + 512, lane, scales, minimum);
  }
  __device__ float2 scale(int k) const { return scales[k]; }
  __device__ void block(int i, unsigned (&a)[4]) const { nibbles_block(words, i, a); }
};

template <>
struct Fragment<Format::kA8> {
  static constexpr int kScales = 2;
  static constexpr bool kMinima = true, kSigned = false;
  uint4 words[2];
  float2 scales[2], minimum[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = read16(chunk + lane * 16);
    words[1] = read16(chunk + 512 + lane * 16);
    load_affine<0>(chunk + 1024, lane, scales, minimum);
  }
  __device__ float2 scale(int k) const { return scales[k]; }
  __device__ void block(int i, unsigned (&a)[4]) const { words_of(words[i], a); }
};

template <>
struct Fragment<Format::kS8> {
  static constexpr int kScales = 4;
  static constexpr bool kMinima = false, kSigned = true;
  uint4 words[2];
  float2 scales[4];  // of each 16 columns
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = read16(chunk + lane * 16);
    words[1] = read16(chunk + 512 + lane * 16);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      scales[s] = *reinterpret_cast<const float2*>(chunk + 1024 + (s * 8 + (lane >> 2)) * 8);
  }
  __device__ float2 scale(int k) const {
    return scales[k];
  }
  __device__ void block(int i, unsigned (&a)[4]) const {
    words_of(words[i], a);
  }
};

// A lane's four bytes of the operand as halves: pairs of neighbouring columns. In the mantissa of 1024 a byte
// is 1024 + byte; a signed one is taken plus 128.
__device__ __forceinline__ unsigned minus_1152(unsigned pair) {
  constexpr unsigned kBoth = 0x64806480u;
  const __half2 r =
      __hsub2(*reinterpret_cast<const __half2*>(&pair), *reinterpret_cast<const __half2*>(&kBoth));
  return *reinterpret_cast<const unsigned*>(&r);
}
__device__ __forceinline__ uint2 halves_of(unsigned bytes) {
  bytes ^= 0x80808080u;
  return make_uint2(minus_1152(__byte_perm(bytes, 0x64646464u, 0x4140)),
                    minus_1152(__byte_perm(bytes, 0x64646464u, 0x4342)));
}

}  // namespace gem::cuda
