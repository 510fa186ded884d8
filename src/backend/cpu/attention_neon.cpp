// NEON kernels of attention: the loops of attention_avx2.cpp in registers of four lanes.
#if defined(__aarch64__)

#include "backend/cpu/attention_neon.h"

#include <arm_neon.h>

#include <algorithm>
#include <cmath>

#include "base/numbers.h"

namespace gem::cpu {
namespace {

// How keys and values are read: four elements, or one.
struct F32 {
  using Element = float;
  static float32x4_t four(const float* p) { return vld1q_f32(p); }
  static float one(float x) { return x; }
};

struct F16 {
  using Element = std::uint16_t;
  static float32x4_t four(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static float one(std::uint16_t x) { return f16_to_f32(x); }
};

struct BF16 {
  using Element = std::uint16_t;
  static float32x4_t four(const std::uint16_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
  }
  static float one(std::uint16_t x) { return bf16_to_f32(x); }
};

// H queries against K keys: every pair has one chain of 4 lanes, whatever H and K.
template <typename T, unsigned H, unsigned K>
void score_tile(const float* q, std::size_t d, const typename T::Element* keys, float* out) {
  float32x4_t sums[H][K];
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned j = 0; j < K; ++j) sums[h][j] = vdupq_n_f32(0);
  }
  std::size_t i = 0;
  for (; i + 4 <= d; i += 4) {
    float32x4_t key[K];
    for (unsigned j = 0; j < K; ++j) key[j] = T::four(keys + j * d + i);
    for (unsigned h = 0; h < H; ++h) {
      const float32x4_t query = vld1q_f32(q + h * d + i);
      for (unsigned j = 0; j < K; ++j) sums[h][j] = vfmaq_f32(sums[h][j], query, key[j]);
    }
  }
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned j = 0; j < K; ++j) {
      float sum = vaddvq_f32(sums[h][j]);
      for (std::size_t e = i; e < d; ++e) sum = std::fma(q[h * d + e], T::one(keys[j * d + e]), sum);
      out[h * kChunkKeys + j] = sum;
    }
  }
}

template <typename T, unsigned H>
void score_heads(const float* q, std::size_t d, const typename T::Element* keys, std::size_t count,
                 float* out) {
  std::size_t j = 0;
  for (; j + 4 <= count; j += 4) score_tile<T, H, 4>(q, d, keys + j * d, out + j);
  for (; j < count; ++j) score_tile<T, H, 1>(q, d, keys + j * d, out + j);
}

// H heads, 4 V columns of the output, all keys in order.
template <typename T, unsigned H, unsigned V>
void value_strip(const float* p, std::size_t d, const typename T::Element* values, std::size_t count,
                 float* out) {
  float32x4_t sums[H][V];
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned v = 0; v < V; ++v) sums[h][v] = vld1q_f32(out + h * d + 4 * v);
  }
  for (std::size_t j = 0; j < count; ++j) {
    float32x4_t value[V];
    for (unsigned v = 0; v < V; ++v) value[v] = T::four(values + j * d + 4 * v);
    for (unsigned h = 0; h < H; ++h) {
      for (unsigned v = 0; v < V; ++v) sums[h][v] = vfmaq_n_f32(sums[h][v], value[v], p[h * kChunkKeys + j]);
    }
  }
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned v = 0; v < V; ++v) vst1q_f32(out + h * d + 4 * v, sums[h][v]);
  }
}

template <typename T, unsigned H>
void value_heads(const float* p, std::size_t d, const typename T::Element* values, std::size_t count,
                 float* out) {
  std::size_t i = 0;
  for (; i + 16 <= d; i += 16) value_strip<T, H, 4>(p, d, values + i, count, out + i);
  for (; i + 4 <= d; i += 4) value_strip<T, H, 1>(p, d, values + i, count, out + i);
  for (; i < d; ++i) {
    for (unsigned h = 0; h < H; ++h) {
      for (std::size_t j = 0; j < count; ++j)
        out[h * d + i] = std::fma(p[h * kChunkKeys + j], T::one(values[j * d + i]), out[h * d + i]);
    }
  }
}

template <typename T>
void all_scores(const float* q, std::size_t heads, std::size_t d, const std::byte* key_bytes,
                std::size_t count, float* out) {
  const auto* keys = reinterpret_cast<const typename T::Element*>(key_bytes);
  std::size_t h = 0;
  for (; h + 4 <= heads; h += 4) score_heads<T, 4>(q + h * d, d, keys, count, out + h * kChunkKeys);
  for (; h < heads; ++h) score_heads<T, 1>(q + h * d, d, keys, count, out + h * kChunkKeys);
}

template <typename T>
void all_values(const float* p, std::size_t heads, std::size_t d, const std::byte* value_bytes,
                std::size_t count, float* out) {
  const auto* values = reinterpret_cast<const typename T::Element*>(value_bytes);
  std::size_t h = 0;
  for (; h + 4 <= heads; h += 4) value_heads<T, 4>(p + h * kChunkKeys, d, values, count, out + h * d);
  for (; h < heads; ++h) value_heads<T, 1>(p + h * kChunkKeys, d, values, count, out + h * d);
}

// exp(x) for x <= 0 (Cephes' expf): x = n ln 2 + r, a polynomial of degree 6 in r, within 2 units in the last
// place; 0 below -87. A NaN stays one.
float32x4_t exp_negative(float32x4_t x) {
  x = vmaxq_f32(x, vdupq_n_f32(-88.0f));
  const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504088896341f));
  float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0.693359375f));
  r = vfmsq_f32(r, n, vdupq_n_f32(-2.12194440e-4f));
  float32x4_t y = vdupq_n_f32(1.9875691500e-4f);
  for (const float c :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    y = vfmaq_f32(vdupq_n_f32(c), y, r);
  y = vfmaq_f32(vaddq_f32(r, vdupq_n_f32(1.0f)), y, vmulq_f32(r, r));
  const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23);
  const float32x4_t result = vmulq_f32(y, vreinterpretq_f32_s32(power));
  // -88 gives a denormal power: nothing is left of so small a weight.
  return vbslq_f32(vcltq_f32(x, vdupq_n_f32(-87.0f)), vdupq_n_f32(0), result);
}

}  // namespace

namespace neon {

void scores(const float* q, std::size_t heads, std::size_t d, StorageType type, const std::byte* keys,
            const std::byte*, std::size_t count, float* out) {
  if (type == StorageType::kF16) return all_scores<F16>(q, heads, d, keys, count, out);
  if (type == StorageType::kBF16) return all_scores<BF16>(q, heads, d, keys, count, out);
  all_scores<F32>(q, heads, d, keys, count, out);
}

void weighted_values(const float* p, std::size_t heads, std::size_t d, StorageType type,
                     const std::byte* values, std::size_t count, float* out) {
  if (type == StorageType::kF16) return all_values<F16>(p, heads, d, values, count, out);
  if (type == StorageType::kBF16) return all_values<BF16>(p, heads, d, values, count, out);
  all_values<F32>(p, heads, d, values, count, out);
}

float largest(const float* x, std::size_t n) {
  std::size_t i = 0;
  float top = -INFINITY;
  if (n >= 4) {
    float32x4_t peak = vld1q_f32(x);
    for (i = 4; i + 4 <= n; i += 4) peak = vmaxq_f32(peak, vld1q_f32(x + i));
    top = vmaxvq_f32(peak);
  }
  for (; i < n; ++i) top = std::max(top, x[i]);
  return top;
}

float exponentials(float* x, std::size_t n, float top) {
  const float32x4_t shift = vdupq_n_f32(top);
  float32x4_t sums = vdupq_n_f32(0);
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t e = exp_negative(vsubq_f32(vld1q_f32(x + i), shift));
    vst1q_f32(x + i, e);
    sums = vaddq_f32(sums, e);
  }
  if (i < n) {
    float rest[4];
    for (std::size_t k = 0; k < 4; ++k) rest[k] = i + k < n ? x[i + k] - top : -INFINITY;
    const float32x4_t e = exp_negative(vld1q_f32(rest));
    vst1q_f32(rest, e);
    for (std::size_t k = 0; i + k < n; ++k) x[i + k] = rest[k];
    sums = vaddq_f32(sums, e);
  }
  return vaddvq_f32(sums);
}

void softcap(float* x, std::size_t n, float cap) {
  // tanh(u) = (1 - exp(-2|u|)) / (1 + exp(-2|u|)) with the sign of u: off by 1e-7 at most.
  const float32x4_t one = vdupq_n_f32(1.0f);
  const uint32x4_t sign = vdupq_n_u32(0x80000000u);
  const auto four = [&](float32x4_t v) {
    const float32x4_t u = vdivq_f32(v, vdupq_n_f32(cap));
    const float32x4_t e = exp_negative(vnegq_f32(vabsq_f32(vaddq_f32(u, u))));
    const float32x4_t t = vdivq_f32(vsubq_f32(one, e), vaddq_f32(one, e));
    return vmulq_n_f32(vbslq_f32(sign, u, t), cap);
  };
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) vst1q_f32(x + i, four(vld1q_f32(x + i)));
  if (i == n) return;
  float rest[4] = {};
  for (std::size_t k = 0; i + k < n; ++k) rest[k] = x[i + k];
  vst1q_f32(rest, four(vld1q_f32(rest)));
  for (std::size_t k = 0; i + k < n; ++k) x[i + k] = rest[k];
}

void geglu(const float* gate, const float* up, float* out, std::size_t n) {
  // g / (1 + exp(-2u)); exp_negative takes -|2u|: for u < 0, 1 / (1 + exp(-2u)) = exp(2u) / (1 + exp(2u)).
  const float32x4_t one = vdupq_n_f32(1.0f);
  const auto four = [&](float32x4_t g, float32x4_t u) {
    const float32x4_t cubic = vfmaq_f32(one, vmulq_n_f32(g, 0.044715f), g);
    const float32x4_t twice_u = vmulq_f32(vmulq_n_f32(g, 1.5957691216057308f), cubic);
    const float32x4_t e = exp_negative(vnegq_f32(vabsq_f32(twice_u)));
    const float32x4_t top = vbslq_f32(vcltzq_f32(twice_u), e, one);
    return vmulq_f32(vmulq_f32(g, vdivq_f32(top, vaddq_f32(one, e))), u);
  };
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) vst1q_f32(out + i, four(vld1q_f32(gate + i), vld1q_f32(up + i)));
  if (i == n) return;
  float g[4] = {};
  float u[4] = {};
  for (std::size_t k = 0; i + k < n; ++k) {
    g[k] = gate[i + k];
    u[k] = up[i + k];
  }
  vst1q_f32(g, four(vld1q_f32(g), vld1q_f32(u)));
  for (std::size_t k = 0; i + k < n; ++k) out[i + k] = g[k];
}

}  // namespace neon
}  // namespace gem::cpu

#endif
