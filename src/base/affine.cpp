#include "base/affine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/numbers.h"

namespace gem {

std::string Affine::name() const {
  return fmt::format("MLX {}-bit g{}", bits, group);
}

float Affine::at(const std::byte* values, std::size_t index) const {
  float value = 0;
  dequantize(scale_type, values + index * scale_bytes(), &value, 1);
  return value;
}

void unpack_codes(std::uint32_t bits, const std::byte* row, std::size_t first, std::size_t count,
                  std::uint8_t* out) {
  const std::byte* from = row + first / 8 * bits;
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  for (std::size_t i = 0; i < count; i += 8, from += bits, out += 8) {  // eight codes in `bits` bytes
    std::uint64_t word = 0;
    std::memcpy(&word, from, bits);
    for (std::size_t k = 0; k < 8; ++k) out[k] = static_cast<std::uint8_t>(word >> (k * bits) & mask);
  }
}

void pack_codes(std::uint32_t bits, const std::uint8_t* codes, std::size_t count, std::byte* out) {
  for (std::size_t i = 0; i < count; i += 8, codes += 8, out += bits) {
    std::uint64_t word = 0;
    for (std::size_t k = 0; k < 8; ++k) word |= std::uint64_t{codes[k]} << (k * bits);
    std::memcpy(out, &word, bits);
  }
}

void dequantize_affine(const Affine& affine, const std::byte* codes, std::size_t row, std::size_t cols,
                       float* out) {
  std::uint8_t q[128];
  std::size_t index = row * (cols / affine.group);
  for (std::size_t j = 0; j < cols; j += affine.group, ++index) {
    const float scale = affine.scale(index);
    const float bias = affine.bias(index);
    unpack_codes(affine.bits, codes, j, affine.group, q);
    for (std::size_t i = 0; i < affine.group; ++i) out[j + i] = scale * static_cast<float>(q[i]) + bias;
  }
}

void quantize_affine(const Affine& out, const float* x, std::size_t n, std::byte* codes, std::byte* scales,
                     std::byte* biases) {
  constexpr float kLeastStep = 1e-7f;
  if (!Affine::knows_bits(out.bits) || !Affine::knows_group(out.group) || n % out.group != 0)
    fail(ErrorCode::kFailed, "{} values are no whole number of groups of {}", n, out.name());
  const auto top = static_cast<float>((1u << out.bits) - 1);
  std::uint8_t q[128];
  for (std::size_t at = 0; at < n; at += out.group, x += out.group) {
    float high = -std::numeric_limits<float>::infinity();
    float low = std::numeric_limits<float>::infinity();
    bool finite = true;
    for (std::size_t i = 0; i < out.group; ++i) {
      finite = finite && std::isfinite(x[i]);
      high = std::max(high, x[i]);
      low = std::min(low, x[i]);
    }
    float scale = std::numeric_limits<float>::quiet_NaN();
    float bias = 0;
    std::fill_n(q, out.group, std::uint8_t{0});
    if (finite) {
      const float step = std::max((high - low) / top, kLeastStep);
      const bool from_below = std::fabs(low) > std::fabs(high);
      scale = from_below ? step : -step;
      const float edge = from_below ? low : high;
      // nearbyint: half to even
      if (const float zero = std::nearbyint(edge / scale); zero != 0) {
        scale = edge / zero;
        bias = edge;
      }
      for (std::size_t i = 0; i < out.group; ++i)
        q[i] = static_cast<std::uint8_t>(std::clamp(std::nearbyint((x[i] - bias) / scale), 0.0f, top));
    }
    pack_codes(out.bits, q, out.group, codes + at / 8 * out.bits);
    quantize(out.scale_type, &scale, scales, 1);
    quantize(out.scale_type, &bias, biases, 1);
    scales += out.scale_bytes();
    biases += out.scale_bytes();
  }
}

}  // namespace gem
