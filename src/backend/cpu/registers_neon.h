// Loads, sums and tiles that the NEON kernels share; for files that are built for the dot product
// instructions, each with its own copy.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels.h"

namespace gem::cpu {
namespace {

constexpr unsigned kQuads = kGroupRows / 4;  // registers of 4 lanes, a lane a row

inline const std::uint8_t* bytes(const std::byte* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}
inline float32x4_t four_halves(const std::byte* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes(p))));
}

// y = fma(dot, weight scale * x scale, y) for 4 rows.
inline void add_block(float* y, int32x4_t dot, float32x4_t weight_scale, float x_scale) {
  vst1q_f32(y, vfmaq_f32(vld1q_f32(y), vcvtq_f32_s32(dot), vmulq_n_f32(weight_scale, x_scale)));
}

// 256 high + low + offset
inline int32x4_t join(int32x4_t high, int32x4_t low, std::int32_t offset) {
  return vaddq_s32(vaddq_s32(vshlq_n_s32(high, 8), low), vdupq_n_s32(offset));
}

// Products of a vector's nibbles, eight columns of four rows a register, with R rows of activations at q: a
// lane's even codes are columns 0, 4, 1, 5 of eight, its odd ones 2, 6, 3, 7 (packed.h).
template <unsigned R>
void add_nibbles(const uint8x16_t (&even)[kQuads], const uint8x16_t (&odd)[kQuads], const std::int16_t* q,
                 std::size_t stride, int32x4_t (&high)[R][kQuads], uint32x4_t (&low)[R][kQuads]) {
  for (unsigned r = 0; r < R; ++r) {
    const int16x8_t eight = vld1q_s16(q + r * stride);
    const int16x8_t order = vzip1q_s16(eight, vextq_s16(eight, eight, 4));
    const int8x8_t upper = vshrn_n_s16(order, 8);
    const uint8x8_t lower = vreinterpret_u8_s8(vmovn_s16(order));
    for (unsigned i = 0; i < kQuads; ++i) {
      high[r][i] = vdotq_lane_s32(high[r][i], vreinterpretq_s8_u8(even[i]), upper, 0);
      high[r][i] = vdotq_lane_s32(high[r][i], vreinterpretq_s8_u8(odd[i]), upper, 1);
      low[r][i] = vdotq_lane_u32(low[r][i], even[i], lower, 0);
      low[r][i] = vdotq_lane_u32(low[r][i], odd[i], lower, 1);
    }
  }
}

// Two rows at a time: their sums take half of the registers.
template <auto One, auto Two, typename Weights>
void by_twos(const Weights& weights, const Activations& x, std::size_t rows, float* out) {
  std::size_t r = 0;
  for (; r + 2 <= rows; r += 2) Two(weights, x.at(r, 0), out + r * kGroupRows);
  if (r < rows) One(weights, x.at(r, 0), out + r * kGroupRows);
}

}  // namespace
}  // namespace gem::cpu
