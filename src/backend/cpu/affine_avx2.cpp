// AVX2 kernels of affine weights: 4 and 8 bits in registers for few rows, all widths into panels. The AVX-512
// table uses them too.
#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/affine_unpack.h"
#include "backend/cpu/registers_avx2.h"

namespace gem::cpu {
namespace {

// Scales (or biases) of 8 rows.
template <bool kWide>
__m256 eight_scales(const std::byte* p) {
  if constexpr (kWide) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_bytes(p)), 16));
}

// y = fma(dot, scale * x scale, y), then y = fma(bias, x sum * x scale, y): as `tile` does.
__m256 add_block(__m256i dot, __m256 scale, __m256 bias, __m256 x_scale, __m256 x_sum, __m256 y) {
  return _mm256_fmadd_ps(bias, x_sum,
                         _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(scale, x_scale), y));
}

// One activation row of 4-bit codes.
template <bool kWide>
void one_row_nibbles(const AffineLayout& layout, const std::byte* group, const Activations& x, float* out) {
  constexpr std::size_t kHalf = 8 * (kWide ? 4 : 2);  // scales of 8 rows
  const std::byte* codes = group + layout.codes();
  const std::int16_t* q = x.q;
  const std::size_t last = layout.group_blocks - 1;
  __m256 y[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (std::size_t b = 0; b < x.blocks; ++b, q += kBlock, codes += 16 * kGroupRows) {
    prefetch(codes, 4);
    __m256i dot[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    add_nibbles(codes, q, dot);
    const __m256 x_scale = _mm256_set1_ps(x.scale[b]);
    const __m256 x_sum = _mm256_set1_ps(x.scaled_sum(0, b));
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256 scale = eight_scales<kWide>(group + kHalf * half);
      const __m256 bias = eight_scales<kWide>(group + 2 * kHalf + kHalf * half);
      y[half] = add_block(dot[half], scale, bias, x_scale, x_sum, y[half]);
    }
    if ((b & last) == last) group += 4 * kHalf;  // 1, 2 or 4 blocks share a scale
  }
  _mm256_storeu_ps(out, y[0]);
  _mm256_storeu_ps(out + 8, y[1]);
}

// R rows of activations. The sums stay in memory: the dot products take the registers. Codes up to 255 times
// |q| <= 32767, 32 of them, stay below 2^29.
template <unsigned R, bool kBytes, bool kWide>
void rows_affine(const AffineLayout& layout, const std::byte* group, const Activations& x, float* out) {
  if constexpr (R == 1 && !kBytes) return one_row_nibbles<kWide>(layout, group, x, out);
  constexpr std::size_t kHalf = 8 * (kWide ? 4 : 2);
  const __m256i mask = _mm256_set1_epi16(15);
  const std::byte* codes = group + layout.codes();
  const std::int16_t* q = x.q;
  const std::size_t last = layout.group_blocks - 1;
  for (unsigned r = 0; r < 2 * R; ++r) _mm256_storeu_ps(out + 8 * r, _mm256_setzero_ps());
  for (std::size_t b = 0; b < x.blocks; ++b, q += kBlock, codes += (kBytes ? 32 : 16) * kGroupRows) {
    prefetch(codes, kBytes ? 8 : 4);
    __m256i dot[R][2];
    for (unsigned r = 0; r < R; ++r) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
    const auto add_pair = [&](std::size_t pair, __m256i low, __m256i high) {
      for (unsigned r = 0; r < R; ++r) {
        const __m256i columns = two_columns(q + r * x.stride + 2 * pair);
        dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(low, columns));
        dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(high, columns));
        keep(dot[r][0]);
        keep(dot[r][1]);
      }
    };
    if constexpr (kBytes) {
#pragma GCC unroll 16
      for (std::size_t p = 0; p < 16; ++p)
        add_pair(p, _mm256_cvtepu8_epi16(load_bytes(codes + 32 * p)),
                 _mm256_cvtepu8_epi16(load_bytes(codes + 32 * p + 16)));
    } else {
#pragma GCC unroll 4
      for (std::size_t v = 0; v < 4; ++v) {
        __m256i low = load(codes + 64 * v);
        __m256i high = load(codes + 64 * v + 32);
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) {
          add_pair(4 * v + i, _mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
          low = _mm256_srli_epi16(low, 4);
          high = _mm256_srli_epi16(high, 4);
        }
      }
    }
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256 scale = eight_scales<kWide>(group + kHalf * half);
      const __m256 bias = eight_scales<kWide>(group + 2 * kHalf + kHalf * half);
      for (unsigned r = 0; r < R; ++r) {
        const std::size_t at = r * x.blocks + b;
        float* const y = out + r * kGroupRows + 8 * half;
        const __m256 x_sum = _mm256_set1_ps(x.scaled_sum(r, b));
        _mm256_storeu_ps(
            y, add_block(dot[r][half], scale, bias, _mm256_set1_ps(x.scale[at]), x_sum, _mm256_loadu_ps(y)));
      }
    }
    if ((b & last) == last) group += 4 * kHalf;
  }
}

template <bool kBytes, bool kWide>
void group_affine(const AffineLayout& layout, const std::byte* group, const Activations& x, std::size_t rows,
                  float* out) {
  for (std::size_t r = 0; r < rows; r += kRowTile) {
    const Activations part = x.at(r, 0);
    float* const to = out + r * kGroupRows;
    switch (rows - r) {
      case 1:
        rows_affine<1, kBytes, kWide>(layout, group, part, to);
        break;
      case 2:
        rows_affine<2, kBytes, kWide>(layout, group, part, to);
        break;
      case 3:
        rows_affine<3, kBytes, kWide>(layout, group, part, to);
        break;
      default:
        rows_affine<kRowTile, kBytes, kWide>(layout, group, part, to);
    }
  }
}

void group_affine(const AffineLayout& layout, const std::byte* group, const Activations& x, std::size_t rows,
                  float* out) {
  if (layout.bits == 8) {
    layout.wide ? group_affine<true, true>(layout, group, x, rows, out)
                : group_affine<true, false>(layout, group, x, rows, out);
  } else {
    layout.wide ? group_affine<false, true>(layout, group, x, rows, out)
                : group_affine<false, false>(layout, group, x, rows, out);
  }
}

}  // namespace

const AffineKernels kAvx2Affine = {.group = group_affine, .unpack = unpack_affine};

}  // namespace gem::cpu

#endif
