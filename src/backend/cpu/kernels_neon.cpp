// NEON kernels with the dot product instructions (Armv8.2), which multiply 16 pairs of bytes at once.
//
// A 16-bit activation is 256 h + l, h its signed upper and l its unsigned lower byte: two dot products of
// bytes give the exact integer that a 16-bit product would, and take half the instructions.
#if defined(__aarch64__)

#include <arm_neon.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/attention_neon.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/registers_neon.h"
#include "backend/cpu/super_blocks.h"
#include "backend/cpu/super_neon.h"

namespace gem::cpu {
namespace {

void quantize_row(const float* x, std::size_t cols, std::int16_t* q, float* scales, std::int32_t* sums) {
  for (std::size_t b = 0; b < cols / kBlock; ++b, x += kBlock, q += kBlock) {
    float32x4_t v[8];
    float32x4_t peak = vdupq_n_f32(0);
    float32x4_t poison = vdupq_n_f32(0);  // x - x is NaN exactly where x is NaN or infinite
    for (std::size_t i = 0; i < 8; ++i) {
      v[i] = vld1q_f32(x + 4 * i);
      peak = vmaxq_f32(peak, vabsq_f32(v[i]));
      poison = vaddq_f32(poison, vsubq_f32(v[i], v[i]));
    }
    const float top = vmaxvq_f32(peak);
    const bool finite = !std::isnan(vaddvq_f32(poison));
    scales[b] = finite ? top / 32767.0f : std::numeric_limits<float>::quiet_NaN();
    const float inverse = finite && top > kTiniest ? 32767.0f / top : 0.0f;
    int32x4_t sum[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    for (std::size_t i = 0; i < 8; ++i) {
      const int32x4_t n = finite ? vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse)) : vdupq_n_s32(0);
      vst1_s16(q + 4 * i, vqmovn_s32(n));
      sum[i / 4] = vaddq_s32(sum[i / 4], n);
    }
    for (std::size_t half = 0; half < 2; ++half) sums[2 * b + half] = vaddvq_s32(sum[half]);
  }
}

template <unsigned R>
void rows_q4_0(const std::byte* group, const Activations& x, float* out) {
  const std::byte* codes = group + group_scale_bytes(x.blocks);
  const std::int16_t* q = x.q;
  std::fill_n(out, R * kGroupRows, 0.0f);
  for (std::size_t b = 0; b < x.blocks; ++b, q += kBlock, group += 2 * kGroupRows) {
    int32x4_t high[R][kQuads];
    uint32x4_t low[R][kQuads];
    for (unsigned r = 0; r < R; ++r) {
      for (unsigned i = 0; i < kQuads; ++i) {
        high[r][i] = vdupq_n_s32(0);
        low[r][i] = vdupq_n_u32(0);
      }
    }
    for (std::size_t v = 0; v < 4; ++v, codes += 64) {
      uint8x16_t even[kQuads];
      uint8x16_t odd[kQuads];
      for (unsigned i = 0; i < kQuads; ++i) {
        const uint8x16_t words = vld1q_u8(bytes(codes + 16 * i));
        even[i] = vandq_u8(words, vdupq_n_u8(15));
        odd[i] = vshrq_n_u8(words, 4);
      }
      add_nibbles(even, odd, q + 8 * v, x.stride, high, low);
    }
    for (unsigned r = 0; r < R; ++r) {
      const std::size_t at = r * x.blocks + b;
      for (unsigned i = 0; i < kQuads; ++i) {
        // Codes are n + 8: the products of the 8 with the activations are taken off at once.
        add_block(out + r * kGroupRows + 4 * i,
                  join(high[r][i], vreinterpretq_s32_u32(low[r][i]), -8 * x.sum(r, b)),
                  four_halves(group + 8 * i), x.scale[at]);
      }
    }
  }
}

// The lower byte is taken as l - 128, which is signed as the weights are; 128 times their sum makes up for
// it.
template <unsigned R>
void rows_q8_0(const std::byte* group, const Activations& x, float* out) {
  const std::byte* codes = group + group_scale_bytes(x.blocks);
  const std::int16_t* q = x.q;
  std::fill_n(out, R * kGroupRows, 0.0f);
  for (std::size_t b = 0; b < x.blocks; ++b, q += kBlock, group += 2 * kGroupRows) {
    int32x4_t high[R][kQuads];
    int32x4_t low[R][kQuads];
    int32x4_t weights[kQuads];
    for (unsigned i = 0; i < kQuads; ++i) {
      weights[i] = vdupq_n_s32(0);
      for (unsigned r = 0; r < R; ++r) high[r][i] = low[r][i] = vdupq_n_s32(0);
    }
    for (std::size_t v = 0; v < 4; ++v) {
      int8x16_t w[2][kQuads];  // four columns a lane: two pairs beside each other
      for (unsigned four = 0; four < 2; ++four, codes += 64) {
        for (unsigned half = 0; half < 2; ++half) {
          const uint16x8_t first = vreinterpretq_u16_u8(vld1q_u8(bytes(codes + 16 * half)));
          const uint16x8_t second = vreinterpretq_u16_u8(vld1q_u8(bytes(codes + 32 + 16 * half)));
          w[four][2 * half] = vreinterpretq_s8_u16(vzip1q_u16(first, second));
          w[four][2 * half + 1] = vreinterpretq_s8_u16(vzip2q_u16(first, second));
        }
        for (unsigned i = 0; i < kQuads; ++i) weights[i] = vdotq_s32(weights[i], w[four][i], vdupq_n_s8(1));
      }
      for (unsigned r = 0; r < R; ++r) {
        const int16x8_t eight = vld1q_s16(q + r * x.stride + 8 * v);
        const int8x8_t upper = vshrn_n_s16(eight, 8);
        const int8x8_t lower = veor_s8(vmovn_s16(eight), vdup_n_s8(std::numeric_limits<std::int8_t>::min()));
        for (unsigned i = 0; i < kQuads; ++i) {
          high[r][i] = vdotq_lane_s32(high[r][i], w[0][i], upper, 0);
          high[r][i] = vdotq_lane_s32(high[r][i], w[1][i], upper, 1);
          low[r][i] = vdotq_lane_s32(low[r][i], w[0][i], lower, 0);
          low[r][i] = vdotq_lane_s32(low[r][i], w[1][i], lower, 1);
        }
      }
    }
    for (unsigned r = 0; r < R; ++r) {
      for (unsigned i = 0; i < kQuads; ++i) {
        const int32x4_t low_sum = vaddq_s32(low[r][i], vshlq_n_s32(weights[i], 7));
        add_block(out + r * kGroupRows + 4 * i, join(high[r][i], low_sum, 0), four_halves(group + 8 * i),
                  x.scale[r * x.blocks + b]);
      }
    }
  }
}

void unpack_scales(const std::byte* halves, std::size_t blocks, float* out) {
  for (std::size_t i = 0; i < blocks * kGroupRows; i += 4) vst1q_f32(out + i, four_halves(halves + 2 * i));
}

void unpack_q4_0(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel) {
  unpack_scales(group + first * 2 * kGroupRows, panel.blocks, panel.scales);
  const std::byte* codes = group + group_scale_bytes(blocks) + first * 16 * kGroupRows;
  const uint16x8_t mask = vdupq_n_u16(15);
  const int16x8_t eight = vdupq_n_s16(8);
  std::int16_t* out = panel.codes;
  for (std::size_t v = 0; v < panel.blocks * 4; ++v, codes += 64, out += 8 * kGroupRows) {
    for (std::size_t part = 0; part < 4; ++part) {
      uint16x8_t words = vreinterpretq_u16_u8(vld1q_u8(bytes(codes + 16 * part)));
      for (std::size_t i = 0; i < 4; ++i, words = vshrq_n_u16(words, 4))
        vst1q_s16(out + 2 * kGroupRows * i + 8 * part,
                  vsubq_s16(vreinterpretq_s16_u16(vandq_u16(words, mask)), eight));
    }
  }
}

void unpack_q8_0(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel) {
  unpack_scales(group + first * 2 * kGroupRows, panel.blocks, panel.scales);
  const std::byte* codes = group + group_scale_bytes(blocks) + first * 32 * kGroupRows;
  for (std::size_t i = 0; i < panel.blocks * 32 * kGroupRows; i += 8)
    vst1q_s16(panel.codes + i, vmovl_s8(vreinterpret_s8_u8(vld1_u8(bytes(codes + i)))));
}

void unpack_super(StorageType type, const std::byte* group, std::size_t first, const Panel& panel) {
  unpack_super_blocks(type, group, first, panel,
                      [](const std::byte* halves, float* out) { unpack_scales(halves, 1, out); });
}

// Codes of panels take 16 bits: products of single columns, a lane for each of a pair; the pairs are added
// at a block's end.
template <unsigned R>
void tile_rows(const Panel& panel, const Activations& x, float* out) {
  const std::int16_t* codes = panel.codes;
  const float* scales = panel.scales;
  const std::int16_t* q = x.q;
  const unsigned pairs = 16 / panel.scales_per_block;
  for (std::size_t b = 0; b < panel.blocks; ++b) {
    for (unsigned part = 0; part < panel.scales_per_block; ++part, scales += kGroupRows) {
      int32x4_t dot[R][2 * kQuads];
      for (unsigned r = 0; r < R; ++r) {
        for (unsigned i = 0; i < 2 * kQuads; ++i) dot[r][i] = vdupq_n_s32(0);
      }
      for (unsigned p = 0; p < pairs; ++p, codes += 2 * kGroupRows, q += 2) {
        int16x8_t w[kQuads];
        for (unsigned i = 0; i < kQuads; ++i) w[i] = vld1q_s16(codes + 8 * i);
        for (unsigned r = 0; r < R; ++r) {
          std::int32_t both;
          std::memcpy(&both, q + r * x.stride, sizeof both);
          const int16x8_t columns = vreinterpretq_s16_s32(vdupq_n_s32(both));
          for (unsigned i = 0; i < kQuads; ++i) {
            dot[r][2 * i] = vmlal_s16(dot[r][2 * i], vget_low_s16(w[i]), vget_low_s16(columns));
            dot[r][2 * i + 1] = vmlal_high_s16(dot[r][2 * i + 1], w[i], columns);
          }
        }
      }
      for (unsigned r = 0; r < R; ++r) {
        for (unsigned i = 0; i < kQuads; ++i)
          add_block(out + r * kGroupRows + 4 * i, vpaddq_s32(dot[r][2 * i], dot[r][2 * i + 1]),
                    vld1q_f32(scales + 4 * i), x.scale[r * x.blocks + b]);
      }
    }
    if (!panel.has_minima) continue;
    for (unsigned r = 0; r < R; ++r) {
      const float sum = x.scaled_sum(r, b);
      for (unsigned i = 0; i < kGroupRows; i += 4) {
        float* y = out + r * kGroupRows + i;
        vst1q_f32(y, vfmaq_n_f32(vld1q_f32(y), vld1q_f32(panel.minima + b * kGroupRows + i), sum));
      }
    }
  }
}

void group_q4_0(const std::byte* group, const Activations& x, std::size_t rows, float* out) {
  by_twos<rows_q4_0<1>, rows_q4_0<2>>(group, x, rows, out);
}

void group_q8_0(const std::byte* group, const Activations& x, std::size_t rows, float* out) {
  by_twos<rows_q8_0<1>, rows_q8_0<2>>(group, x, rows, out);
}

void tile(const Panel& panel, const Activations& x, std::size_t rows, float* out) {
  by_twos<tile_rows<1>, tile_rows<2>>(panel, x, rows, out);
}

// Four chains of 4 lanes a row.
template <unsigned R>
void rows_f32(const float* w, const float* x, std::size_t stride, std::size_t cols, float* out) {
  float32x4_t sums[R][4];
  for (unsigned r = 0; r < R; ++r) {
    for (float32x4_t& sum : sums[r]) sum = vdupq_n_f32(0);
  }
  std::size_t i = 0;
  for (; i + 16 <= cols; i += 16) {
    for (unsigned c = 0; c < 4; ++c) {
      const float32x4_t weight = vld1q_f32(w + i + 4 * c);
      for (unsigned r = 0; r < R; ++r)
        sums[r][c] = vfmaq_f32(sums[r][c], weight, vld1q_f32(x + r * stride + i + 4 * c));
    }
  }
  for (unsigned r = 0; r < R; ++r) {
    float sum = vaddvq_f32(vaddq_f32(vaddq_f32(sums[r][0], sums[r][1]), vaddq_f32(sums[r][2], sums[r][3])));
    for (std::size_t k = i; k < cols; ++k) sum = std::fma(w[k], x[r * stride + k], sum);
    out[r] = sum;
  }
}

void dot_f32(const float* w, const float* x, std::size_t stride, std::size_t cols, unsigned rows,
             float* out) {
  if (rows == kRowTile) return rows_f32<kRowTile>(w, x, stride, cols, out);
  for (unsigned r = 0; r < rows; ++r) rows_f32<1>(w, x + r * stride, stride, cols, out + r);
}

void expand(StorageType type, const std::byte* source, float* out, std::size_t elements) {
  if (elements % 4 == 0 && type == StorageType::kF16) {
    for (std::size_t i = 0; i < elements; i += 4) vst1q_f32(out + i, four_halves(source + 2 * i));
  } else if (elements % 4 == 0 && type == StorageType::kBF16) {
    for (std::size_t i = 0; i < elements; i += 4) {
      const uint16x4_t upper = vreinterpret_u16_u8(vld1_u8(bytes(source + 2 * i)));
      vst1q_f32(out + i, vreinterpretq_f32_u32(vshll_n_u16(upper, 16)));
    }
  } else {
    dequantize(type, source, out, elements);
  }
}

float sum_squares(const float* x, std::size_t n) {
  float sum = 0;
  rows_f32<1>(x, x, 0, n, &sum);
  return sum;
}

}  // namespace

constinit const Kernels kNeonKernels = {
    .name = "neon",
    .supported = has_neon_dot,
    .quantize = quantize_row,
    .split = nullptr,
    .group_q4_0 = group_q4_0,
    .group_q8_0 = group_q8_0,
    .group_super = neon::group_super,
    .unpack_q4_0 = unpack_q4_0,
    .unpack_q8_0 = unpack_q8_0,
    .unpack_super = unpack_super,
    .tile = tile,
    .dot_f32 = dot_f32,
    .expand = expand,
    .scores = neon::scores,
    .weighted_values = neon::weighted_values,
    .largest = neon::largest,
    .exponentials = neon::exponentials,
    .sum_squares = sum_squares,
    .softcap = neon::softcap,
    .geglu = neon::geglu,
};

}  // namespace gem::cpu

#endif
