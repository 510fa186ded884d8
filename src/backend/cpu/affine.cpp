#include "backend/cpu/affine.h"

#include <cstring>

#include "backend/cpu/affine_unpack.h"
#include "base/numbers.h"

namespace gem::cpu {
namespace {

// One lane of a plane: word w of a row lies kGroupRows words of 32 bits after word w - 1; the lower 16 bits
// hold the even columns of the pairs, the upper ones the odd columns.
void put_word(std::byte* plane, std::size_t word, std::size_t lane, std::uint32_t value) {
  std::memcpy(plane + (word * kGroupRows + lane) * sizeof value, &value, sizeof value);
}

// `width` bits of each code from bit `shift` up, `per_word` pairs of columns a word.
void put_plane(const std::uint8_t* codes, unsigned shift, unsigned width, std::size_t lane,
               std::byte* plane) {
  const std::size_t per_word = 16 / width;
  const unsigned mask = (1u << width) - 1;
  for (std::size_t word = 0; word < 16 / per_word; ++word) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < per_word; ++i) {
      const std::uint8_t* pair = codes + 2 * (word * per_word + i);
      value |= (pair[0] >> shift & mask) << (width * i) | (pair[1] >> shift & mask) << (16 + width * i);
    }
    put_word(plane, word, lane, value);
  }
}

// Codes of less than a byte.
void put_planes(std::size_t bits, const std::uint8_t* codes, std::size_t lane, std::byte* out) {
  const unsigned low = bits >= 4 ? 4 : 2;
  put_plane(codes, 0, low, lane, out);
  if (bits > low) put_plane(codes, low, static_cast<unsigned>(bits) - low, lane, out + 4 * kGroupRows * low);
}

// The nibbles of `x` at even places, one after the other.
std::uint32_t even_nibbles(std::uint32_t x) {
  x &= 0x0f0f0f0f;
  x = (x | x >> 4) & 0x00ff00ff;
  return (x | x >> 8) & 0xffff;
}

void pack_block(std::size_t bits, const std::byte* codes, std::size_t lane, std::byte* out) {
  if (bits == 8) {
    for (std::size_t p = 0; p < 16; ++p) std::memcpy(out + (p * kGroupRows + lane) * 2, codes + 2 * p, 2);
    return;
  }
  if (bits == 4) {
    for (std::size_t word = 0; word < 4; ++word) {
      std::uint32_t eight;
      std::memcpy(&eight, codes + 4 * word, sizeof eight);
      put_word(out, word, lane, even_nibbles(eight) | even_nibbles(eight >> 4) << 16);
    }
    return;
  }
  std::uint8_t q[kBlock];
  unpack_codes(static_cast<std::uint32_t>(bits), codes, 0, kBlock, q);
  put_planes(bits, q, lane, out);
}

void put_scale(bool wide, float value, std::size_t lane, std::byte* out) {
  if (wide) {
    std::memcpy(out + lane * sizeof value, &value, sizeof value);
  } else {
    const std::uint16_t half = f32_to_bf16(value);  // exact: it was stored so
    std::memcpy(out + lane * sizeof half, &half, sizeof half);
  }
}

}  // namespace

void pack_affine_row(const AffineLayout& layout, const Affine& source, const std::byte* codes,
                     std::size_t row, std::size_t lane, std::byte* out) {
  const std::size_t entries = layout.blocks / layout.group_blocks;
  for (std::size_t e = 0; e < entries; ++e) {
    std::byte* entry = out + e * layout.entry_bytes();
    put_scale(layout.wide, source.scale(row * entries + e), lane, entry);
    put_scale(layout.wide, source.bias(row * entries + e), lane, entry + layout.entry_bytes() / 2);
  }
  for (std::size_t b = 0; b < layout.blocks; ++b)
    pack_block(layout.bits, codes + b * (kBlock / 8) * layout.bits, lane,
               out + layout.codes() + b * layout.block_bytes());
}

// Scale, minimum where there is one, fifth bits where there are five, nibbles: j in the low, j + 16 in the
// high one of byte j.
void pack_affine_blocks(const AffineLayout& layout, StorageType type, const std::byte* stored,
                        std::size_t lane, std::byte* out) {
  const bool minimum = type != StorageType::kQ5_0;
  const std::size_t block_bytes = storage_info(type).block_bytes;
  for (std::size_t b = 0; b < layout.blocks; ++b, stored += block_bytes) {
    std::uint16_t halves[2];
    std::memcpy(halves, stored, sizeof halves);
    const float scale = f16_to_f32(halves[0]);
    std::byte* entry = out + b * layout.entry_bytes();
    put_scale(layout.wide, scale, lane, entry);
    put_scale(layout.wide, minimum ? f16_to_f32(halves[1]) : -16.0f * scale, lane,
              entry + layout.entry_bytes() / 2);
    const std::byte* from = stored + (minimum ? 4 : 2);
    std::uint32_t fifth = 0;
    if (layout.bits == 5) {
      std::memcpy(&fifth, from, sizeof fifth);
      from += sizeof fifth;
    }
    std::uint8_t codes[kBlock];
    for (std::size_t j = 0; j < 16; ++j) {
      const auto byte = std::to_integer<unsigned>(from[j]);
      codes[j] = static_cast<std::uint8_t>((byte & 15u) | (fifth >> j & 1u) << 4);
      codes[j + 16] = static_cast<std::uint8_t>(byte >> 4 | (fifth >> (j + 16) & 1u) << 4);
    }
    put_planes(layout.bits, codes, lane, out + layout.codes() + b * layout.block_bytes());
  }
}

const AffineKernels kPortableAffine = {.group = nullptr, .unpack = unpack_affine};

const AffineKernels& affine_kernels([[maybe_unused]] const Kernels& kernels) {
#if defined(__x86_64__)
  if (&kernels != &kPortableKernels) return kAvx2Affine;
#endif
  return kPortableAffine;
}

}  // namespace gem::cpu
