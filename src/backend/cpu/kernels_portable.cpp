// The scalar kernels: any processor. The compiler may vectorise them; results keep the order written here.
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels.h"
#include "base/numbers.h"

namespace gem::cpu {
namespace {

// Where element e of a block stands among the 32 integers of its block in a pair of either order.
std::size_t slot_in_pair(PairOrder order, std::size_t block, std::size_t e) {
  if (order == PairOrder::kBytes) return 32 * block + e;
  const std::size_t group = (e >= 16 ? 1u : 0u) + (e % 2 != 0 ? 2u : 0u);
  return 16 * group + 8 * block + (e % 16) / 2;
}

void quantize_row(const float* x, std::size_t cols, PairOrder order, ActivationPair* out) {
  const std::size_t blocks = cols / 32;
  if (blocks % 2 != 0) std::memset(out + blocks / 2, 0, sizeof *out);
  for (std::size_t b = 0; b < blocks; ++b, x += 32) {
    ActivationPair& pair = out[b / 2];
    float peak = 0;
    bool finite = true;
    for (std::size_t i = 0; i < 32; ++i) {
      peak = std::max(peak, std::fabs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    const float scale = finite ? peak / 32767.0f : std::numeric_limits<float>::quiet_NaN();
    const float inverse = finite && peak > kTiniest ? 32767.0f / peak : 0.0f;
    for (std::size_t i = 0; i < 4; ++i) pair.scale[4 * (b % 2) + i] = scale;
    for (std::size_t i = 0; i < 32; ++i) {
      pair.q[slot_in_pair(order, b % 2, i)] =
          finite ? static_cast<std::int16_t>(std::lrintf(x[i] * inverse)) : std::int16_t{0};
    }
  }
}

std::uint16_t half_at(const std::byte* p) {
  std::uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return h;
}

void dot_q4_0(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
              unsigned rows, float* out) {
  for (unsigned r = 0; r < rows; ++r) {
    float sum = 0;
    for (std::size_t b = 0; b < cols / 32; ++b) {
      const std::byte* block = w + 18 * b;
      const ActivationPair& pair = x[r * stride + b / 2];
      std::int32_t dot = 0;
      for (std::size_t j = 0; j < 16; ++j) {
        const int byte = std::to_integer<int>(block[2 + j]);
        dot += ((byte & 15) - 8) * pair.q[slot_in_pair(PairOrder::kNibbles, b % 2, j)];
        dot += ((byte >> 4) - 8) * pair.q[slot_in_pair(PairOrder::kNibbles, b % 2, j + 16)];
      }
      sum += static_cast<float>(dot) * (f16_to_f32(half_at(block)) * pair.scale[4 * (b % 2)]);
    }
    out[r] = sum;
  }
}

void dot_q8_0(const std::byte* w, const ActivationPair* x, std::size_t stride, std::size_t cols,
              unsigned rows, float* out) {
  for (unsigned r = 0; r < rows; ++r) {
    float sum = 0;
    for (std::size_t b = 0; b < cols / 32; ++b) {
      const std::byte* block = w + 34 * b;
      const ActivationPair& pair = x[r * stride + b / 2];
      std::int32_t dot = 0;
      for (std::size_t j = 0; j < 32; ++j) {
        dot += static_cast<std::int8_t>(std::to_integer<int>(block[2 + j])) * pair.q[32 * (b % 2) + j];
      }
      sum += static_cast<float>(dot) * (f16_to_f32(half_at(block)) * pair.scale[4 * (b % 2)]);
    }
    out[r] = sum;
  }
}

// Sixteen running sums, folded in halves: the same shape as the vector kernels', so accuracy is alike.
float fold(float (&sums)[16]) {
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

void dot_f32(const float* w, const float* x, std::size_t stride, std::size_t cols, unsigned rows,
             float* out) {
  for (unsigned r = 0; r < rows; ++r) {
    const float* row = x + r * stride;
    float sums[16] = {};
    std::size_t i = 0;
    for (; i + 16 <= cols; i += 16) {
      for (std::size_t k = 0; k < 16; ++k) sums[k] += w[i + k] * row[i + k];
    }
    for (; i < cols; ++i) sums[i % 16] += w[i] * row[i];
    out[r] = fold(sums);
  }
}

void expand(StorageType type, const std::byte* source, float* out, std::size_t elements) {
  dequantize(type, source, out, elements);
}

float sum_squares(const float* x, std::size_t n) {
  float sums[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t k = 0; k < 16; ++k) sums[k] += x[i + k] * x[i + k];
  }
  for (; i < n; ++i) sums[i % 16] += x[i] * x[i];
  return fold(sums);
}

void add_scaled(float a, const float* x, float* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] += a * x[i];
}

void geglu(const float* gate, const float* up, float* out, std::size_t n) {
  constexpr float kTwiceRootTwoOverPi = 1.5957691216057308f;
  for (std::size_t i = 0; i < n; ++i) {
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)): one exponential, and no cancellation for negative u.
    const float g = gate[i];
    const float twice_u = kTwiceRootTwoOverPi * g * (1 + 0.044715f * g * g);
    out[i] = g / (1 + std::exp(-twice_u)) * up[i];
  }
}

}  // namespace

const Kernels kPortableKernels = {
    .name = "portable",
    .supported = [] { return true; },
    .quantize = quantize_row,
    .dot_q4_0 = dot_q4_0,
    .dot_q8_0 = dot_q8_0,
    .dot_f32 = dot_f32,
    .expand = expand,
    .sum_squares = sum_squares,
    .add_scaled = add_scaled,
    .geglu = geglu,
};

}  // namespace gem::cpu
