// Stands before the compiler's own header where the AVX-512 kernels are tested on a processor without AVX-512
// (tools/avx512-check.sh): their instructions become SIMDe's functions, the rest loops here.
#pragma once

#include_next <immintrin.h>
#include <simde/x86/avx512.h>

inline simde__m512 emulated_cvtph_ps(__m256i halves) {
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  float lanes[16];
  _mm256_storeu_ps(lanes, low);
  _mm256_storeu_ps(lanes + 8, high);
  return simde_mm512_loadu_ps(lanes);
}

inline simde__m512 emulated_cvtepi32_ps(simde__m512i integers) {
  int from[16];
  float to[16];
  simde_mm512_storeu_si512(from, integers);
  for (int i = 0; i < 16; ++i) to[i] = static_cast<float>(from[i]);
  return simde_mm512_loadu_ps(to);
}

inline simde__m512i emulated_srai_epi32(simde__m512i integers, unsigned count) {
  int lanes[16];
  simde_mm512_storeu_si512(lanes, integers);
  for (int& lane : lanes) lane >>= count;
  return simde_mm512_loadu_si512(lanes);
}

// Bytes, or unsigned ones, as 32-bit integers.
template <typename Byte>
simde__m512i emulated_widen(__m128i bytes) {
  Byte from[16];
  int to[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(from), bytes);
  for (int i = 0; i < 16; ++i) to[i] = from[i];
  return simde_mm512_loadu_si512(to);
}

#define __m512 simde__m512
#define __m512i simde__m512i
#define _mm512_add_epi32 simde_mm512_add_epi32
#define _mm512_and_si512 simde_mm512_and_si512
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtepi8_epi16 simde_mm512_cvtepi8_epi16
#define _mm512_cvtepi8_epi32 emulated_widen<signed char>
#define _mm512_cvtepu8_epi32 emulated_widen<unsigned char>
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_dpwssd_epi32 simde_mm512_dpwssd_epi32
#define _mm512_fmadd_ps simde_mm512_fmadd_ps
#define _mm512_fnmadd_ps simde_mm512_fnmadd_ps
#define _mm512_loadu_ps simde_mm512_loadu_ps
#define _mm512_loadu_si512 simde_mm512_loadu_si512
#define _mm512_mul_ps simde_mm512_mul_ps
#define _mm512_set1_epi16 simde_mm512_set1_epi16
#define _mm512_set1_epi32 simde_mm512_set1_epi32
#define _mm512_set1_ps simde_mm512_set1_ps
#define _mm512_setzero_ps simde_mm512_setzero_ps
#define _mm512_setzero_si512 simde_mm512_setzero_si512
#define _mm512_slli_epi16 simde_mm512_slli_epi16
#define _mm512_srai_epi32 emulated_srai_epi32
#define _mm512_srli_epi16 simde_mm512_srli_epi16
#define _mm512_storeu_ps simde_mm512_storeu_ps
#define _mm512_storeu_si512 simde_mm512_storeu_si512
#define _mm512_sub_epi16 simde_mm512_sub_epi16
#define _mm512_ternarylogic_epi64 simde_mm512_ternarylogic_epi64
