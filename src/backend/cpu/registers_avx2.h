// Loads and folds that the AVX2 kernels share; for files that are built for AVX2, each with its own copy.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/kernels.h"

namespace gem::cpu {
namespace {

// How far ahead of its codes a decode kernel asks for memory: some 300 nanoseconds at 15 GB/s a core, and far
// enough to reach the next group's scales. A call that does nothing else has no effect in GCC's eyes, and is
// taken out.
constexpr std::size_t kPrefetch = 4096;

[[gnu::always_inline]] inline void prefetch(const std::byte* codes, std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i)
    _mm_prefetch(reinterpret_cast<const char*>(codes + kPrefetch + 64 * i), _MM_HINT_T0);
}

// An empty instruction that keeps the compiler from reordering a chain of additions: it would form all
// products first and spill them.
inline void keep(__m256i& v) {
  asm("" : "+x"(v));
}

inline __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline __m128i load_bytes(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
// Columns 2p and 2p + 1 in every 32-bit lane.
inline __m256i two_columns(const std::int16_t* q) {
  std::int32_t both;
  std::memcpy(&both, q, sizeof both);
  return _mm256_set1_epi32(both);
}

// Adds to dot[half] the products of one activation row with kVectors * 8 columns of 16 rows, nibbles 0 to 15
// as packed.h lays them. They are multiplied where they stand, times 1, 16 and 256 (the uppermost one is
// shifted down), and the sums are whole multiples of their factor, so shifting them back is exact.
// `above(half, w)` may put bits over the nibbles of a vector, w[3] being the one shifted down. Codes up to 31
// times 256 * 32767 * 8 products, or up to 63 times 4 products of two vectors, stay below 2^31.
template <std::size_t kVectors, typename Above>
inline void add_nibbles(const std::byte* codes, const std::int16_t* q, __m256i (&dot)[2],
                        const Above& above) {
  const __m256i mask0 = _mm256_set1_epi16(0x000f);
  const __m256i mask1 = _mm256_set1_epi16(0x00f0);
  const __m256i mask2 = _mm256_set1_epi16(0x0f00);
  __m256i by1[2] = {dot[0], dot[1]};
  __m256i by16[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  __m256i by256[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::size_t v = 0; v < kVectors; ++v) {
    const __m256i x0 = two_columns(q + 8 * v);
    const __m256i x1 = two_columns(q + 8 * v + 2);
    const __m256i x2 = two_columns(q + 8 * v + 4);
    const __m256i x3 = two_columns(q + 8 * v + 6);
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256i words = load(codes + 64 * v + 32 * half);
      __m256i w[4] = {_mm256_and_si256(words, mask0), _mm256_and_si256(words, mask1),
                      _mm256_and_si256(words, mask2), _mm256_srli_epi16(words, 12)};
      above(half, w);
      by1[half] = _mm256_add_epi32(by1[half], _mm256_madd_epi16(w[0], x0));
      by16[half] = _mm256_add_epi32(by16[half], _mm256_madd_epi16(w[1], x1));
      by256[half] = _mm256_add_epi32(by256[half], _mm256_madd_epi16(w[2], x2));
      by1[half] = _mm256_add_epi32(by1[half], _mm256_madd_epi16(w[3], x3));
      keep(by1[half]);
    }
  }
  for (std::size_t half = 0; half < 2; ++half)
    dot[half] = _mm256_add_epi32(
        by1[half], _mm256_add_epi32(_mm256_srai_epi32(by16[half], 4), _mm256_srai_epi32(by256[half], 8)));
}
inline void add_nibbles(const std::byte* codes, const std::int16_t* q, __m256i (&dot)[2]) {
  add_nibbles<4>(codes, q, dot, [](std::size_t, const __m256i(&)[4]) {});
}

inline __m256 eight_halves(const std::byte* p) {
  return _mm256_cvtph_ps(load_bytes(p));
}

// y = fma(dot, weight scale * x scale, y) for 8 rows.
inline __m256 add_block(__m256i dot, __m256 weight_scale, __m256 x_scale, __m256 y) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(weight_scale, x_scale), y);
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

// Rows in tiles of kRowTile: their dot products of two half groups take half of the registers.
template <template <unsigned> class Run, typename Weights>
void by_tiles(const Weights& weights, const Activations& x, std::size_t rows, float* out) {
  for (std::size_t r = 0; r < rows; r += kRowTile) {
    const auto count = static_cast<unsigned>(rows - r < kRowTile ? rows - r : kRowTile);
    by_rows<Run, const Weights&, const Activations&, float*>(count, weights, x.at(r, 0),
                                                             out + r * kGroupRows);
  }
}

}  // namespace
}  // namespace gem::cpu
