// Blocks of Q4_1, Q5_0 and Q5_1 -> 16-bit codes, scales and minima (layouts: docs/models.md).
#include <cstring>

#include "backend/cpu/packed.h"
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

// Block `b` of the panel for one row.
struct Target {
  const Panel& panel;
  std::size_t row;
  Line line(std::size_t b) const { return {panel.codes + b * kBlock * kGroupRows + row * 2}; }
  float& scale(std::size_t b) const { return panel.scales[b * kGroupRows + row]; }
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

}  // namespace

void unpack_blocks(StorageType type, const std::byte* group, std::size_t first, Panel& panel) {
  const StorageInfo& info = storage_info(type);
  panel.has_minima = type == StorageType::kQ4_1 || type == StorageType::kQ5_1;
  for (std::size_t b = 0; b < panel.blocks; ++b) {
    for (std::size_t row = 0; row < kGroupRows; ++row) {
      const auto* block =
          reinterpret_cast<const std::uint8_t*>(group) + ((first + b) * kGroupRows + row) * info.block_bytes;
      nibbles_32(type, block, b, Target{panel, row});
    }
  }
}

}  // namespace gem::cpu
