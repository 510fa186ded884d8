// AVX-512 kernels with VNNI: a register is a weight group, and one instruction multiplies and adds two
// columns of its 16 rows. What has no kernel here is that of AVX2.
#if defined(__x86_64__)

#include "backend/cpu/attention_avx2.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/registers_avx512.h"
#include "backend/cpu/super_avx512.h"
#include "backend/cpu/super_blocks.h"

namespace gem::cpu {
namespace {

void one_row_q4_0(const std::byte* group, const Activations& x, float* out) {
  const std::byte* codes = group + group_scale_bytes(x.blocks);
  __m512 y = _mm512_setzero_ps();
  for (std::size_t b = 0; b < x.blocks; ++b, codes += 16 * kGroupRows, group += 2 * kGroupRows) {
    prefetch(codes, 4);
    // Codes are n + 8: the products of the 8 with the activations are taken off at once.
    const __m512i dot = add_nibbles(codes, x.q + b * kBlock, _mm512_set1_epi32(-8 * x.sum(0, b)));
    y = add_block(dot, sixteen_halves(group), x.scale[b], y);
  }
  _mm512_storeu_ps(out, y);
}

template <unsigned R>
void rows_q4_0(const std::byte* group, const Activations& x, float* out) {
  const __m512i mask = _mm512_set1_epi16(15);
  const std::byte* codes = group + group_scale_bytes(x.blocks);
  const std::int16_t* q = x.q;
  __m512 y[R];
  for (unsigned r = 0; r < R; ++r) y[r] = _mm512_setzero_ps();
  for (std::size_t b = 0; b < x.blocks; ++b, q += kBlock, codes += 16 * kGroupRows, group += 2 * kGroupRows) {
    Dots<R, kChains<R>> dots;
    dots.clear();
    for (unsigned r = 0; r < R; ++r) dots.chain[r][0] = _mm512_set1_epi32(-8 * x.sum(r, b));
#pragma GCC unroll 4
    for (unsigned v = 0; v < 4; ++v) {
      __m512i words = load(codes + 64 * v);
#pragma GCC unroll 4
      for (unsigned i = 0; i < 4; ++i) {
        const __m512i w = _mm512_and_si512(words, mask);
        words = _mm512_srli_epi16(words, 4);
        for (unsigned r = 0; r < R; ++r) dots.add(r, i, w, q + r * x.stride + 8 * v + 2 * i);
      }
    }
    const __m512 scale = sixteen_halves(group);
    for (unsigned r = 0; r < R; ++r) y[r] = add_block(dots.sum(r), scale, x.scale[r * x.blocks + b], y[r]);
  }
  for (unsigned r = 0; r < R; ++r) _mm512_storeu_ps(out + r * kGroupRows, y[r]);
}

template <unsigned R>
void rows_q8_0(const std::byte* group, const Activations& x, float* out) {
  const std::byte* codes = group + group_scale_bytes(x.blocks);
  const std::int16_t* q = x.q;
  __m512 y[R];
  for (unsigned r = 0; r < R; ++r) y[r] = _mm512_setzero_ps();
  for (std::size_t b = 0; b < x.blocks; ++b, q += kBlock, codes += 32 * kGroupRows, group += 2 * kGroupRows) {
    Dots<R, kChains<R>> dots;
    dots.clear();
    if (R == 1) prefetch(codes, 8);
#pragma GCC unroll 16
    for (unsigned p = 0; p < 16; ++p) {
      const __m512i w =
          _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * p)));
      for (unsigned r = 0; r < R; ++r) dots.add(r, p, w, q + r * x.stride + 2 * p);
    }
    const __m512 scale = sixteen_halves(group);
    for (unsigned r = 0; r < R; ++r) y[r] = add_block(dots.sum(r), scale, x.scale[r * x.blocks + b], y[r]);
  }
  for (unsigned r = 0; r < R; ++r) _mm512_storeu_ps(out + r * kGroupRows, y[r]);
}

void unpack_scales(const std::byte* halves, std::size_t blocks, float* out) {
  for (std::size_t b = 0; b < blocks; ++b)
    _mm512_storeu_ps(out + b * kGroupRows, sixteen_halves(halves + 2 * kGroupRows * b));
}

void unpack_q4_0(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel) {
  unpack_scales(group + first * 2 * kGroupRows, panel.blocks, panel.scales);
  const std::byte* codes = group + group_scale_bytes(blocks) + first * 16 * kGroupRows;
  const __m512i mask = _mm512_set1_epi16(15);
  const __m512i eight = _mm512_set1_epi16(8);
  std::int16_t* out = panel.codes;
  for (std::size_t v = 0; v < panel.blocks * 4; ++v, codes += 64) {
    __m512i words = load(codes);
    for (unsigned i = 0; i < 4; ++i, out += 2 * kGroupRows) {
      _mm512_storeu_si512(out, _mm512_sub_epi16(_mm512_and_si512(words, mask), eight));
      words = _mm512_srli_epi16(words, 4);
    }
  }
}

void unpack_q8_0(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel) {
  unpack_scales(group + first * 2 * kGroupRows, panel.blocks, panel.scales);
  const std::byte* codes = group + group_scale_bytes(blocks) + first * 32 * kGroupRows;
  for (std::size_t i = 0; i < panel.blocks * 16; ++i) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * i));
    _mm512_storeu_si512(panel.codes + i * 2 * kGroupRows, _mm512_cvtepi8_epi16(bytes));
  }
}

void unpack_super(StorageType type, const std::byte* group, std::size_t first, const Panel& panel) {
  unpack_super_blocks(type, group, first, panel,
                      [](const std::byte* halves, float* out) { unpack_scales(halves, 1, out); });
}

// Scales: 1, or 2 where each half of a block has its own.
template <unsigned R, unsigned Scales, bool Minima>
void rows_tile(const Panel& panel, const Activations& x, float* out) {
  __m512 y[R];
  for (unsigned r = 0; r < R; ++r) y[r] = _mm512_loadu_ps(out + r * kGroupRows);
  const std::int16_t* codes = panel.codes;
  const float* scales = panel.scales;
  const std::int16_t* q = x.q;
  for (std::size_t b = 0; b < panel.blocks; ++b) {
    for (unsigned part = 0; part < Scales; ++part, scales += kGroupRows) {
      Dots<R, kChains<R>> dots;
      dots.clear();
#pragma GCC unroll 16  // rolled up, the compiler moves every chain once a pass
      for (unsigned p = 0; p < 16 / Scales; ++p, codes += 2 * kGroupRows, q += 2) {
        const __m512i w = load(codes);
        for (unsigned r = 0; r < R; ++r) dots.add(r, p, w, q + r * x.stride);
      }
      const __m512 scale = _mm512_loadu_ps(scales);
      for (unsigned r = 0; r < R; ++r) y[r] = add_block(dots.sum(r), scale, x.scale[r * x.blocks + b], y[r]);
    }
    if constexpr (Minima) {
      const __m512 minimum = _mm512_loadu_ps(panel.minima + b * kGroupRows);
      for (unsigned r = 0; r < R; ++r) {
        y[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x.scaled_sum(r, b)), y[r]);
      }
    }
  }
  for (unsigned r = 0; r < R; ++r) _mm512_storeu_ps(out + r * kGroupRows, y[r]);
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
    if (panel.scales_per_block == 2) return rows_tile<R, 2, false>(panel, x, out);
    if (panel.has_minima) return rows_tile<R, 1, true>(panel, x, out);
    rows_tile<R, 1, false>(panel, x, out);
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

}  // namespace

// Nothing but constants: an initialiser that ran would run on processors without AVX-512 too.
constinit const Kernels kAvx512Kernels = {
    .name = "avx512",
    .supported = has_avx512,
    .quantize = [](const float* x, std::size_t cols, std::int16_t* q, float* scale,
                   std::int32_t* sums) { kAvx2Kernels.quantize(x, cols, q, scale, sums); },
    .split = nullptr,
    .group_q4_0 = group_q4_0,
    .group_q8_0 = group_q8_0,
    .group_super = avx512::group_super,
    .unpack_q4_0 = unpack_q4_0,
    .unpack_q8_0 = unpack_q8_0,
    .unpack_super = unpack_super,
    .tile = tile,
    .dot_f32 = [](const float* w, const float* x, std::size_t stride, std::size_t cols, unsigned rows,
                  float* out) { kAvx2Kernels.dot_f32(w, x, stride, cols, rows, out); },
    .expand = [](StorageType type, const std::byte* source, float* out,
                 std::size_t elements) { kAvx2Kernels.expand(type, source, out, elements); },
    .scores = avx2::scores,
    .weighted_values = avx2::weighted_values,
    .largest = avx2::largest,
    .exponentials = avx2::exponentials,
    .sum_squares = [](const float* x, std::size_t n) { return kAvx2Kernels.sum_squares(x, n); },
    .softcap = avx2::softcap,
    .geglu = avx2::geglu,
};

}  // namespace gem::cpu

#endif
