// Decoding packed affine blocks into a panel: plain loops over lanes with constant shifts, compiled once for
// every instruction set (each includes this file).
#pragma once

#include <bit>
#include <cstring>
#include <utility>

#include "backend/cpu/affine.h"

namespace gem::cpu {
namespace {

constexpr std::size_t kAffineLanes = 2 * kGroupRows;

// Plane words of pair P of one block.
template <unsigned kBits, unsigned P>
void unpack_affine_pair(const std::uint16_t* __restrict words, std::int16_t* __restrict out) {
  constexpr std::size_t kNibbleWords = 4 * kAffineLanes;
  constexpr std::size_t kCrumbWords = 2 * kAffineLanes;
  for (std::size_t i = 0; i < kAffineLanes; ++i) {
    unsigned code = 0;
    if constexpr (kBits >= 4) {
      code = words[P / 4 * kAffineLanes + i] >> (4 * (P % 4)) & 15u;
    } else {
      code = words[P / 8 * kAffineLanes + i] >> (2 * (P % 8)) & 3u;
    }
    if constexpr (kBits == 3) code |= (words[kCrumbWords + i] >> P & 1u) << 2;
    if constexpr (kBits == 5) code |= (words[kNibbleWords + i] >> P & 1u) << 4;
    if constexpr (kBits == 6)
      code |= (words[kNibbleWords + P / 8 * kAffineLanes + i] >> (2 * (P % 8)) & 3u) << 4;
    out[i] = static_cast<std::int16_t>(code);
  }
}

template <unsigned kBits, unsigned... P>
void unpack_affine_pairs(const std::uint16_t* words, std::int16_t* codes,
                         std::integer_sequence<unsigned, P...>) {
  (unpack_affine_pair<kBits, P>(words, codes + P * kAffineLanes), ...);
}

template <unsigned kBits>
void unpack_affine_codes(const std::byte* block, std::int16_t* codes) {
  if constexpr (kBits == 8) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(block);
    for (std::size_t i = 0; i < kBlock * kGroupRows; ++i) codes[i] = bytes[i];
  } else {
    unpack_affine_pairs<kBits>(reinterpret_cast<const std::uint16_t*>(block), codes,
                               std::make_integer_sequence<unsigned, 16>());
  }
}

inline void unpack_affine_scales(bool wide, const std::byte* from, float* out) {
  if (wide) {
    std::memcpy(out, from, kGroupRows * sizeof(float));
    return;
  }
  const auto* halves = reinterpret_cast<const std::uint16_t*>(from);
  for (std::size_t i = 0; i < kGroupRows; ++i)
    out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(halves[i]) << 16);
}

template <unsigned kBits>
void unpack_affine_blocks(const AffineLayout& layout, const std::byte* group, std::size_t first,
                          const Panel& panel) {
  for (std::size_t b = 0; b < panel.blocks; ++b) {
    const std::byte* entry = group + (first + b) / layout.group_blocks * layout.entry_bytes();
    unpack_affine_scales(layout.wide, entry, panel.scales + b * kGroupRows);
    unpack_affine_scales(layout.wide, entry + layout.entry_bytes() / 2, panel.minima + b * kGroupRows);
    unpack_affine_codes<kBits>(group + layout.codes() + (first + b) * layout.block_bytes(),
                               panel.codes + b * kBlock * kGroupRows);
  }
}

void unpack_affine(const AffineLayout& layout, const std::byte* group, std::size_t first,
                   const Panel& panel) {
  switch (layout.bits) {
    case 2:
      return unpack_affine_blocks<2>(layout, group, first, panel);
    case 3:
      return unpack_affine_blocks<3>(layout, group, first, panel);
    case 4:
      return unpack_affine_blocks<4>(layout, group, first, panel);
    case 5:
      return unpack_affine_blocks<5>(layout, group, first, panel);
    case 6:
      return unpack_affine_blocks<6>(layout, group, first, panel);
    default:
      return unpack_affine_blocks<8>(layout, group, first, panel);
  }
}

}  // namespace
}  // namespace gem::cpu
