#include "base/storage.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/numbers.h"

namespace gem {
namespace {

static_assert(std::endian::native == std::endian::little, "block layouts are read as little-endian");

// Indexed by StorageType. Block bytes are the sums of the field sizes (docs/models.md, block formats).
constexpr std::array<StorageInfo, kStorageTypes + 1> kInfo = {{
    {"F32", 1, 4, 0},
    {"F16", 1, 2, 1},
    {"BF16", 1, 2, 30},
    {"Q4_0", 32, 18, 2},     // d 2, nibbles 16
    {"Q4_1", 32, 20, 3},     // d 2, m 2, nibbles 16
    {"Q5_0", 32, 22, 6},     // d 2, fifth bits 4, nibbles 16
    {"Q5_1", 32, 24, 7},     // d 2, m 2, fifth bits 4, nibbles 16
    {"Q8_0", 32, 34, 8},     // d 2, int8 32
    {"Q4_K", 256, 144, 12},  // d 2, dmin 2, scales 12, nibbles 128
    {"Q5_K", 256, 176, 13},  // d 2, dmin 2, scales 12, fifth bits 32, nibbles 128
    {"Q6_K", 256, 210, 14},  // low nibbles 128, high pairs 64, int8 scales 16, d 2
    {"MLX", 32, 0, 0xffffffff},
}};

std::uint16_t read_u16(const std::uint8_t* p) {
  std::uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
std::uint32_t read_u32(const std::uint8_t* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
float read_f16(const std::uint8_t* p) {
  return f16_to_f32(read_u16(p));
}
void write_u16(std::uint8_t* p, std::uint16_t value) {
  std::memcpy(p, &value, sizeof value);
}

// The 32-element nibble formats: element j is the low nibble of byte j, element j + 16 the high nibble; bit i
// of `fifth` is bit 4 of element i. y = d * (n - bias) + m, where a format without minimum has m absent, not
// zero: adding zero would turn -0 into +0.
template <bool kMinimum>
void expand_nibbles(const std::uint8_t* qs, std::uint32_t fifth, float d, float m, int bias, float* out) {
  for (unsigned j = 0; j < 16; ++j) {
    const int low = static_cast<int>((qs[j] & 15u) | (((fifth >> j) & 1u) << 4)) - bias;
    const int high = static_cast<int>((qs[j] >> 4) | (((fifth >> (j + 16)) & 1u) << 4)) - bias;
    out[j] = d * static_cast<float>(low);
    out[j + 16] = d * static_cast<float>(high);
    if constexpr (kMinimum) {
      out[j] += m;
      out[j + 16] += m;
    }
  }
}

void expand_q8_0(const std::uint8_t* block, float* out) {
  const float d = read_f16(block);
  for (unsigned j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + j]));
}

struct ScaleMin {
  unsigned scale;
  unsigned min;
};

// Sub-block b of a Q4_K or Q5_K super-block: eight 6-bit scales and minima packed into 12 bytes. The first
// four take the low six bits of bytes 0-3 (scales) and 4-7 (minima); the last four have their low nibbles in
// bytes 8-11 and their upper two bits on top of bytes 0-7.
ScaleMin unpack_scale(const std::uint8_t* s, unsigned b) {
  if (b < 4) return {s[b] & 63u, s[b + 4] & 63u};
  return {(s[b + 4] & 15u) | (static_cast<unsigned>(s[b - 4] >> 6) << 4),
          (s[b + 4] >> 4) | (static_cast<unsigned>(s[b] >> 6) << 4)};
}

// The codes of a block with their scales, as read_codes() gives them.
struct BlockCodes {
  std::uint8_t* codes;
  float* scales;
  float* minima;
};

// As expand_nibbles; `bias` makes the codes signed.
void codes_of_nibbles(const std::uint8_t* qs, std::uint32_t fifth, int bias, const BlockCodes& to) {
  for (unsigned j = 0; j < 16; ++j) {
    to.codes[j] =
        static_cast<std::uint8_t>(static_cast<int>((qs[j] & 15u) | (((fifth >> j) & 1u) << 4)) - bias);
    to.codes[j + 16] =
        static_cast<std::uint8_t>(static_cast<int>((qs[j] >> 4) | (((fifth >> (j + 16)) & 1u) << 4)) - bias);
  }
}

// Q4_K, and Q5_K with `fifth` (32 bytes: bit b of byte l is bit 4 of element l of sub-block b).
void codes_of_k45(const std::uint8_t* block, const std::uint8_t* fifth, const std::uint8_t* qs,
                  const BlockCodes& to) {
  const float d = read_f16(block);
  const float dmin = read_f16(block + 2);
  for (unsigned b = 0; b < 8; ++b) {
    const ScaleMin packed = unpack_scale(block + 4, b);
    to.scales[b] = d * static_cast<float>(packed.scale);
    to.minima[b] = -(dmin * static_cast<float>(packed.min));
    const std::uint8_t* bytes = qs + 32 * (b / 2);  // two sub-blocks share 32 bytes: low nibbles, then high
    const unsigned shift = 4 * (b % 2);
    for (unsigned l = 0; l < 32; ++l) {
      unsigned n = (bytes[l] >> shift) & 15u;
      if (fifth != nullptr) n |= ((fifth[l] >> b) & 1u) << 4;
      to.codes[32 * b + l] = static_cast<std::uint8_t>(n);
    }
  }
}

void codes_of_q6_k(const std::uint8_t* block, const BlockCodes& to) {
  const float d = read_f16(block + 208);
  for (unsigned half = 0; half < 2; ++half) {
    const std::uint8_t* low = block + 64 * half;
    const std::uint8_t* high = block + 128 + 32 * half;
    const std::uint8_t* scales = block + 192 + 8 * half;
    for (unsigned i = 0; i < 8; ++i)
      to.scales[8 * half + i] = d * static_cast<float>(static_cast<std::int8_t>(scales[i]));
    for (unsigned part = 0; part < 4;
         ++part) {  // 32 elements each: low nibbles of 64 bytes, then high nibbles
      for (unsigned l = 0; l < 32; ++l) {
        const unsigned nibble = (low[32 * (part % 2) + l] >> (4 * (part / 2))) & 15u;
        const unsigned pair = (high[l] >> (2 * part)) & 3u;
        to.codes[128 * half + 32 * part + l] =
            static_cast<std::uint8_t>(static_cast<int>(nibble | (pair << 4)) - 32);
      }
    }
  }
}

void codes_of_block(StorageType type, const std::uint8_t* block, const BlockCodes& to) {
  const bool fifth = type == StorageType::kQ5_0 || type == StorageType::kQ5_1;
  switch (type) {
    case StorageType::kQ4_1:
    case StorageType::kQ5_1:
      to.scales[0] = read_f16(block);
      to.minima[0] = read_f16(block + 2);
      return codes_of_nibbles(block + (fifth ? 8 : 4), fifth ? read_u32(block + 4) : 0, 0, to);
    case StorageType::kQ5_0:
      to.scales[0] = read_f16(block);
      return codes_of_nibbles(block + 6, read_u32(block + 2), 16, to);
    case StorageType::kQ4_K:
      return codes_of_k45(block, nullptr, block + 16, to);
    case StorageType::kQ5_K:
      return codes_of_k45(block, block + 16, block + 48, to);
    case StorageType::kQ6_K:
      return codes_of_q6_k(block, to);
    default:
      fail(ErrorCode::kFailed, "{} is not read as codes", storage_info(type).name);
  }
}

// By way of the codes: those of the K types.
void expand_super_block(StorageType type, const std::uint8_t* block, float* out) {
  std::uint8_t codes[256];
  float scales[16];
  float minima[8] = {};
  codes_of_block(type, block, {codes, scales, minima});
  if (type == StorageType::kQ6_K) {
    for (unsigned i = 0; i < 256; ++i)
      out[i] = scales[i / 16] * static_cast<float>(static_cast<std::int8_t>(codes[i]));
  } else {
    for (unsigned i = 0; i < 256; ++i)
      out[i] = scales[i / 32] * static_cast<float>(codes[i]) + minima[i / 32];
  }
}

void expand_block(StorageType type, const std::uint8_t* block, float* out) {
  switch (type) {
    case StorageType::kF32:
      std::memcpy(out, block, sizeof *out);
      return;
    case StorageType::kF16:
      *out = read_f16(block);
      return;
    case StorageType::kBF16:
      *out = bf16_to_f32(read_u16(block));
      return;
    case StorageType::kQ4_0:
      expand_nibbles<false>(block + 2, 0, read_f16(block), 0.0f, 8, out);
      return;
    case StorageType::kQ4_1:
      expand_nibbles<true>(block + 4, 0, read_f16(block), read_f16(block + 2), 0, out);
      return;
    case StorageType::kQ5_0:
      expand_nibbles<false>(block + 6, read_u32(block + 2), read_f16(block), 0.0f, 16, out);
      return;
    case StorageType::kQ5_1:
      expand_nibbles<true>(block + 8, read_u32(block + 4), read_f16(block), read_f16(block + 2), 0, out);
      return;
    case StorageType::kQ8_0:
      expand_q8_0(block, out);
      return;
    case StorageType::kQ4_K:
    case StorageType::kQ5_K:
    case StorageType::kQ6_K:
      expand_super_block(type, block, out);
      return;
    case StorageType::kAffine:
      return;  // refused by dequantize()
  }
}

struct Extreme {
  float value;  // of largest magnitude, with its sign; the first of equals
  bool finite;  // all values are
};

Extreme extreme_of(const float* x, std::size_t n) {
  Extreme found{0.0f, true};
  for (std::size_t i = 0; i < n; ++i) {
    found.finite = found.finite && std::isfinite(x[i]);
    if (std::fabs(x[i]) > std::fabs(found.value)) found.value = x[i];
  }
  return found;
}

// A block with a NaN or infinity in it has no scale: it is stored as d = NaN, so that it reads as NaN and is
// not mistaken for weights.
constexpr std::uint16_t kNanF16 = 0x7e00;

// Zero where 1 / d is no number (|d| < 2^-128): d is then stored as zero and every element reads as zero.
float inverse_of(float d) {
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void quantize_q4_0(const float* x, std::uint8_t* block) {
  const Extreme extreme = extreme_of(x, 32);
  std::memset(block, 0, 18);
  if (!extreme.finite) return write_u16(block, kNanF16);
  const float d = extreme.value / -8.0f;  // the extreme itself becomes nibble 0, that is -8
  const float inverse = inverse_of(d);
  write_u16(block, f32_to_f16(d));
  const auto nibble = [&](float v) {
    return static_cast<unsigned>(std::clamp(v * inverse + 8.5f, 0.0f, 15.0f));
  };
  for (unsigned j = 0; j < 16; ++j)
    block[2 + j] = static_cast<std::uint8_t>(nibble(x[j]) | (nibble(x[j + 16]) << 4));
}

void quantize_q8_0(const float* x, std::uint8_t* block) {
  const Extreme extreme = extreme_of(x, 32);
  std::memset(block, 0, 34);
  if (!extreme.finite) return write_u16(block, kNanF16);
  const float d = std::fabs(extreme.value) / 127.0f;
  const float inverse = inverse_of(d);
  write_u16(block, f32_to_f16(d));
  for (unsigned j = 0; j < 32; ++j) {
    const float rounded = std::clamp(std::round(x[j] * inverse), -127.0f, 127.0f);  // half away from zero
    block[2 + j] = static_cast<std::uint8_t>(static_cast<std::int8_t>(rounded));
  }
}

}  // namespace

const StorageInfo& storage_info(StorageType type) {
  return kInfo[static_cast<std::size_t>(type)];
}

std::optional<StorageType> storage_from_ggml(std::uint32_t ggml_id) {
  for (std::size_t i = 0; i < kStorageTypes; ++i)
    if (kInfo[i].ggml_id == ggml_id) return static_cast<StorageType>(i);
  return std::nullopt;
}

std::optional<StorageType> storage_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kStorageTypes; ++i)
    if (kInfo[i].name == name) return static_cast<StorageType>(i);
  return std::nullopt;
}

std::optional<std::uint64_t> storage_bytes(StorageType type, std::uint64_t elements) {
  const StorageInfo& info = storage_info(type);
  if (type == StorageType::kAffine || elements % info.block_elements != 0) return std::nullopt;
  const std::uint64_t blocks = elements / info.block_elements;
  if (blocks > std::numeric_limits<std::uint64_t>::max() / info.block_bytes) return std::nullopt;
  return blocks * info.block_bytes;
}

void dequantize(StorageType type, const void* source, float* out, std::size_t elements) {
  const StorageInfo& info = storage_info(type);
  const auto* block = static_cast<const std::uint8_t*>(source);
  if (type == StorageType::kAffine)
    fail(ErrorCode::kFailed, "MLX storage is expanded with its scales, by dequantize_affine");
  if (elements % info.block_elements != 0)
    fail(ErrorCode::kFailed, "{} elements are no whole number of {} blocks of {}", elements, info.name,
         info.block_elements);
  for (std::size_t i = 0; i < elements; i += info.block_elements, block += info.block_bytes)
    expand_block(type, block, out + i);
}

std::optional<CodeInfo> code_info(StorageType type) {
  switch (type) {
    case StorageType::kQ4_1:
    case StorageType::kQ4_K:
      return CodeInfo{4, 32, false};
    case StorageType::kQ5_1:
    case StorageType::kQ5_K:
      return CodeInfo{5, 32, false};
    case StorageType::kQ5_0:
      return CodeInfo{5, 32, true};
    case StorageType::kQ6_K:
      return CodeInfo{6, 16, true};
    default:
      return std::nullopt;
  }
}

void read_codes(StorageType type, const void* source, std::size_t elements, std::uint8_t* codes,
                float* scales, float* minima) {
  const StorageInfo& info = storage_info(type);
  const std::optional<CodeInfo> kind = code_info(type);
  if (!kind || elements % info.block_elements != 0)
    fail(ErrorCode::kFailed, "{} elements of {} are not read as codes", elements, info.name);
  const auto* block = static_cast<const std::uint8_t*>(source);
  for (std::size_t i = 0; i < elements; i += info.block_elements, block += info.block_bytes)
    codes_of_block(type, block, {codes + i, scales + i / kind->group, minima + i / kind->group});
}

bool can_quantize(StorageType type) {
  return type == StorageType::kF32 || type == StorageType::kF16 || type == StorageType::kBF16 ||
         type == StorageType::kQ4_0 || type == StorageType::kQ8_0;
}

void quantize(StorageType type, const float* source, void* out, std::size_t elements) {
  const StorageInfo& info = storage_info(type);
  if (!can_quantize(type)) fail(ErrorCode::kUsage, "gem does not write storage type {}", info.name);
  if (elements % info.block_elements != 0)
    fail(ErrorCode::kFailed, "{} elements are no whole number of {} blocks of {}", elements, info.name,
         info.block_elements);
  auto* block = static_cast<std::uint8_t*>(out);
  for (std::size_t i = 0; i < elements; i += info.block_elements, block += info.block_bytes) {
    const float* x = source + i;
    if (type == StorageType::kF32) std::memcpy(block, x, sizeof *x);
    if (type == StorageType::kF16) write_u16(block, f32_to_f16(*x));
    if (type == StorageType::kBF16) write_u16(block, f32_to_bf16(*x));
    if (type == StorageType::kQ4_0) quantize_q4_0(x, block);
    if (type == StorageType::kQ8_0) quantize_q8_0(x, block);
  }
}

}  // namespace gem
