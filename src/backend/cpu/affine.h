// Affine weights (MLX's, and GGUF's Q4_1, Q5_0 and Q5_1) as the cpu kernels read them: groups of 16 rows as
// in backend/cpu/packed.h, codes kept exactly, in as many bytes as the checkpoint has but for wider scales.
//
//   first, for every `group` columns: 16 scales, then 16 biases, bf16 as stored (f16 and f32 as f32); the
//     bias of Q5_0 is -16 times its scale
//   then, for every block of 32 columns, its codes in planes of 16-bit words [16 rows][2 columns of a pair]:
//     bytes   (8 bits)     16 vectors of 16 rows * 2 bytes, as Q8_0
//     nibbles (4, 5, 6)    4 words a lane, nibble i of word w belongs to pair 4w + i, as Q4_0
//     crumbs  (2, 3, 6)    2 words a lane, bits 2i and 2i + 1 of word w belong to pair 8w + i
//     bits    (3, 5)       1 word a lane, bit p belongs to pair p
//   6 bits are nibbles and crumbs, 5 nibbles and bits, 3 crumbs and bits, the lower plane first.
//
// A block of a product is y = fma(dot, scale * x scale, y), then y = fma(bias, x sum * x scale, y): what
// `tile` computes from a panel with minima, so that a row's bits do not depend on the way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels.h"
#include "base/affine.h"

namespace gem::cpu {

struct AffineLayout {
  std::size_t bits = 0;
  std::size_t group_blocks = 0;  // blocks that share a scale: 1, 2 or 4
  std::size_t blocks = 0;        // of a row
  bool wide = false;             // scales and biases are f32

  AffineLayout() = default;
  AffineLayout(const Affine& affine, std::size_t cols)
      : bits(affine.bits),
        group_blocks(affine.group / kBlock),
        blocks(cols / kBlock),
        wide(affine.scale_type != StorageType::kBF16) {}

  // Of a GGUF type whose blocks are affine: a scale for each, f32.
  AffineLayout(StorageType type, std::size_t cols)
      : bits(type == StorageType::kQ4_1 ? 4 : 5), group_blocks(1), blocks(cols / kBlock), wide(true) {}

  std::size_t scale_bytes() const { return wide ? 4 : 2; }
  std::size_t entry_bytes() const { return 2 * kGroupRows * scale_bytes(); }
  std::size_t codes() const { return blocks / group_blocks * entry_bytes(); }  // offset of the first block
  std::size_t block_bytes() const { return 4 * kGroupRows * bits; }
  std::size_t bytes() const { return codes() + blocks * block_bytes(); }
};

// Row `row` of `source` into lane `lane` of a packed group.
void pack_affine_row(const AffineLayout& layout, const Affine& source, const std::byte* codes,
                     std::size_t row, std::size_t lane, std::byte* out);

// Row of a GGUF type with affine blocks (Q4_1, Q5_0, Q5_1), likewise.
void pack_affine_blocks(const AffineLayout& layout, StorageType type, const std::byte* stored,
                        std::size_t lane, std::byte* out);

struct AffineKernels {
  // A packed group of 4 or 8 bits against `rows` activation rows: out[r * kGroupRows + i] = weight row i .
  // x_r. Null: products go through panels.
  void (*group)(const AffineLayout& layout, const std::byte* group, const Activations& x, std::size_t rows,
                float* out);
  // Blocks first .. first + panel.blocks - 1; fills scales and minima.
  void (*unpack)(const AffineLayout& layout, const std::byte* group, std::size_t first, const Panel& panel);
};

// Those that go with a table of kernels.
const AffineKernels& affine_kernels(const Kernels& kernels);

extern const AffineKernels kPortableAffine;
#if defined(__x86_64__)
extern const AffineKernels kAvx2Affine;
#endif

}  // namespace gem::cpu
