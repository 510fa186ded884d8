// AVX2, FMA and F16C kernels.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/attention_avx2.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/registers_avx2.h"
#include "backend/cpu/super_avx2.h"
#include "backend/cpu/super_blocks.h"

namespace gem::cpu {
namespace {

// Lanes folded in a fixed order: upper half, then pairs.
float sum_lanes(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  s = _mm_add_ss(s, _mm_movehdup_ps(s));
  return _mm_cvtss_f32(s);
}

float max_lanes(__m256 v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  s = _mm_max_ss(s, _mm_movehdup_ps(s));
  return _mm_cvtss_f32(s);
}

void quantize_row(const float* x, std::size_t cols, std::int16_t* q, float* scales, std::int32_t* sums) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256i ones = _mm256_set1_epi16(1);
  for (std::size_t b = 0; b < cols / kBlock; ++b, x += kBlock, q += kBlock) {
    __m256 v[4];
    __m256 peak = _mm256_setzero_ps();
    __m256 poison = _mm256_setzero_ps();  // x - x is NaN exactly where x is NaN or infinite
    for (std::size_t i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      peak = _mm256_max_ps(peak, _mm256_andnot_ps(sign, v[i]));
      poison = _mm256_add_ps(poison, _mm256_sub_ps(v[i], v[i]));
    }
    const float top = max_lanes(peak);
    const bool finite = _mm256_movemask_ps(_mm256_cmp_ps(poison, poison, _CMP_UNORD_Q)) == 0;
    scales[b] = finite ? top / 32767.0f : std::numeric_limits<float>::quiet_NaN();
    const __m256 inverse = _mm256_set1_ps(finite && top > kTiniest ? 32767.0f / top : 0.0f);
    // packs works within 128-bit halves, the permutation puts the quarters right.
    __m256i i32[4];
    for (std::size_t i = 0; i < 4; ++i)
      i32[i] = finite ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)) : _mm256_setzero_si256();
    const __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi32(i32[0], i32[1]), 0xd8);
    const __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi32(i32[2], i32[3]), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + 16), high);
    const __m256i both = _mm256_hadd_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sum = _mm_hadd_epi32(sum, sum);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(sums + 2 * b), sum);
  }
}

// One activation row.
void one_row_q4_0(const std::byte* group, const Activations& x, float* out) {
  const std::byte* codes = group + group_scale_bytes(x.blocks);
  const std::int16_t* q = x.q;
  __m256 y[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (std::size_t b = 0; b < x.blocks; ++b, q += kBlock, codes += 16 * kGroupRows, group += 2 * kGroupRows) {
    prefetch(codes, 4);
    // Codes are n + 8: the products of the 8 with the activations are taken off at once.
    const __m256i eights = _mm256_set1_epi32(-8 * x.sum(0, b));
    __m256i dot[2] = {eights, eights};
    add_nibbles(codes, q, dot);
    const __m256 scale = _mm256_set1_ps(x.scale[b]);
    for (std::size_t half = 0; half < 2; ++half)
      y[half] = add_block(dot[half], eight_halves(group + 16 * half), scale, y[half]);
  }
  _mm256_storeu_ps(out, y[0]);
  _mm256_storeu_ps(out + 8, y[1]);
}

// Both halves share a broadcast of the activations. The sums stay in memory: the dot products take the
// registers.
template <unsigned R>
void rows_q4_0(const std::byte* group, const Activations& x, float* out) {
  const __m256i mask = _mm256_set1_epi16(15);
  const std::byte* codes = group + group_scale_bytes(x.blocks);
  const std::int16_t* q = x.q;
  for (unsigned r = 0; r < 2 * R; ++r) _mm256_storeu_ps(out + 8 * r, _mm256_setzero_ps());
  for (std::size_t b = 0; b < x.blocks; ++b, q += kBlock, codes += 16 * kGroupRows, group += 2 * kGroupRows) {
    prefetch(codes, 4);
    __m256i dot[R][2];
    for (unsigned r = 0; r < R; ++r) dot[r][0] = dot[r][1] = _mm256_set1_epi32(-8 * x.sum(r, b));
#pragma GCC unroll 4
    for (std::size_t v = 0; v < 4; ++v) {
      __m256i low = load(codes + 64 * v);
      __m256i high = load(codes + 64 * v + 32);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        const __m256i w0 = i < 3 ? _mm256_and_si256(low, mask) : low;  // nothing is left above the last one
        const __m256i w1 = i < 3 ? _mm256_and_si256(high, mask) : high;
        low = _mm256_srli_epi16(low, 4);
        high = _mm256_srli_epi16(high, 4);
        for (unsigned r = 0; r < R; ++r) {
          const __m256i columns = two_columns(q + r * x.stride + 8 * v + 2 * i);
          dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(w0, columns));
          dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(w1, columns));
          keep(dot[r][0]);
          keep(dot[r][1]);
        }
      }
    }
    const __m256 s0 = eight_halves(group);
    const __m256 s1 = eight_halves(group + 16);
    for (unsigned r = 0; r < R; ++r) {
      const __m256 scale = _mm256_set1_ps(x.scale[r * x.blocks + b]);
      float* y = out + r * kGroupRows;
      _mm256_storeu_ps(y, add_block(dot[r][0], s0, scale, _mm256_loadu_ps(y)));
      _mm256_storeu_ps(y + 8, add_block(dot[r][1], s1, scale, _mm256_loadu_ps(y + 8)));
    }
  }
}

// |w| <= 128 and |q| <= 32767: the 32 products of a block stay below 2^27.
template <unsigned R>
void rows_q8_0(const std::byte* group, const Activations& x, float* out) {
  const std::byte* codes = group + group_scale_bytes(x.blocks);
  const std::int16_t* q = x.q;
  __m256 y[R][2];
  for (unsigned r = 0; r < R; ++r) y[r][0] = y[r][1] = _mm256_setzero_ps();
  for (std::size_t b = 0; b < x.blocks; ++b, q += kBlock, codes += 32 * kGroupRows, group += 2 * kGroupRows) {
    __m256i dot[R][2];
    for (unsigned r = 0; r < R; ++r) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
    if (R == 1) prefetch(codes, 8);
    for (std::size_t p = 0; p < 16; ++p) {
      const __m256i low = _mm256_cvtepi8_epi16(load_bytes(codes + 32 * p));
      const __m256i high = _mm256_cvtepi8_epi16(load_bytes(codes + 32 * p + 16));
      for (unsigned r = 0; r < R; ++r) {
        const __m256i columns = two_columns(q + r * x.stride + 2 * p);
        dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(low, columns));
        dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(high, columns));
        keep(dot[r][0]);
        keep(dot[r][1]);
      }
    }
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256 weight_scale = eight_halves(group + 16 * half);
      for (unsigned r = 0; r < R; ++r) {
        const __m256 scale = _mm256_set1_ps(x.scale[r * x.blocks + b]);
        y[r][half] = add_block(dot[r][half], weight_scale, scale, y[r][half]);
      }
    }
  }
  for (unsigned r = 0; r < R; ++r) {
    _mm256_storeu_ps(out + r * kGroupRows, y[r][0]);
    _mm256_storeu_ps(out + r * kGroupRows + 8, y[r][1]);
  }
}

void unpack_scales(const std::byte* halves, std::size_t blocks, float* out) {
  for (std::size_t i = 0; i < blocks * kGroupRows; i += 8)
    _mm256_store_ps(out + i, eight_halves(halves + 2 * i));
}

void unpack_q4_0(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel) {
  unpack_scales(group + first * 2 * kGroupRows, panel.blocks, panel.scales);
  const std::byte* codes = group + group_scale_bytes(blocks) + first * 16 * kGroupRows;
  const __m256i mask = _mm256_set1_epi16(15);
  const __m256i eight = _mm256_set1_epi16(8);
  auto* out = reinterpret_cast<__m256i*>(panel.codes);
  for (std::size_t v = 0; v < panel.blocks * 4; ++v, codes += 64, out += 8) {
    for (std::size_t half = 0; half < 2; ++half) {
      __m256i words = load(codes + 32 * half);
      for (std::size_t i = 0; i < 4; ++i) {
        _mm256_store_si256(out + 2 * i + half, _mm256_sub_epi16(_mm256_and_si256(words, mask), eight));
        words = _mm256_srli_epi16(words, 4);
      }
    }
  }
}

void unpack_q8_0(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel) {
  unpack_scales(group + first * 2 * kGroupRows, panel.blocks, panel.scales);
  const std::byte* codes = group + group_scale_bytes(blocks) + first * 32 * kGroupRows;
  auto* out = reinterpret_cast<__m256i*>(panel.codes);
  for (std::size_t i = 0; i < panel.blocks * 32; ++i)
    _mm256_store_si256(out + i, _mm256_cvtepi8_epi16(load_bytes(codes + 16 * i)));
}

void unpack_super(StorageType type, const std::byte* group, std::size_t first, const Panel& panel) {
  unpack_super_blocks(type, group, first, panel,
                      [](const std::byte* halves, float* out) { unpack_scales(halves, 1, out); });
}

// `halves` pairs of columns share a scale: 16, or 8 where each half of a block has its own.
template <unsigned R, unsigned Scales, bool Minima>
void tile_rows(const Panel& panel, const Activations& x, float* out) {
  __m256 y[R][2];
  for (unsigned r = 0; r < R; ++r) {
    y[r][0] = _mm256_loadu_ps(out + r * kGroupRows);
    y[r][1] = _mm256_loadu_ps(out + r * kGroupRows + 8);
  }
  const std::int16_t* codes = panel.codes;
  const float* scales = panel.scales;
  const std::int16_t* q = x.q;
  for (std::size_t b = 0; b < panel.blocks; ++b) {
    for (unsigned part = 0; part < Scales; ++part, scales += kGroupRows) {
      __m256i dot[R][2];
      for (unsigned r = 0; r < R; ++r) {
        const __m256i columns = two_columns(q + r * x.stride);
        dot[r][0] = _mm256_madd_epi16(load(codes), columns);
        dot[r][1] = _mm256_madd_epi16(load(codes + 16), columns);
      }
      codes += 32;
      q += 2;
#pragma GCC unroll 16
      for (unsigned p = 1; p < 16 / Scales; ++p, codes += 32, q += 2) {
        const __m256i low = load(codes);
        const __m256i high = load(codes + 16);
        for (unsigned r = 0; r < R; ++r) {
          const __m256i columns = two_columns(q + r * x.stride);
          dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(low, columns));
          dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(high, columns));
          keep(dot[r][0]);
          keep(dot[r][1]);
        }
      }
      for (unsigned r = 0; r < R; ++r) {
        const __m256 scale = _mm256_set1_ps(x.scale[r * x.blocks + b]);
        y[r][0] = add_block(dot[r][0], _mm256_load_ps(scales), scale, y[r][0]);
        y[r][1] = add_block(dot[r][1], _mm256_load_ps(scales + 8), scale, y[r][1]);
      }
    }
    if constexpr (Minima) {
      for (unsigned r = 0; r < R; ++r) {
        const __m256 sum = _mm256_set1_ps(x.scaled_sum(r, b));
        y[r][0] = _mm256_fmadd_ps(_mm256_load_ps(panel.minima + b * kGroupRows), sum, y[r][0]);
        y[r][1] = _mm256_fmadd_ps(_mm256_load_ps(panel.minima + b * kGroupRows + 8), sum, y[r][1]);
      }
    }
  }
  for (unsigned r = 0; r < R; ++r) {
    _mm256_storeu_ps(out + r * kGroupRows, y[r][0]);
    _mm256_storeu_ps(out + r * kGroupRows + 8, y[r][1]);
  }
}

template <unsigned R>
void rows_f32(const float* w, const float* x, std::size_t stride, std::size_t cols, float* out) {
  __m256 a[R];
  __m256 b[R];
  for (unsigned r = 0; r < R; ++r) a[r] = b[r] = _mm256_setzero_ps();
  std::size_t i = 0;
  for (; i + 16 <= cols; i += 16) {
    const __m256 w0 = _mm256_loadu_ps(w + i);
    const __m256 w1 = _mm256_loadu_ps(w + i + 8);
    for (unsigned r = 0; r < R; ++r) {
      a[r] = _mm256_fmadd_ps(w0, _mm256_loadu_ps(x + r * stride + i), a[r]);
      b[r] = _mm256_fmadd_ps(w1, _mm256_loadu_ps(x + r * stride + i + 8), b[r]);
    }
  }
  for (unsigned r = 0; r < R; ++r) {
    float sum = sum_lanes(_mm256_add_ps(a[r], b[r]));
    for (std::size_t k = i; k < cols; ++k) sum = std::fma(w[k], x[r * stride + k], sum);
    out[r] = sum;
  }
}

template <unsigned R>
struct RunQ40 {
  static void run(const std::byte* group, const Activations& x, float* out) {
    R == 1 ? one_row_q4_0(group, x, out) : rows_q4_0<R>(group, x, out);
  }
};
template <unsigned R>
struct RunQ80 {
  static void run(const std::byte* group, const Activations& x, float* out) { rows_q8_0<R>(group, x, out); }
};
template <unsigned R>
struct RunTile {
  static void run(const Panel& panel, const Activations& x, float* out) {
    if (panel.scales_per_block == 2) return tile_rows<R, 2, false>(panel, x, out);
    if (panel.has_minima) return tile_rows<R, 1, true>(panel, x, out);
    tile_rows<R, 1, false>(panel, x, out);
  }
};
template <unsigned R>
struct RunF32 {
  static void run(const float* w, const float* x, std::size_t stride, std::size_t cols, float* out) {
    rows_f32<R>(w, x, stride, cols, out);
  }
};

void group_q4_0(const std::byte* group, const Activations& x, std::size_t rows, float* out) {
  by_tiles<RunQ40>(group, x, rows, out);
}

void group_q8_0(const std::byte* group, const Activations& x, std::size_t rows, float* out) {
  by_tiles<RunQ80>(group, x, rows, out);
}

void tile(const Panel& panel, const Activations& x, std::size_t rows, float* out) {
  by_tiles<RunTile>(panel, x, rows, out);
}

void dot_f32(const float* w, const float* x, std::size_t stride, std::size_t cols, unsigned rows,
             float* out) {
  by_rows<RunF32>(rows, w, x, stride, cols, out);
}

void expand(StorageType type, const std::byte* source, float* out, std::size_t elements) {
  if (elements % 8 == 0 && type == StorageType::kF16) {
    for (std::size_t i = 0; i < elements; i += 8)
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(load_bytes(source + 2 * i)));
  } else if (elements % 8 == 0 && type == StorageType::kBF16) {
    for (std::size_t i = 0; i < elements; i += 8) {
      const __m256i wide = _mm256_cvtepu16_epi32(load_bytes(source + 2 * i));
      _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
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

constinit const Kernels kAvx2Kernels = {
    .name = "avx2",
    .supported = has_avx2,
    .quantize = quantize_row,
    .split = nullptr,
    .group_q4_0 = group_q4_0,
    .group_q8_0 = group_q8_0,
    .group_super = avx2::group_super,
    .unpack_q4_0 = unpack_q4_0,
    .unpack_q8_0 = unpack_q8_0,
    .unpack_super = unpack_super,
    .tile = tile,
    .dot_f32 = dot_f32,
    .expand = expand,
    .scores = avx2::scores,
    .weighted_values = avx2::weighted_values,
    .largest = avx2::largest,
    .exponentials = avx2::exponentials,
    .sum_squares = sum_squares,
    .softcap = avx2::softcap,
    .geglu = avx2::geglu,
};

}  // namespace gem::cpu

#endif
