// NEON products of Q4_K, Q5_K and Q6_K groups with few rows, decoded in registers (backend/cpu/super_blocks.h
// says how they lie). A block goes through the sums that `tile` forms of its panel, so the bits are the same.
#if defined(__aarch64__)

#include "backend/cpu/super_neon.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/registers_neon.h"
#include "backend/cpu/super_blocks.h"

namespace gem::cpu::neon {
namespace {

// Four scale bytes.
float32x4_t four_bytes(const std::byte* p, bool is_signed) {
  std::uint32_t four;
  std::memcpy(&four, p, sizeof four);
  const uint8x8_t all = vcreate_u8(four);
  if (is_signed) return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(all)))));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(all))));
}

// A word's low nibbles with their bits above: columns 0, 4, 1, 5 of eight, and its high ones: 2, 6, 3, 7.
template <StorageType kType>
void codes_of(const std::byte* words, uint8x16_t bits, uint8x16_t& even, uint8x16_t& odd) {
  const uint8x16_t all = vld1q_u8(bytes(words));
  even = vandq_u8(all, vdupq_n_u8(15));
  odd = vshrq_n_u8(all, 4);
  if constexpr (bits_above(kType) != 0) {
    // Those of nibbles 0 and 2 stand over them, those of 1 and 3 at the bottom of the other byte.
    const uint8x16_t mask = vdupq_n_u8(((1 << bits_above(kType)) - 1) << 4);
    even = vorrq_u8(even, vandq_u8(bits, mask));
    odd = vorrq_u8(odd, vandq_u8(vshlq_n_u8(vrev16q_u8(bits), 4), mask));
  }
}

template <StorageType kType, unsigned R>
void rows_super(const std::byte* super, const Activations& x, float* out) {
  constexpr SuperLayout layout = super_layout(kType);
  constexpr bool kSix = kType == StorageType::kQ6_K;
  const std::int16_t* q = x.q;
  std::fill_n(out, R * kGroupRows, 0.0f);
  for (std::size_t b = 0; b < x.blocks; super += layout.bytes()) {
    const std::byte* const factors = super + super_factors(kType);
    for (std::size_t block = 0; block < 8; ++block, ++b) {
      const std::byte* codes = super + layout.nibbles(block);
      for (std::size_t part = 0; part < kBlockParts<kType>; ++part) {
        int32x4_t high[R][kQuads];
        uint32x4_t low[R][kQuads];
        std::int32_t too_much[R];  // of codes 0 to 63
        for (unsigned r = 0; r < R; ++r) {
          for (unsigned i = 0; i < kQuads; ++i) {
            high[r][i] = vdupq_n_s32(0);
            low[r][i] = vdupq_n_u32(0);
          }
          too_much[r] = kSix ? -32 * x.half_sum(r, b, part) : 0;
        }
        uint8x16_t bits[kQuads] = {};
        for (unsigned i = 0; layout.high != 0 && i < kQuads; ++i)
          bits[i] = vld1q_u8(bytes(super + layout.bits(block) + 64 * part + 16 * i));
        for (std::size_t v = 0; v < kPartVectors<kType>; ++v, codes += 64, q += 8) {
          uint8x16_t even[kQuads];
          uint8x16_t odd[kQuads];
          for (unsigned i = 0; i < kQuads; ++i) {
            codes_of<kType>(codes + 16 * i, bits[i], even[i], odd[i]);
            if constexpr (bits_above(kType) != 0) bits[i] = vshrq_n_u8(bits[i], bits_above(kType));
          }
          add_nibbles(even, odd, q, x.stride, high, low);
        }
        for (unsigned i = 0; i < kQuads; ++i) {
          const float32x4_t scale =
              vmulq_f32(four_halves(super + 8 * i),
                        four_bytes(factors + (kBlockParts<kType> * block + part) * kGroupRows + 4 * i, kSix));
          for (unsigned r = 0; r < R; ++r)
            add_block(out + r * kGroupRows + 4 * i,
                      join(high[r][i], vreinterpretq_s32_u32(low[r][i]), too_much[r]), scale,
                      x.scale[r * x.blocks + b]);
        }
      }
      for (unsigned i = 0; !kSix && i < kQuads; ++i) {
        const float32x4_t minimum = vmulq_f32(four_halves(super + 2 * kGroupRows + 8 * i),
                                              four_bytes(factors + (8 + block) * kGroupRows + 4 * i, false));
        for (unsigned r = 0; r < R; ++r) {
          float* const y = out + r * kGroupRows + 4 * i;
          vst1q_f32(y, vfmsq_n_f32(vld1q_f32(y), minimum, x.scaled_sum(r, b)));
        }
      }
    }
  }
}

}  // namespace

void group_super(StorageType type, const std::byte* group, const Activations& x, std::size_t rows,
                 float* out) {
  for_super_type(type, [&](auto constant) {
    by_twos<rows_super<constant(), 1>, rows_super<constant(), 2>>(group, x, rows, out);
  });
}

}  // namespace gem::cpu::neon

#endif
