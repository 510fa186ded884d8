// Q4_K, Q5_K and Q6_K super-blocks of one row -> their lanes of a packed group (backend/cpu/super_blocks.h).
#include <cstring>

#include "backend/cpu/packed.h"
#include "backend/cpu/super_blocks.h"

namespace gem::cpu {
namespace {

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

// The 256 codes of a super-block, without the 32 that Q6_K takes off.
void codes_k45(const std::uint8_t* fifth, const std::uint8_t* qs, std::uint8_t* out) {
  for (unsigned sub = 0; sub < 8; ++sub) {
    const std::uint8_t* bytes = qs + 32 * (sub / 2);
    const unsigned shift = 4 * (sub % 2);
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned high = fifth != nullptr ? fifth[l] >> sub & 1u : 0;
      out[32 * sub + l] = static_cast<std::uint8_t>((bytes[l] >> shift & 15u) | high << 4);
    }
  }
}

void codes_6k(const std::uint8_t* block, std::uint8_t* out) {
  for (unsigned sub = 0; sub < 8; ++sub) {
    const unsigned part = sub % 4;
    const std::uint8_t* low = block + 64 * (sub / 4) + 32 * (part % 2);
    const std::uint8_t* high = block + 128 + 32 * (sub / 4);
    for (unsigned l = 0; l < 32; ++l)
      out[32 * sub + l] =
          static_cast<std::uint8_t>((low[l] >> (4 * (part / 2)) & 15u) | (high[l] >> (2 * part) & 3u) << 4);
  }
}

void put_word(std::byte* lanes, std::size_t lane, unsigned word) {
  const auto value = static_cast<std::uint16_t>(word);
  std::memcpy(lanes + 2 * lane, &value, sizeof value);
}

}  // namespace

void pack_super_block(StorageType type, const std::byte* stored, std::size_t row, std::byte* out) {
  const auto* block = reinterpret_cast<const std::uint8_t*>(stored);
  const SuperLayout layout = super_layout(type);
  const bool six = type == StorageType::kQ6_K;
  std::uint8_t codes[256];
  if (six) {
    codes_6k(block, codes);
    std::memcpy(out + 2 * row, block + 208, 2);
    for (std::size_t i = 0; i < 16; ++i)
      out[2 * kGroupRows + i * kGroupRows + row] = static_cast<std::byte>(block[192 + i]);
  } else {
    const bool five = type == StorageType::kQ5_K;
    codes_k45(five ? block + 16 : nullptr, block + (five ? 48 : 16), codes);
    std::memcpy(out + 2 * row, block, 2);
    std::memcpy(out + 2 * kGroupRows + 2 * row, block + 2, 2);
    for (unsigned sub = 0; sub < 8; ++sub) {
      const ScaleMin packed = packed_scale(block + 4, sub);
      out[4 * kGroupRows + sub * kGroupRows + row] = static_cast<std::byte>(packed.scale);
      out[12 * kGroupRows + sub * kGroupRows + row] = static_cast<std::byte>(packed.min);
    }
  }
  for (std::size_t sub = 0; sub < 8; ++sub) {
    const std::uint8_t* c = codes + 32 * sub;
    for (std::size_t odd = 0; odd < 2; ++odd) {
      const std::size_t lane = 2 * row + odd;
      for (std::size_t v = 0; v < 4; ++v) {
        unsigned word = 0;
        for (std::size_t i = 0; i < 4; ++i) word |= (c[8 * v + 2 * i + odd] & 15u) << (4 * i);
        put_word(out + layout.nibbles(sub) + v * 4 * kGroupRows, lane, word);
      }
      if (type == StorageType::kQ5_K) {
        unsigned word = 0;
        for (unsigned p = 0; p < 16; ++p) word |= (c[2 * p + odd] >> 4 & 1u) << bits_at(type, p);
        put_word(out + layout.bits(sub), lane, word);
      }
      for (std::size_t w = 0; six && w < 2; ++w) {
        unsigned word = 0;
        for (unsigned p = 0; p < 8; ++p) word |= (c[2 * (8 * w + p) + odd] >> 4 & 3u) << bits_at(type, p);
        put_word(out + layout.bits(sub) + w * 4 * kGroupRows, lane, word);
      }
    }
  }
}

}  // namespace gem::cpu
