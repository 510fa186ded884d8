// AVX2, FMA and F16C kernels.
#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels.h"

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

void quantize_row(const float* x, std::size_t cols, PairOrder order, ActivationPair* out) {
  const std::size_t blocks = cols / 32;
  if (blocks % 2 != 0) std::memset(out + blocks / 2, 0, sizeof *out);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (std::size_t b = 0; b < blocks; ++b, x += 32) {
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
    const float scale = finite ? top / 32767.0f : std::numeric_limits<float>::quiet_NaN();
    const __m256 inverse = _mm256_set1_ps(finite && top > kTiniest ? 32767.0f / top : 0.0f);
    // 32 integers in order: packs works within 128-bit halves, the permutation puts the quarters right.
    __m256i i32[4];
    for (std::size_t i = 0; i < 4; ++i) {
      i32[i] = finite ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)) : _mm256_setzero_si256();
    }
    const __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi32(i32[0], i32[1]), 0xd8);  // elements 0-15
    const __m256i high =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(i32[2], i32[3]), 0xd8);  // elements 16-31
    ActivationPair& pair = out[b / 2];
    _mm_storeu_ps(pair.scale + 4 * (b % 2), _mm_set1_ps(scale));
    if (order == PairOrder::kBytes) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pair.q + 32 * (b % 2)), low);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pair.q + 32 * (b % 2) + 16), high);
      continue;
    }
    // Even elements to the lower 8 bytes of each half, odd ones to the upper, then even | odd of the whole
    // register.
    const __m256i split = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i l = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(low, split), 0xd8);
    const __m256i h = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(high, split), 0xd8);
    std::int16_t* q = pair.q + 8 * (b % 2);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm256_castsi256_si128(l));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm256_castsi256_si128(h));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 32), _mm256_extracti128_si256(l, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 48), _mm256_extracti128_si256(h, 1));
  }
}

__m256i load_q(const std::int16_t* q) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(q));
}
__m128i load_bytes(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// The f16 scales of two blocks, four lanes each.
__m256 two_scales(const std::byte* first, const std::byte* second) {
  std::uint16_t a;
  std::uint16_t b;
  std::memcpy(&a, first, sizeof a);
  std::memcpy(&b, second, sizeof b);
  const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(a | (std::uint32_t{b} << 16))));
  return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(both), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
}

// Two Q4_0 blocks against a pair of activation blocks of R rows. The 16 bytes of either block are eight
// 16-bit words of four nibbles; one mask or shift a nibble gives eight weights as 16-bit integers.
template <unsigned R>
void pair_q4_0(__m256i words, __m256 scales, const ActivationPair* x, std::size_t stride, __m256 (&sums)[R]) {
  const __m256i mask = _mm256_set1_epi16(15);
  const __m256i eight = _mm256_set1_epi16(8);
  const __m256i n0 = _mm256_sub_epi16(_mm256_and_si256(words, mask), eight);
  const __m256i n1 = _mm256_sub_epi16(_mm256_and_si256(_mm256_srli_epi16(words, 4), mask), eight);
  const __m256i n2 = _mm256_sub_epi16(_mm256_and_si256(_mm256_srli_epi16(words, 8), mask), eight);
  const __m256i n3 = _mm256_sub_epi16(_mm256_srli_epi16(words, 12), eight);
  for (unsigned r = 0; r < R; ++r) {
    const ActivationPair& pair = x[r * stride];
    // |n| <= 8 and |q| <= 32767: eight products stay below 2^21, exact in 32 bits and in f32.
    const __m256i even =
        _mm256_add_epi32(_mm256_madd_epi16(n0, load_q(pair.q)), _mm256_madd_epi16(n1, load_q(pair.q + 16)));
    const __m256i odd = _mm256_add_epi32(_mm256_madd_epi16(n2, load_q(pair.q + 32)),
                                         _mm256_madd_epi16(n3, load_q(pair.q + 48)));
    const __m256 dot = _mm256_cvtepi32_ps(_mm256_add_epi32(even, odd));
    sums[r] = _mm256_fmadd_ps(dot, _mm256_mul_ps(scales, _mm256_load_ps(pair.scale)), sums[r]);
  }
}

template <unsigned R>
void rows_q4_0(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
               float* out) {
  __m256 sums[R];
  for (unsigned r = 0; r < R; ++r) sums[r] = _mm256_setzero_ps();
  const std::size_t blocks = cols / 32;
  for (std::size_t p = 0; p < blocks / 2; ++p, w += 36) {
    const __m256i words =
        _mm256_inserti128_si256(_mm256_castsi128_si256(load_bytes(w + 2)), load_bytes(w + 20), 1);
    pair_q4_0<R>(words, two_scales(w, w + 18), x + p, stride, sums);
  }
  if (blocks % 2 != 0) {  // the second block's activations are zero, whatever its weights
    const __m256i words = _mm256_inserti128_si256(_mm256_setzero_si256(), load_bytes(w + 2), 0);
    pair_q4_0<R>(words, two_scales(w, w), x + blocks / 2, stride, sums);
  }
  for (unsigned r = 0; r < R; ++r) out[r] = sum_lanes(sums[r]);
}

template <unsigned R>
void rows_q8_0(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
               float* out) {
  __m256 sums[R];
  for (unsigned r = 0; r < R; ++r) sums[r] = _mm256_setzero_ps();
  for (std::size_t b = 0; b < cols / 32; ++b, w += 34) {
    const __m256i low = _mm256_cvtepi8_epi16(load_bytes(w + 2));
    const __m256i high = _mm256_cvtepi8_epi16(load_bytes(w + 18));
    std::uint16_t d;
    std::memcpy(&d, w, sizeof d);
    const float scale = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(d)));
    for (unsigned r = 0; r < R; ++r) {
      const ActivationPair& pair = x[r * stride + b / 2];
      const std::int16_t* q = pair.q + 32 * (b % 2);
      // |w| <= 128 and |q| <= 32767: four products stay below 2^25 in 32 bits; the conversion rounds to f32.
      const __m256i dot =
          _mm256_add_epi32(_mm256_madd_epi16(low, load_q(q)), _mm256_madd_epi16(high, load_q(q + 16)));
      const __m256 both = _mm256_set1_ps(scale * pair.scale[4 * (b % 2)]);
      sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, sums[r]);
    }
  }
  for (unsigned r = 0; r < R; ++r) out[r] = sum_lanes(sums[r]);
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

// Turns a row count into a template argument.
template <template <unsigned> class Run, typename... Args>
void by_rows(unsigned rows, Args... args) {
  switch (rows) {
    case 1:
      return Run<1>::run(args...);
    case 2:
      return Run<2>::run(args...);
    case 3:
      return Run<3>::run(args...);
    default:
      return Run<4>::run(args...);
  }
}
static_assert(kRowTile == 4);

template <unsigned R>
struct RunQ40 {
  static void run(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
                  float* out) {
    rows_q4_0<R>(w, x, stride, cols, out);
  }
};
template <unsigned R>
struct RunQ80 {
  static void run(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
                  float* out) {
    rows_q8_0<R>(w, x, stride, cols, out);
  }
};
template <unsigned R>
struct RunF32 {
  static void run(const float* w, const float* x, std::size_t stride, std::size_t cols, float* out) {
    rows_f32<R>(w, x, stride, cols, out);
  }
};

void dot_q4_0(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
              unsigned rows, float* out) {
  by_rows<RunQ40>(rows, w, x, stride, cols, out);
}

void dot_q8_0(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
              unsigned rows, float* out) {
  by_rows<RunQ80>(rows, w, x, stride, cols, out);
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

void add_scaled(float a, const float* x, float* out, std::size_t n) {
  const __m256 factor = _mm256_set1_ps(a);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_fmadd_ps(factor, _mm256_loadu_ps(x + i), _mm256_loadu_ps(out + i)));
  }
  for (; i < n; ++i) out[i] = std::fma(a, x[i], out[i]);
}

// clang 14 does not know "f16c" in __builtin_cpu_supports: CPUID leaf 1, ECX bit 29.
bool has_avx2() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
  return f16c && __builtin_cpu_supports("avx2") > 0 && __builtin_cpu_supports("fma") > 0;
}

}  // namespace

const Kernels kAvx2Kernels = {
    .name = "avx2",
    .supported = has_avx2,
    .quantize = quantize_row,
    .dot_q4_0 = dot_q4_0,
    .dot_q8_0 = dot_q8_0,
    .dot_f32 = dot_f32,
    .expand = expand,
    .sum_squares = sum_squares,
    .add_scaled = add_scaled,
    .geglu = [](const float* gate, const float* up, float* out,
                std::size_t n) { kPortableKernels.geglu(gate, up, out, n); },
};

}  // namespace gem::cpu

#endif
