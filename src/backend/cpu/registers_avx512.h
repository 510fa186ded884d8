// Loads, sums and tiles that the AVX-512 kernels share; for files that are built for AVX-512, each with its
// own copy.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own header begins results with "__Y = __Y" and warns of it where they are inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/kernels.h"

namespace gem::cpu {
namespace {

inline __m512i load(const void* p) {
  return _mm512_loadu_si512(p);
}
// Columns 2p and 2p + 1 in every 32-bit lane.
inline __m512i two_columns(const std::int16_t* q) {
  std::int32_t both;
  std::memcpy(&both, q, sizeof both);
  return _mm512_set1_epi32(both);
}
inline __m512 sixteen_halves(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Cache lines that a decode kernel reads some 2 KB later.
[[gnu::always_inline]] inline void prefetch(const std::byte* codes, std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i)
    _mm_prefetch(reinterpret_cast<const char*>(codes + 2048 + 64 * i), _MM_HINT_T0);
}

// y = fma(dot, weight scale * x scale, y)
inline __m512 add_block(__m512i dot, __m512 weight_scale, float x_scale, __m512 y) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(weight_scale, _mm512_set1_ps(x_scale)), y);
}

// Dot products of R rows in C chains each: an instruction takes 5 cycles, two start a cycle, so that fewer
// than ten chains leave the multipliers waiting.
template <unsigned R, unsigned C>
struct Dots {
  __m512i chain[R][C];
  void clear() {
    for (unsigned r = 0; r < R; ++r) {
      for (unsigned c = 0; c < C; ++c) chain[r][c] = _mm512_setzero_si512();
    }
  }
  void add(unsigned r, unsigned c, __m512i w, const std::int16_t* q) {
    chain[r][c % C] = _mm512_dpwssd_epi32(chain[r][c % C], w, two_columns(q));
  }
  __m512i sum(unsigned r) const {
    __m512i total = chain[r][0];
    for (unsigned c = 1; c < C; ++c) total = _mm512_add_epi32(total, chain[r][c]);
    return total;
  }
};

template <unsigned R>
constexpr unsigned kChains = R == 1   ? 4
                             : R <= 4 ? 2
                                      : 1;

// The sum of `start` and the products of one activation row with kVectors * 8 columns of 16 rows, nibbles 0
// to 15 as packed.h lays them, multiplied where they stand as add_nibbles of registers_avx2.h does.
// `above(w)` may put bits over the nibbles of a vector, w[3] being the one shifted down.
template <unsigned kVectors, typename Above>
inline __m512i add_nibbles(const std::byte* codes, const std::int16_t* q, __m512i start, const Above& above) {
  const __m512i mask0 = _mm512_set1_epi16(0x000f);
  const __m512i mask1 = _mm512_set1_epi16(0x00f0);
  const __m512i mask2 = _mm512_set1_epi16(0x0f00);
  __m512i by1[2] = {start, _mm512_setzero_si512()};
  __m512i by16 = _mm512_setzero_si512();
  __m512i by256 = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (unsigned v = 0; v < kVectors; ++v, q += 8) {
    const __m512i words = load(codes + 64 * v);
    __m512i w[4] = {_mm512_and_si512(words, mask0), _mm512_and_si512(words, mask1),
                    _mm512_and_si512(words, mask2), _mm512_srli_epi16(words, 12)};
    above(w);
    by1[0] = _mm512_dpwssd_epi32(by1[0], w[0], two_columns(q));
    by16 = _mm512_dpwssd_epi32(by16, w[1], two_columns(q + 2));
    by256 = _mm512_dpwssd_epi32(by256, w[2], two_columns(q + 4));
    by1[1] = _mm512_dpwssd_epi32(by1[1], w[3], two_columns(q + 6));
  }
  return _mm512_add_epi32(_mm512_add_epi32(by1[0], by1[1]),
                          _mm512_add_epi32(_mm512_srai_epi32(by16, 4), _mm512_srai_epi32(by256, 8)));
}
inline __m512i add_nibbles(const std::byte* codes, const std::int16_t* q, __m512i start) {
  return add_nibbles<4>(codes, q, start, [](const __m512i(&)[4]) {});
}

// Rows in tiles of 12, then of 4, then one by one: 12 chains hide an instruction's latency.
template <template <unsigned> class Run, typename Weights>
void by_tiles(const Weights& weights, const Activations& x, std::size_t rows, float* out) {
  std::size_t r = 0;
  for (; r + 12 <= rows; r += 12) Run<12>::run(weights, x.at(r, 0), out + r * kGroupRows);
  for (; r + 4 <= rows; r += 4) Run<4>::run(weights, x.at(r, 0), out + r * kGroupRows);
  for (; r + 2 <= rows; r += 2) Run<2>::run(weights, x.at(r, 0), out + r * kGroupRows);
  for (; r < rows; ++r) Run<1>::run(weights, x.at(r, 0), out + r * kGroupRows);
}

}  // namespace
}  // namespace gem::cpu
