// The inner loops of the cpu backend: one table of functions per instruction set, chosen at run time.
//
// Products with integer storage types round the activations to 16 bits a block of 32 (scale = max|x| /
// 32767), so the dot product of a block is an exact integer. A row of a product is then
//     y = fma(dot_b, weight_scale_b * x_scale_b, y) over the blocks b in order, starting from 0,
// the same sequence in every kernel, for one row or many: the bits of a row depend neither on the number of
// rows (law 1) nor on which kernel multiplied it.
//
// Weights lie in groups of 16 rows (backend/cpu/packed.h), so that a lane of a vector register is a row of
// the matrix: one load of activations serves 16 rows, and no lane is ever summed with another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/storage.h"

namespace gem::cpu {

// Blocks of smaller magnitude count as zero: 32767 over it would overflow.
inline constexpr float kTiniest = 1e-30f;

inline constexpr std::size_t kBlock = 32;  // activations that share a scale

// Rows of a weight group: two vectors of 8 lanes, or one of 16.
inline constexpr unsigned kGroupRows = 16;

// Bytes of the f16 scales at the front of a Q4_0 or Q8_0 group.
inline std::size_t group_scale_bytes(std::size_t blocks) {
  return (blocks * kGroupRows * 2 + 63) / 64 * 64;
}

// Most activation rows that one call of dot_f32 takes.
inline constexpr unsigned kRowTile = 4;

// Keys of one chunk of attention: with 256 columns their values take a quarter of a core's own cache.
inline constexpr std::uint32_t kChunkKeys = 128;

// Most blocks of a panel: 16 KB of codes stay in the first-level cache while the activation rows pass by.
inline constexpr std::size_t kPanelBlocks = 16;

// Activation rows whose planes (Kernels::split) lie together.
inline constexpr std::size_t kPlaneRows = 16;

// Activation rows in 16-bit blocks. Row r begins r * stride integers, and r * blocks scales, after the first.
struct Activations {
  const std::int16_t* q = nullptr;
  const float* scale = nullptr;        // a block; NaN where the block held a NaN or an infinity
  const std::int32_t* sums = nullptr;  // of the integers of each half of a block
  std::size_t stride = 0;
  std::size_t blocks = 0;
  // Of every kPlaneRows rows: [blocks][kPlaneRows][2 * kBlock], what Kernels::split made of q. Or null.
  const std::int8_t* planes = nullptr;

  // Without planes where `row` is not the first of its kPlaneRows.
  Activations at(std::size_t row, std::size_t block) const {
    const bool splits = planes != nullptr && row % kPlaneRows == 0;
    return {q + row * stride + block * kBlock,
            scale + row * blocks + block,
            sums + 2 * (row * blocks + block),
            stride,
            blocks,
            splits ? planes + 2 * (row * stride + block * kPlaneRows * kBlock) : nullptr};
  }
  std::int32_t half_sum(std::size_t row, std::size_t block, std::size_t half) const {
    return sums[2 * (row * blocks + block) + half];
  }
  std::int32_t sum(std::size_t row, std::size_t block) const {
    return half_sum(row, block, 0) + half_sum(row, block, 1);
  }
  // What a minimum is multiplied by.
  float scaled_sum(std::size_t row, std::size_t block) const {
    return static_cast<float>(sum(row, block)) * scale[row * blocks + block];
  }
};

// Blocks of one weight group, unpacked to 16-bit integers: weight = code * scale + minimum.
struct Panel {
  std::size_t blocks = 0;
  unsigned scales_per_block = 1;  // 2: one for each half of a block (Q6_K)
  bool has_minima = false;
  std::int16_t* codes = nullptr;  // [blocks][16 pairs of columns][kGroupRows][2]
  float* scales = nullptr;        // [blocks][scales_per_block][kGroupRows]
  float* minima = nullptr;        // [blocks][kGroupRows]
};

struct Kernels {
  const char* name;
  bool (*supported)();  // by this processor

  // x[cols] -> cols integers, and a scale and two sums a block. cols is a multiple of 32.
  void (*quantize)(const float* x, std::size_t cols, std::int16_t* q, float* scale, std::int32_t* sums);

  // q[cols] -> the 32 upper bytes of a block, signed, then its 32 lower ones, unsigned. Null: nothing reads
  // them.
  void (*split)(const std::int16_t* q, std::size_t cols, std::int8_t* planes);

  // A packed group of `x.blocks` blocks against `rows` activation rows:
  // out[r * kGroupRows + i] = weight row i . x_r.
  void (*group_q4_0)(const std::byte* group, const Activations& x, std::size_t rows, float* out);
  void (*group_q8_0)(const std::byte* group, const Activations& x, std::size_t rows, float* out);
  // The same for Q4_K, Q5_K and Q6_K (backend/cpu/super_blocks.h). Null: products go through panels.
  void (*group_super)(StorageType type, const std::byte* group, const Activations& x, std::size_t rows,
                      float* out);

  // Blocks first .. first + panel.blocks - 1 of a packed group of `blocks` blocks.
  void (*unpack_q4_0)(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel);
  void (*unpack_q8_0)(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel);

  // The same for Q4_K, Q5_K and Q6_K (backend/cpu/super_blocks.h).
  void (*unpack_super)(StorageType type, const std::byte* group, std::size_t first, const Panel& panel);

  // Goes on with y for the panel's blocks: out[r * kGroupRows + i] is y before and after. `x` begins at the
  // panel's first block.
  void (*tile)(const Panel& panel, const Activations& x, std::size_t rows, float* out);

  // One f32 weight row against `rows` (1 .. kRowTile) rows, `stride` floats apart: out[r] = w . x_r.
  void (*dot_f32)(const float* w, const float* x, std::size_t stride, std::size_t cols, unsigned rows,
                  float* out);

  // Storage -> f32, bit-equal to dequantize().
  void (*expand)(StorageType type, const std::byte* source, float* out, std::size_t elements);

  // Attention of `heads` query rows, d apart, over `count` (at most kChunkKeys) keys, d elements apart:
  // out[h * kChunkKeys + j] = q_h . k_j. Keys and values are stored as `type` (F32, F16 or BF16); what they
  // widen to is exact, so the bits are those of the same numbers in f32. `values`, wanted next, may be
  // fetched ahead.
  void (*scores)(const float* q, std::size_t heads, std::size_t d, StorageType type, const std::byte* keys,
                 const std::byte* values, std::size_t count, float* out);
  // out[h * d + i] += p[h * kChunkKeys + j] * values[j * d + i] over the keys j in order
  void (*weighted_values)(const float* p, std::size_t heads, std::size_t d, StorageType type,
                          const std::byte* values, std::size_t count, float* out);
  float (*largest)(const float* x, std::size_t n);
  // x[i] = exp(x[i] - top), where no x[i] is above top; their sum. A NaN stays one.
  float (*exponentials)(float* x, std::size_t n, float top);

  float (*sum_squares)(const float* x, std::size_t n);
  // x[i] = cap * tanh(x[i] / cap)
  void (*softcap)(float* x, std::size_t n, float cap);
  // out[i] = gelu_tanh(gate[i]) * up[i]; out may be gate or up
  void (*geglu)(const float* gate, const float* up, float* out, std::size_t n);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
// Asked in a file that is built for any processor.
bool has_avx2();
bool has_avx512();
bool has_amx();  // asks the system for the use of tiles
#endif
#if defined(__aarch64__)
extern const Kernels kNeonKernels;
bool has_neon_dot();  // the dot product of bytes, Armv8.2
#endif

// Every table built in, best first. The last one runs anywhere.
std::span<const Kernels* const> all_kernels();
// The best that this processor runs, or the one that the environment variable GEM_CPU_ISA names.
// Error(kUsage) when that one is unknown or not supported here.
const Kernels& choose_kernels();

}  // namespace gem::cpu
