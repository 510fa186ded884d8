// The scalar kernels: any processor. The compiler may vectorise them; results keep the order written here.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/super_blocks.h"
#include "base/numbers.h"

namespace gem::cpu {
namespace {

void quantize_row(const float* x, std::size_t cols, std::int16_t* q, float* scales, std::int32_t* sums) {
  for (std::size_t b = 0; b < cols / kBlock; ++b, x += kBlock, q += kBlock) {
    float peak = 0;
    bool finite = true;
    for (std::size_t i = 0; i < kBlock; ++i) {
      peak = std::max(peak, std::fabs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    scales[b] = finite ? peak / 32767.0f : std::numeric_limits<float>::quiet_NaN();
    const float inverse = finite && peak > kTiniest ? 32767.0f / peak : 0.0f;
    sums[2 * b] = sums[2 * b + 1] = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      q[i] = finite ? static_cast<std::int16_t>(std::lrintf(x[i] * inverse)) : std::int16_t{0};
      sums[2 * b + i / 16] += q[i];
    }
  }
}

float half_at(const std::byte* p) {
  std::uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return f16_to_f32(h);
}

void unpack_scales(const std::byte* halves, std::size_t blocks, float* out) {
  for (std::size_t i = 0; i < blocks * kGroupRows; ++i) out[i] = half_at(halves + 2 * i);
}

void unpack_q4_0(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel) {
  unpack_scales(group + first * 2 * kGroupRows, panel.blocks, panel.scales);
  const std::byte* codes = group + group_scale_bytes(blocks) + first * 16 * kGroupRows;
  for (std::size_t v = 0; v < panel.blocks * 4; ++v) {
    for (std::size_t lane = 0; lane < 2 * kGroupRows; ++lane) {
      std::uint16_t word;
      std::memcpy(&word, codes + v * 64 + 2 * lane, sizeof word);
      for (std::size_t i = 0; i < 4; ++i)
        panel.codes[(4 * v + i) * 2 * kGroupRows + lane] =
            static_cast<std::int16_t>(static_cast<int>(word >> (4 * i) & 15) - 8);
    }
  }
}

void unpack_q8_0(const std::byte* group, std::size_t blocks, std::size_t first, const Panel& panel) {
  unpack_scales(group + first * 2 * kGroupRows, panel.blocks, panel.scales);
  const std::byte* codes = group + group_scale_bytes(blocks) + first * 32 * kGroupRows;
  for (std::size_t i = 0; i < panel.blocks * 32 * kGroupRows; ++i)
    panel.codes[i] = static_cast<std::int8_t>(std::to_integer<int>(codes[i]));
}

void unpack_super(StorageType type, const std::byte* group, std::size_t first, const Panel& panel) {
  unpack_super_blocks(type, group, first, panel, [](const std::byte* halves, float* out) {
    for (std::size_t i = 0; i < kGroupRows; ++i) out[i] = half_at(halves + 2 * i);
  });
}

void tile(const Panel& panel, const Activations& x, std::size_t rows, float* out) {
  const std::size_t pairs = 16 / panel.scales_per_block;
  for (std::size_t r = 0; r < rows; ++r, out += kGroupRows) {
    const std::int16_t* codes = panel.codes;
    const float* scales = panel.scales;
    for (std::size_t b = 0; b < panel.blocks; ++b) {
      const std::int16_t* q = x.q + r * x.stride + b * kBlock;
      const float x_scale = x.scale[r * x.blocks + b];
      for (unsigned part = 0; part < panel.scales_per_block; ++part, scales += kGroupRows) {
        std::int32_t dot[kGroupRows] = {};
        for (std::size_t p = 0; p < pairs; ++p, codes += 2 * kGroupRows, q += 2) {
          for (std::size_t i = 0; i < kGroupRows; ++i)
            dot[i] += codes[2 * i] * q[0] + codes[2 * i + 1] * q[1];
        }
        for (std::size_t i = 0; i < kGroupRows; ++i)
          out[i] += static_cast<float>(dot[i]) * (scales[i] * x_scale);
      }
      if (!panel.has_minima) continue;
      const float sum = x.scaled_sum(r, b);
      for (std::size_t i = 0; i < kGroupRows; ++i) out[i] += panel.minima[b * kGroupRows + i] * sum;
    }
  }
}

// Panel by panel, so that a group gives the bits that its panels give.
template <auto Unpack>
void group_product(const std::byte* group, const Activations& x, std::size_t rows, float* out) {
  constexpr std::size_t kBlocks = 8;
  alignas(64) std::int16_t codes[kBlocks * kBlock * kGroupRows];
  alignas(64) float scales[kBlocks * kGroupRows];
  Panel panel;
  panel.codes = codes;
  panel.scales = scales;
  std::fill_n(out, rows * kGroupRows, 0.0f);
  for (std::size_t b = 0; b < x.blocks; b += kBlocks) {
    panel.blocks = std::min(kBlocks, x.blocks - b);
    Unpack(group, x.blocks, b, panel);
    tile(panel, x.at(0, b), rows, out);
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

// Calls body(j, the f32 row of key or value j) for each of `count`.
template <typename Body>
void for_widened(StorageType type, const std::byte* rows, std::size_t d, std::size_t count,
                 const Body& body) {
  if (type == StorageType::kF32) {
    for (std::size_t j = 0; j < count; ++j) body(j, reinterpret_cast<const float*>(rows) + j * d);
    return;
  }
  thread_local std::vector<float> row;
  row.resize(d);
  for (std::size_t j = 0; j < count; ++j) {
    dequantize(type, rows + j * d * sizeof(std::uint16_t), row.data(), d);
    body(j, row.data());
  }
}

void scores(const float* q, std::size_t heads, std::size_t d, StorageType type, const std::byte* keys,
            const std::byte*, std::size_t count, float* out) {
  for_widened(type, keys, d, count, [&](std::size_t j, const float* key) {
    for (std::size_t h = 0; h < heads; ++h) dot_f32(q + h * d, key, 0, d, 1, out + h * kChunkKeys + j);
  });
}

void weighted_values(const float* p, std::size_t heads, std::size_t d, StorageType type,
                     const std::byte* values, std::size_t count, float* out) {
  for_widened(type, values, d, count, [&](std::size_t j, const float* value) {
    for (std::size_t h = 0; h < heads; ++h) {
      const float weight = p[h * kChunkKeys + j];
      for (std::size_t i = 0; i < d; ++i) out[h * d + i] += weight * value[i];
    }
  });
}

float largest(const float* x, std::size_t n) {
  return *std::max_element(x, x + n);
}

float exponentials(float* x, std::size_t n, float top) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - top);
    sum += double{x[i]};
  }
  return static_cast<float>(sum);
}

void softcap(float* x, std::size_t n, float cap) {
  for (std::size_t i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
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
    .split = nullptr,
    .group_q4_0 = group_product<unpack_q4_0>,
    .group_q8_0 = group_product<unpack_q8_0>,
    .group_super = nullptr,
    .unpack_q4_0 = unpack_q4_0,
    .unpack_q8_0 = unpack_q8_0,
    .unpack_super = unpack_super,
    .tile = tile,
    .dot_f32 = dot_f32,
    .expand = expand,
    .scores = scores,
    .weighted_values = weighted_values,
    .largest = largest,
    .exponentials = exponentials,
    .sum_squares = sum_squares,
    .softcap = softcap,
    .geglu = geglu,
};

}  // namespace gem::cpu
