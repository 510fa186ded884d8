// Storage blocks of any integer type -> 16-bit codes, scales and minima (layouts: docs/models.md).
#include <cstring>

#include "backend/cpu/packed.h"
#include "base/error.h"
#include "base/numbers.h"

namespace gem::cpu {
namespace {

float half_at(const std::uint8_t* p) {
  std::uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return f16_to_f32(h);
}

// Where the 32 codes of one row and block go.
struct Line {
  std::int16_t* codes;  // of the block, moved to the row
  void put(std::size_t column, int code) const {
    codes[column / 2 * (2 * kGroupRows) + column % 2] = static_cast<std::int16_t>(code);
  }
};

// 32 elements a block: nibbles at `qs`, bit i of `fifth` is bit 4 of element i.
void nibble_line(const std::uint8_t* qs, std::uint32_t fifth, int bias, const Line& line) {
  for (unsigned j = 0; j < 16; ++j) {
    line.put(j, static_cast<int>((qs[j] & 15u) | (((fifth >> j) & 1u) << 4)) - bias);
    line.put(j + 16, static_cast<int>((qs[j] >> 4) | (((fifth >> (j + 16)) & 1u) << 4)) - bias);
  }
}

struct ScaleMin {
  unsigned scale;
  unsigned min;
};

// Sub-block b of a Q4_K or Q5_K super-block: eight 6-bit scales and minima packed into 12 bytes.
ScaleMin packed_scale(const std::uint8_t* s, unsigned b) {
  if (b < 4) return {s[b] & 63u, s[b + 4] & 63u};
  return {(s[b + 4] & 15u) | (static_cast<unsigned>(s[b - 4] >> 6) << 4),
          (s[b + 4] >> 4) | (static_cast<unsigned>(s[b] >> 6) << 4)};
}

// Block `b` of the panel for one row.
struct Target {
  const Panel& panel;
  std::size_t row;
  Line line(std::size_t b) const { return {panel.codes + b * kBlock * kGroupRows + row * 2}; }
  float& scale(std::size_t b, std::size_t half = 0) const {
    return panel.scales[(b * panel.scales_per_block + half) * kGroupRows + row];
  }
  float& minimum(std::size_t b) const { return panel.minima[b * kGroupRows + row]; }
};

void nibbles_32(StorageType type, const std::uint8_t* block, std::size_t b, const Target& to) {
  const bool fifth = type == StorageType::kQ5_0 || type == StorageType::kQ5_1;
  const bool minimum = type == StorageType::kQ4_1 || type == StorageType::kQ5_1;
  std::uint32_t bits = 0;
  if (fifth) std::memcpy(&bits, block + (minimum ? 4 : 2), sizeof bits);
  to.scale(b) = half_at(block);
  if (minimum) to.minimum(b) = half_at(block + 2);
  nibble_line(block + 2 + (minimum ? 2 : 0) + (fifth ? 4 : 0), bits, minimum ? 0 : 16, to.line(b));
}

void super_k45(const std::uint8_t* block, const std::uint8_t* fifth, const std::uint8_t* qs, std::size_t b,
               const Target& to) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  for (unsigned sub = 0; sub < 8; ++sub) {
    const ScaleMin packed = packed_scale(block + 4, sub);
    to.scale(b + sub) = d * static_cast<float>(packed.scale);
    to.minimum(b + sub) = -(dmin * static_cast<float>(packed.min));
    const Line line = to.line(b + sub);
    const std::uint8_t* bytes = qs + 32 * (sub / 2);
    const unsigned shift = 4 * (sub % 2);
    for (unsigned l = 0; l < 32; ++l) {
      unsigned n = (bytes[l] >> shift) & 15u;
      if (fifth != nullptr) n |= ((fifth[l] >> sub) & 1u) << 4;
      line.put(l, static_cast<int>(n));
    }
  }
}

void super_6k(const std::uint8_t* block, std::size_t b, const Target& to) {
  const float d = half_at(block + 208);
  for (unsigned sub = 0; sub < 8; ++sub) {
    const unsigned half = sub / 4;
    const unsigned part = sub % 4;
    const std::uint8_t* low = block + 64 * half + 32 * (part % 2);
    const std::uint8_t* high = block + 128 + 32 * half;
    const std::uint8_t* scales = block + 192 + 8 * half + 2 * part;
    for (unsigned h = 0; h < 2; ++h)
      to.scale(b + sub, h) = d * static_cast<float>(static_cast<std::int8_t>(scales[h]));
    const Line line = to.line(b + sub);
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned nibble = (low[l] >> (4 * (part / 2))) & 15u;
      const unsigned pair = (high[l] >> (2 * part)) & 3u;
      line.put(l, static_cast<int>(nibble | (pair << 4)) - 32);
    }
  }
}

}  // namespace

void unpack_blocks(StorageType type, const std::byte* group, std::size_t first, Panel& panel) {
  const StorageInfo& info = storage_info(type);
  const std::size_t step = info.block_elements / kBlock;
  panel.scales_per_block = type == StorageType::kQ6_K ? 2 : 1;
  panel.has_minima = type == StorageType::kQ4_1 || type == StorageType::kQ5_1 || type == StorageType::kQ4_K ||
                     type == StorageType::kQ5_K;
  for (std::size_t b = 0; b < panel.blocks; b += step) {
    for (std::size_t row = 0; row < kGroupRows; ++row) {
      const auto* block = reinterpret_cast<const std::uint8_t*>(group) +
                          ((first + b) / step * kGroupRows + row) * info.block_bytes;
      const Target to{panel, row};
      switch (type) {
        case StorageType::kQ4_1:
        case StorageType::kQ5_0:
        case StorageType::kQ5_1:
          nibbles_32(type, block, b, to);
          break;
        case StorageType::kQ4_K:
          super_k45(block, nullptr, block + 16, b, to);
          break;
        case StorageType::kQ5_K:
          super_k45(block, block + 16, block + 48, b, to);
          break;
        case StorageType::kQ6_K:
          super_6k(block, b, to);
          break;
        default:
          fail(ErrorCode::kFailed, "{} blocks are not unpacked here", info.name);
      }
    }
  }
}

}  // namespace gem::cpu
