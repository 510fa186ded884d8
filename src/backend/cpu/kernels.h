// The inner loops of the cpu backend: one table of functions per instruction set, chosen at run time.
//
// Products with Q4_0 and Q8_0 matrices round the activations to 16 bits a block of 32 (scale = max|x| /
// 32767), so the sums of a block are exact integers and the result stays within a few 1e-5 of f32
// activations; all other types are expanded to f32. Every result is computed in an order fixed by the row
// length alone, so it does not depend on how many rows are multiplied together (law 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/storage.h"

namespace gem::cpu {

// Two blocks of 32 activations, in the order in which a kernel meets the weights.
struct alignas(32) ActivationPair {
  std::int16_t q[64];
  float scale[8];  // of the first block four times, of the second block four times
};

// The order of the 64 integers in a pair.
enum class PairOrder : std::uint8_t {
  kBytes,    // as they are: the first block, the second block
  kNibbles,  // four groups of 8 + 8: elements 0 2 .. 14, 16 18 .. 30, 1 3 .. 15, 17 19 .. 31 of either block,
             // as the nibbles of a Q4_0 block lie in its eight 16-bit words
};

inline std::size_t activation_pairs(std::size_t cols) {
  return (cols + 63) / 64;
}

// Blocks of smaller magnitude count as zero: 32767 over it would overflow.
inline constexpr float kTiniest = 1e-30f;

// Most activation rows that one call of a product kernel takes.
inline constexpr unsigned kRowTile = 4;

struct Kernels {
  const char* name;
  bool (*supported)();  // by this processor

  // x[cols] -> activation_pairs(cols) pairs; a missing last block is zero. cols is a multiple of 32. A NaN or
  // infinity in a block makes its scale NaN.
  void (*quantize)(const float* x, std::size_t cols, PairOrder order, ActivationPair* out);

  // One weight row against `rows` (1 .. kRowTile) activation rows, `stride` pairs or floats apart: out[r] = w
  // . x_r.
  void (*dot_q4_0)(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
                   unsigned rows, float* out);
  void (*dot_q8_0)(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
                   unsigned rows, float* out);
  void (*dot_f32)(const float* w, const float* x, std::size_t stride, std::size_t cols, unsigned rows,
                  float* out);

  // Storage -> f32, bit-equal to dequantize().
  void (*expand)(StorageType type, const std::byte* source, float* out, std::size_t elements);

  float (*sum_squares)(const float* x, std::size_t n);
  // out[0..n) += a * x[0..n)
  void (*add_scaled)(float a, const float* x, float* out, std::size_t n);
  // out[i] = gelu_tanh(gate[i]) * up[i]; out may be gate or up
  void (*geglu)(const float* gate, const float* up, float* out, std::size_t n);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
#endif

// Every table built in, best first. The last one runs anywhere.
std::span<const Kernels* const> all_kernels();
// The best that this processor runs, or the one that the environment variable GEM_CPU_ISA names.
// Error(kUsage) when that one is unknown or not supported here.
const Kernels& choose_kernels();

}  // namespace gem::cpu
