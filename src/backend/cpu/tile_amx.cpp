// AMX: products of a panel with many rows by tiles of bytes.
//
// A 16-bit activation is 256 h + l, h its signed upper and l its unsigned lower byte. A tile multiplies 32
// columns of 16 rows of either with 16 weight rows, exactly; 256 times the sum of h and that of l is the
// integer that the other kernels form, and what follows is what they do, so the bits are the same. Storing
// and scaling the sums takes most of the time, so half blocks with scales of their own (Q6_K) would gain
// nothing.
#if defined(__x86_64__)

#include "backend/cpu/tile_amx.h"

#include "backend/cpu/registers_avx512.h"

namespace gem::cpu::amx {
namespace {

constexpr std::size_t kTileBytes = kPlaneRows * 64;  // of sums

// Tile registers, by number: the intrinsics take no variables.
#define GEM_WEIGHTS 0
#define GEM_UPPER 1
#define GEM_LOWER 2
#define GEM_UPPER_SUMS 3
#define GEM_LOWER_SUMS 4

struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  TileShapes() {
    const auto set = [this](int tile, std::size_t count, std::size_t bytes) {
      rows[tile] = static_cast<std::uint8_t>(count);
      row_bytes[tile] = static_cast<std::uint16_t>(bytes);
    };
    set(GEM_WEIGHTS, kBlock / 4, 4 * kGroupRows);
    for (const int tile : {GEM_UPPER, GEM_LOWER}) set(tile, kPlaneRows, kBlock);
    for (const int tile : {GEM_UPPER_SUMS, GEM_LOWER_SUMS}) set(tile, kPlaneRows, 4 * kGroupRows);
  }
};
static_assert(sizeof(TileShapes) == 64);

// What was written before is in memory: GCC's intrinsics do not say that they read any.
void settle(const void* written) {
  asm volatile("" : : "r"(written) : "memory");
}

// A panel's codes as bytes, four columns of a row side by side: [blocks][8 quads of columns][kGroupRows][4].
void narrow(const Panel& panel, std::byte* out) {
  alignas(64) std::uint8_t order[64];
  for (unsigned lane = 0; lane < kGroupRows; ++lane) {
    for (unsigned i = 0; i < 4;
         ++i)  // the lower byte of integer i % 2 of the lane, of the first pair or the second
      order[4 * lane + i] = static_cast<std::uint8_t>((i < 2 ? 0 : 64) + 4 * lane + 2 * (i % 2));
  }
  const __m512i take = load(order);
  const std::int16_t* codes = panel.codes;
  for (std::size_t quad = 0; quad < panel.blocks * kBlock / 4; ++quad, codes += 4 * kGroupRows, out += 64)
    _mm512_storeu_si512(out, _mm512_permutex2var_epi8(load(codes), take, load(codes + 2 * kGroupRows)));
}

// The two sums of 16 x 16 products of a block. Codes of panels with minima are unsigned.
template <bool kUnsigned>
void multiply_tile(const std::byte* weights, const std::int8_t* planes, std::int32_t* sums) {
  _tile_loadd(GEM_WEIGHTS, weights, 64);
  _tile_zero(GEM_UPPER_SUMS);
  _tile_zero(GEM_LOWER_SUMS);
  _tile_loadd(GEM_UPPER, planes, 2 * kBlock);
  if constexpr (kUnsigned) {
    _tile_dpbsud(GEM_UPPER_SUMS, GEM_UPPER, GEM_WEIGHTS);
  } else {
    _tile_dpbssd(GEM_UPPER_SUMS, GEM_UPPER, GEM_WEIGHTS);
  }
  _tile_loadd(GEM_LOWER, planes + kBlock, 2 * kBlock);
  if constexpr (kUnsigned) {
    _tile_dpbuud(GEM_LOWER_SUMS, GEM_LOWER, GEM_WEIGHTS);
  } else {
    _tile_dpbusd(GEM_LOWER_SUMS, GEM_LOWER, GEM_WEIGHTS);
  }
  _tile_stored(GEM_UPPER_SUMS, sums, 64);
  _tile_stored(GEM_LOWER_SUMS, sums + kTileBytes / 4, 64);
}

// 16 rows of activations. The products of a block are under way while those of the block before are scaled.
template <bool kMinima>
void sixteen_rows(const Panel& panel, const std::byte* weights, const Activations& x, float* out) {
  // Copies: after every product the compiler would read x and the panel anew.
  const std::int8_t* const planes = x.planes;
  const float* const scales = panel.scales;
  const float* const minima = panel.minima;
  const std::size_t blocks = panel.blocks;
  const std::size_t stride = x.blocks;
  const float* x_scale = x.scale;
  const std::int32_t* x_sums = x.sums;
  alignas(64) std::int32_t sums[2][2 * kTileBytes / 4];
  __m512 y[kPlaneRows];
  for (std::size_t r = 0; r < kPlaneRows; ++r) y[r] = _mm512_loadu_ps(out + r * kGroupRows);
  const auto multiply = [&](std::size_t b) {
    multiply_tile<kMinima>(weights + b * kBlock * kGroupRows, planes + b * kPlaneRows * 2 * kBlock,
                           sums[b % 2]);
  };
  multiply(0);
  for (std::size_t b = 0; b < blocks; ++b, ++x_scale, x_sums += 2) {
    if (b + 1 < blocks) multiply(b + 1);
    const std::int32_t* const upper = sums[b % 2];
    const __m512 scale = _mm512_load_ps(scales + b * kGroupRows);
#pragma GCC unroll 16
    for (std::size_t r = 0; r < kPlaneRows; ++r) {
      const __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(load(upper + r * kGroupRows), 8),
                                           load(upper + kTileBytes / 4 + r * kGroupRows));
      y[r] = add_block(dot, scale, x_scale[r * stride], y[r]);
    }
    if constexpr (kMinima) {
      const __m512 minimum = _mm512_load_ps(minima + b * kGroupRows);
#pragma GCC unroll 16
      for (std::size_t r = 0; r < kPlaneRows; ++r) {
        const std::int32_t* const halves = x_sums + 2 * r * stride;
        const float sum = static_cast<float>(halves[0] + halves[1]) * x_scale[r * stride];
        y[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(sum), y[r]);
      }
    }
  }
  for (std::size_t r = 0; r < kPlaneRows; ++r) _mm512_storeu_ps(out + r * kGroupRows, y[r]);
}

template <bool kMinima>
void tiles(const Panel& panel, const Activations& x, std::size_t rows, float* out) {
  alignas(64) std::byte weights[kPanelBlocks * kBlock * kGroupRows];
  narrow(panel, weights);
  const TileShapes shapes;
  settle(weights);
  settle(&shapes);
  _tile_loadconfig(&shapes);
  for (std::size_t r = 0; r < rows; r += kPlaneRows)
    sixteen_rows<kMinima>(panel, weights, x.at(r, 0), out + r * kGroupRows);
  _tile_release();
}

}  // namespace

void tile(const Panel& panel, const Activations& x, std::size_t rows, float* out) {
  // One tile of rows alone would not make up for narrowing the panel.
  const bool suits = x.planes != nullptr && panel.scales_per_block == 1 && rows >= 2 * kPlaneRows;
  const std::size_t whole = suits ? rows / kPlaneRows * kPlaneRows : 0;
  if (whole != 0) panel.has_minima ? tiles<true>(panel, x, whole, out) : tiles<false>(panel, x, whole, out);
  if (whole < rows) kAvx512Kernels.tile(panel, x.at(whole, 0), rows - whole, out + whole * kGroupRows);
}

void split(const std::int16_t* q, std::size_t cols, std::int8_t* planes) {
  alignas(64) std::uint8_t order[64];
  for (unsigned i = 0; i < 32; ++i) {
    order[i] = static_cast<std::uint8_t>(2 * i + 1);
    order[32 + i] = static_cast<std::uint8_t>(2 * i);
  }
  const __m512i take = load(order);
  for (std::size_t i = 0; i < cols; i += kBlock)
    _mm512_storeu_si512(planes + i * 2 * kPlaneRows, _mm512_permutexvar_epi8(take, load(q + i)));
}

}  // namespace gem::cpu::amx

#endif
