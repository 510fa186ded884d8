// AVX2 kernels of attention.
#if defined(__x86_64__)

#include "backend/cpu/attention_avx2.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

namespace gem::cpu {
namespace {

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

// How keys and values are read: eight elements, or one.
struct F32 {
  using Element = float;
  static __m256 eight(const float* p) { return _mm256_loadu_ps(p); }
  static float one(float x) { return x; }
};

struct F16 {
  using Element = std::uint16_t;
  static __m256 eight(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static float one(std::uint16_t x) { return _cvtsh_ss(x); }
};

struct BF16 {
  using Element = std::uint16_t;
  static __m256 eight(const std::uint16_t* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static float one(std::uint16_t x) { return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(x << 16))); }
};

// H queries against K keys: every pair has one chain of 8 lanes, whatever H and K.
template <typename T, unsigned H, unsigned K>
void score_tile(const float* q, std::size_t d, const typename T::Element* keys, float* out) {
  __m256 sums[H][K];
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned j = 0; j < K; ++j) sums[h][j] = _mm256_setzero_ps();
  }
  std::size_t i = 0;
  for (; i + 8 <= d; i += 8) {
    __m256 key[K];
    for (unsigned j = 0; j < K; ++j) key[j] = T::eight(keys + j * d + i);
    for (unsigned h = 0; h < H; ++h) {
      const __m256 query = _mm256_loadu_ps(q + h * d + i);
      for (unsigned j = 0; j < K; ++j) sums[h][j] = _mm256_fmadd_ps(query, key[j], sums[h][j]);
    }
  }
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned j = 0; j < K; ++j) {
      float sum = sum_lanes(sums[h][j]);
      for (std::size_t e = i; e < d; ++e) sum = std::fma(q[h * d + e], T::one(keys[j * d + e]), sum);
      out[h * kChunkKeys + j] = sum;
    }
  }
}

template <typename T, unsigned H, unsigned K>
void score_heads(const float* q, std::size_t d, const typename T::Element* keys,
                 const typename T::Element* values, std::size_t count, float* out) {
  std::size_t j = 0;
  for (; j + K <= count; j += K) {
    // The values are wanted next: 64 bytes ahead of need in the second-level cache.
    if (values != nullptr) {
      for (std::size_t i = 0; i < K * d; i += 64 / sizeof *values)
        _mm_prefetch(reinterpret_cast<const char*>(values + j * d + i), _MM_HINT_T1);
    }
    score_tile<T, H, K>(q, d, keys + j * d, out + j);
  }
  for (; j < count; ++j) score_tile<T, H, 1>(q, d, keys + j * d, out + j);
}

// H heads, 16 or 8 columns of the output, all keys in order.
template <typename T, unsigned H, unsigned V>
void value_strip(const float* p, std::size_t d, const typename T::Element* values, std::size_t count,
                 float* out) {
  __m256 sums[H][V];
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned v = 0; v < V; ++v) sums[h][v] = _mm256_loadu_ps(out + h * d + 8 * v);
  }
  for (std::size_t j = 0; j < count; ++j) {
    __m256 value[V];
    for (unsigned v = 0; v < V; ++v) value[v] = T::eight(values + j * d + 8 * v);
    for (unsigned h = 0; h < H; ++h) {
      const __m256 weight = _mm256_set1_ps(p[h * kChunkKeys + j]);
      for (unsigned v = 0; v < V; ++v) sums[h][v] = _mm256_fmadd_ps(weight, value[v], sums[h][v]);
    }
  }
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned v = 0; v < V; ++v) _mm256_storeu_ps(out + h * d + 8 * v, sums[h][v]);
  }
}

// Heads in fours against keys of which all fours find what they read in the second-level cache: the first
// four fetch them from memory. (All keys of a chunk, 256 kB with 512 columns in f32, would push each other
// out.)
constexpr std::size_t kKeyBlockBytes = 64 << 10;

template <typename T>
void all_scores(const float* q, std::size_t heads, std::size_t d, const std::byte* key_bytes,
                const std::byte* value_bytes, std::size_t count, float* out) {
  const auto* keys = reinterpret_cast<const typename T::Element*>(key_bytes);
  const auto* next = reinterpret_cast<const typename T::Element*>(value_bytes);
  const std::size_t block = std::max<std::size_t>(kKeyBlockBytes / (d * sizeof *keys) / 4 * 4, 4);
  for (std::size_t j = 0; j < count; j += block) {
    const std::size_t n = std::min(block, count - j);
    const auto* values = next != nullptr ? next + j * d : nullptr;
    std::size_t h = 0;
    for (; h + 4 <= heads; h += 4, values = nullptr)
      score_heads<T, 4, 2>(q + h * d, d, keys + j * d, values, n, out + h * kChunkKeys + j);
    for (; h + 2 <= heads; h += 2, values = nullptr)
      score_heads<T, 2, 4>(q + h * d, d, keys + j * d, values, n, out + h * kChunkKeys + j);
    for (; h < heads; ++h, values = nullptr)
      score_heads<T, 1, 4>(q + h * d, d, keys + j * d, values, n, out + h * kChunkKeys + j);
  }
}

// A strip of columns for all heads before the next strip: its values come from memory once.
template <typename T, unsigned V>
void strip_heads(const float* p, std::size_t heads, std::size_t d, const typename T::Element* values,
                 std::size_t count, float* out) {
  std::size_t h = 0;
  for (; h + 4 <= heads; h += 4) value_strip<T, 4, V>(p + h * kChunkKeys, d, values, count, out + h * d);
  for (; h + 2 <= heads; h += 2) value_strip<T, 2, V>(p + h * kChunkKeys, d, values, count, out + h * d);
  for (; h < heads; ++h) value_strip<T, 1, V>(p + h * kChunkKeys, d, values, count, out + h * d);
}

template <typename T>
void all_values(const float* p, std::size_t heads, std::size_t d, const std::byte* value_bytes,
                std::size_t count, float* out) {
  const auto* values = reinterpret_cast<const typename T::Element*>(value_bytes);
  std::size_t i = 0;
  for (; i + 16 <= d; i += 16) strip_heads<T, 2>(p, heads, d, values + i, count, out + i);
  for (; i + 8 <= d; i += 8) strip_heads<T, 1>(p, heads, d, values + i, count, out + i);
  for (; i < d; ++i) {
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t j = 0; j < count; ++j)
        out[h * d + i] = std::fma(p[h * kChunkKeys + j], T::one(values[j * d + i]), out[h * d + i]);
    }
  }
}

// exp(x) for x <= 0 (Cephes' expf): x = n ln 2 + r, a polynomial of degree 6 in r, within 2 units in the last
// place; 0 below -87. A NaN stays one: it is the second operand of max.
__m256 exp_negative(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-88.0f), x);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 y = _mm256_set1_ps(1.9875691500e-4f);
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
  y = _mm256_fmadd_ps(y, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 result = _mm256_mul_ps(y, _mm256_castsi256_ps(power));
  // -88 gives a denormal power: nothing is left of so small a weight.
  return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ), result);
}

}  // namespace

namespace avx2 {

void scores(const float* q, std::size_t heads, std::size_t d, StorageType type, const std::byte* keys,
            const std::byte* values, std::size_t count, float* out) {
  if (type == StorageType::kF16) return all_scores<F16>(q, heads, d, keys, values, count, out);
  if (type == StorageType::kBF16) return all_scores<BF16>(q, heads, d, keys, values, count, out);
  all_scores<F32>(q, heads, d, keys, values, count, out);
}

void weighted_values(const float* p, std::size_t heads, std::size_t d, StorageType type,
                     const std::byte* values, std::size_t count, float* out) {
  if (type == StorageType::kF16) return all_values<F16>(p, heads, d, values, count, out);
  if (type == StorageType::kBF16) return all_values<BF16>(p, heads, d, values, count, out);
  all_values<F32>(p, heads, d, values, count, out);
}

float largest(const float* x, std::size_t n) {
  std::size_t i = 0;
  float top = -INFINITY;
  if (n >= 8) {
    __m256 peak = _mm256_loadu_ps(x);
    for (i = 8; i + 8 <= n; i += 8) peak = _mm256_max_ps(peak, _mm256_loadu_ps(x + i));
    top = max_lanes(peak);
  }
  for (; i < n; ++i) top = std::max(top, x[i]);
  return top;
}

float exponentials(float* x, std::size_t n, float top) {
  const __m256 shift = _mm256_set1_ps(top);
  __m256 sums = _mm256_setzero_ps();
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 e = exp_negative(_mm256_sub_ps(_mm256_loadu_ps(x + i), shift));
    _mm256_storeu_ps(x + i, e);
    sums = _mm256_add_ps(sums, e);
  }
  if (i < n) {
    alignas(32) float rest[8];
    for (std::size_t k = 0; k < 8; ++k) rest[k] = i + k < n ? x[i + k] - top : -INFINITY;
    const __m256 e = exp_negative(_mm256_load_ps(rest));
    _mm256_store_ps(rest, e);
    for (std::size_t k = 0; i + k < n; ++k) x[i + k] = rest[k];
    sums = _mm256_add_ps(sums, e);
  }
  return sum_lanes(sums);
}

void softcap(float* x, std::size_t n, float cap) {
  // tanh(u) = (1 - exp(-2|u|)) / (1 + exp(-2|u|)) with the sign of u: off by 1e-7 at most.
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 caps = _mm256_set1_ps(cap);
  const auto eight = [&](__m256 v) {
    const __m256 u = _mm256_div_ps(v, caps);
    const __m256 e = exp_negative(_mm256_or_ps(_mm256_add_ps(u, u), sign));
    const __m256 t = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    return _mm256_mul_ps(caps, _mm256_or_ps(t, _mm256_and_ps(u, sign)));
  };
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, eight(_mm256_loadu_ps(x + i)));
  if (i == n) return;
  alignas(32) float rest[8] = {};
  for (std::size_t k = 0; i + k < n; ++k) rest[k] = x[i + k];
  _mm256_store_ps(rest, eight(_mm256_load_ps(rest)));
  for (std::size_t k = 0; i + k < n; ++k) x[i + k] = rest[k];
}

void geglu(const float* gate, const float* up, float* out, std::size_t n) {
  // g / (1 + exp(-2u)); exp_negative takes -|2u|: for u < 0, 1 / (1 + exp(-2u)) = exp(2u) / (1 + exp(2u)).
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 one = _mm256_set1_ps(1.0f);
  const auto eight = [&](__m256 g, __m256 u) {
    const __m256 cubic = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(0.044715f), g), g, one);
    const __m256 twice_u = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(1.5957691216057308f), g), cubic);
    const __m256 e = exp_negative(_mm256_or_ps(twice_u, sign));
    // The sign bit of u chooses the numerator. A NaN is in g as well as in u.
    const __m256 top = _mm256_blendv_ps(one, e, twice_u);
    return _mm256_mul_ps(_mm256_mul_ps(g, _mm256_div_ps(top, _mm256_add_ps(one, e))), u);
  };
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, eight(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  if (i == n) return;
  alignas(32) float g[8] = {};
  alignas(32) float u[8] = {};
  for (std::size_t k = 0; i + k < n; ++k) {
    g[k] = gate[i + k];
    u[k] = up[i + k];
  }
  _mm256_store_ps(g, eight(_mm256_load_ps(g), _mm256_load_ps(u)));
  for (std::size_t k = 0; i + k < n; ++k) out[i + k] = g[k];
}

}  // namespace avx2
}  // namespace gem::cpu

#endif
