// How Q4_K, Q5_K and Q6_K lie in a packed group, and their decoding into a panel: plain loops over lanes,
// compiled once for every instruction set (each includes this file).
//
// Super-blocks of 256 columns, one after the other; a lane is one of 16 rows, or a row and one of a pair of
// columns:
//   f16 d [16]; then Q4_K, Q5_K: f16 dmin [16], 6-bit scales [8 blocks][16] and minima [8][16] in a byte
//   each;
//               Q6_K: int8 scales [8 blocks][2 halves][16]
//   low nibbles [8 blocks] as those of Q4_0 (backend/cpu/packed.h)
//   Q5_K: fifth bits [8 blocks][16 rows][2], a 16-bit word a lane
//   Q6_K: upper two bits [8 blocks][2][16 rows][2], word w those of pairs 8w .. 8w + 7 of columns
// The bits of pair 4v + i, whose nibble is nibble i of vector v, lie where that of pair 4v + i + 1 does, or
// (i = 3) at the bottom, so that they are put over it by a mask: see bits_at.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "backend/cpu/kernels.h"

namespace gem::cpu {

struct SuperLayout {
  std::size_t scales;  // bytes at the front
  std::size_t high;    // bytes a block of bits above the nibble
  std::size_t bytes() const { return scales + 8 * (16 * kGroupRows + high); }
  std::size_t nibbles(std::size_t block) const { return scales + block * 16 * kGroupRows; }
  std::size_t bits(std::size_t block) const { return nibbles(8) + block * high; }
};

constexpr SuperLayout super_layout(StorageType type) {
  if (type == StorageType::kQ6_K) return {2 * kGroupRows + 16 * kGroupRows, 8 * kGroupRows};
  return {4 * kGroupRows + 16 * kGroupRows, type == StorageType::kQ5_K ? std::size_t{4 * kGroupRows} : 0};
}

// Bits of a code above its nibble.
constexpr int bits_above(StorageType type) {
  return type == StorageType::kQ4_K ? 0 : type == StorageType::kQ5_K ? 1 : 2;
}

// Scales of a block, each for as many columns, and vectors of nibbles that share one.
template <StorageType kType>
inline constexpr std::size_t kBlockParts = kType == StorageType::kQ6_K ? 2 : 1;
template <StorageType kType>
inline constexpr std::size_t kPartVectors = 4 / kBlockParts<kType>;

// Offset of the 6- or 8-bit scales, of each part in turn.
constexpr std::size_t super_factors(StorageType type) {
  return (type == StorageType::kQ6_K ? 2 : 4) * kGroupRows;
}

// run(std::integral_constant<StorageType, type>())
template <typename Run>
void for_super_type(StorageType type, const Run& run) {
  if (type == StorageType::kQ4_K) return run(std::integral_constant<StorageType, StorageType::kQ4_K>());
  if (type == StorageType::kQ5_K) return run(std::integral_constant<StorageType, StorageType::kQ5_K>());
  run(std::integral_constant<StorageType, StorageType::kQ6_K>());
}

// Where in its word those of a pair of columns begin.
constexpr unsigned bits_at(StorageType type, unsigned pair) {
  const unsigned place = 4 * ((pair + 1) % 4);
  return type == StorageType::kQ6_K ? place + 2 * (pair / 4 % 2) : place + pair / 4;
}

namespace {

constexpr std::size_t kLanes = 2 * kGroupRows;

// One pair of columns. All shifts are constants, so that the loop is a few vector instructions of 16-bit
// lanes.
template <StorageType kType, unsigned kPair>
void unpack_pair(const std::uint16_t* __restrict nibbles, const std::uint16_t* __restrict bits,
                 std::int16_t* __restrict codes) {
  const std::uint16_t* n = nibbles + kPair / 4 * kLanes;
  const std::uint16_t* high = kType == StorageType::kQ6_K ? bits + kPair / 8 * kLanes : bits;
  std::int16_t* out = codes + kPair * kLanes;
  for (std::size_t i = 0; i < kLanes; ++i) {
    const auto low = static_cast<std::uint16_t>(n[i] >> (4 * (kPair % 4)) & 15);
    if constexpr (kType == StorageType::kQ4_K) {
      out[i] = static_cast<std::int16_t>(low);
    } else if constexpr (kType == StorageType::kQ5_K) {
      const auto fifth = static_cast<std::uint16_t>(high[i] >> bits_at(kType, kPair) & 1);
      out[i] = static_cast<std::int16_t>(low | static_cast<std::uint16_t>(fifth << 4));
    } else {
      const auto two = static_cast<std::uint16_t>(high[i] >> bits_at(kType, kPair) & 3);
      out[i] = static_cast<std::int16_t>(
          static_cast<std::uint16_t>(low | static_cast<std::uint16_t>(two << 4)) - 32);
    }
  }
}

template <StorageType kType, unsigned... kPairs>
void unpack_codes(const std::byte* nibbles, const std::byte* bits, std::int16_t* codes,
                  std::integer_sequence<unsigned, kPairs...>) {
  (unpack_pair<kType, kPairs>(reinterpret_cast<const std::uint16_t*>(nibbles),
                              reinterpret_cast<const std::uint16_t*>(bits), codes),
   ...);
}

// `halves_to_floats` converts kGroupRows f16 values.
template <StorageType kType, typename HalvesToFloats>
void unpack_super_blocks(const std::byte* group, std::size_t first, const Panel& panel,
                         const HalvesToFloats& halves_to_floats) {
  constexpr SuperLayout layout = super_layout(kType);
  alignas(64) float d[kGroupRows];
  alignas(64) float dmin[kGroupRows];
  for (std::size_t b = 0; b < panel.blocks; ++b) {
    const std::byte* const super = group + (first + b) / 8 * layout.bytes();
    const std::size_t sub = (first + b) % 8;
    halves_to_floats(super, d);
    if constexpr (kType == StorageType::kQ6_K) {
      const auto* s = reinterpret_cast<const std::int8_t*>(super) + 2 * kGroupRows + sub * 2 * kGroupRows;
      float* out = panel.scales + b * 2 * kGroupRows;
      for (std::size_t h = 0; h < 2; ++h) {
        for (std::size_t i = 0; i < kGroupRows; ++i)
          out[h * kGroupRows + i] = d[i] * static_cast<float>(s[h * kGroupRows + i]);
      }
    } else {
      halves_to_floats(super + 2 * kGroupRows, dmin);
      const auto* s = reinterpret_cast<const std::uint8_t*>(super) + 4 * kGroupRows + sub * kGroupRows;
      const std::uint8_t* m = s + 8 * kGroupRows;
      for (std::size_t i = 0; i < kGroupRows; ++i) {
        panel.scales[b * kGroupRows + i] = d[i] * static_cast<float>(s[i]);
        panel.minima[b * kGroupRows + i] = -(dmin[i] * static_cast<float>(m[i]));
      }
    }
    unpack_codes<kType>(super + layout.nibbles(sub), super + layout.bits(sub),
                        panel.codes + b * kBlock * kGroupRows, std::make_integer_sequence<unsigned, 16>());
  }
}

template <typename HalvesToFloats>
void unpack_super_blocks(StorageType type, const std::byte* group, std::size_t first, const Panel& panel,
                         const HalvesToFloats& halves_to_floats) {
  for_super_type(
      type, [&](auto constant) { unpack_super_blocks<constant()>(group, first, panel, halves_to_floats); });
}

}  // namespace
}  // namespace gem::cpu
