#include "backend/cpu/packed.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/super_blocks.h"
#include "base/error.h"

namespace gem::cpu {
namespace {

// Blocks of `type` in a row of `cols` columns.
std::size_t storage_blocks(StorageType type, std::size_t cols) {
  return cols / storage_info(type).block_elements;
}

// The low nibbles of bytes 0, 2, 4, 6 of `x`, one after the other.
std::uint32_t even_nibbles(std::uint64_t x) {
  x &= 0x000f000f000f000f;
  x = (x | x >> 12) & 0x000000ff000000ff;
  return static_cast<std::uint32_t>((x | x >> 24) & 0xffff);
}

// Byte j of a Q4_0 block holds element j in its low, element j + 16 in its high nibble.
void pack_nibbles(const std::byte* block, std::size_t row, std::byte* codes) {
  std::uint64_t halves[2];
  std::memcpy(halves, block + 2, sizeof halves);
  for (std::size_t v = 0; v < 4; ++v) {
    const std::uint64_t x = halves[v % 2] >> (4 * (v / 2));
    const std::uint32_t word = even_nibbles(x) | even_nibbles(x >> 8) << 16;
    std::memcpy(codes + v * kGroupRows * 4 + row * 4, &word, sizeof word);
  }
}

void pack_bytes(const std::byte* block, std::size_t row, std::byte* codes) {
  for (std::size_t v = 0; v < 16; ++v)
    std::memcpy(codes + v * kGroupRows * 2 + row * 2, block + 2 + 2 * v, 2);
}

}  // namespace

PackedForm packed_form(StorageType type) {
  switch (type) {
    case StorageType::kF32:
    case StorageType::kF16:
    case StorageType::kBF16:
      return PackedForm::kFloats;
    case StorageType::kQ4_0:
      return PackedForm::kNibbles;
    case StorageType::kQ8_0:
      return PackedForm::kBytes;
    case StorageType::kQ4_K:
    case StorageType::kQ5_K:
    case StorageType::kQ6_K:
      return PackedForm::kSuper;
    case StorageType::kAffine:
    case StorageType::kQ4_1:
    case StorageType::kQ5_0:
    case StorageType::kQ5_1:
      return PackedForm::kAffine;
  }
  fail(ErrorCode::kFailed, "storage type {} has no packed form", static_cast<int>(type));
}

PackedMatrix::PackedMatrix(const Matrix& source) : source_(source), form_(packed_form(source.type)) {
  switch (form_) {
    case PackedForm::kNibbles:
      group_bytes_ = group_scale_bytes(blocks()) + blocks() * kGroupRows * 16;
      return;
    case PackedForm::kBytes:
      group_bytes_ = group_scale_bytes(blocks()) + blocks() * kGroupRows * 32;
      return;
    case PackedForm::kSuper:
      group_bytes_ = storage_blocks(source.type, cols()) * super_layout(source.type).bytes();
      return;
    case PackedForm::kAffine:
      affine_ = source.type == StorageType::kAffine ? AffineLayout(source.affine, cols())
                                                    : AffineLayout(source.type, cols());
      group_bytes_ = affine_.bytes();
      return;
    case PackedForm::kFloats:
      return;
  }
}

void PackedMatrix::allocate() {
  data_ = Buffer(bytes());
  data_.prefer_huge_pages();
}

void PackedMatrix::pack_group(std::size_t group) {
  std::byte* const out = data_.as<std::byte>() + group * group_bytes_;
  const std::size_t filled = std::min<std::size_t>(kGroupRows, rows() - group * kGroupRows);
  if (filled < kGroupRows) std::memset(out, 0, group_bytes_);
  if (form_ == PackedForm::kAffine) {
    for (std::size_t lane = 0; lane < filled; ++lane) {
      const std::size_t row = group * kGroupRows + lane;
      if (source_.type == StorageType::kAffine) {
        pack_affine_row(affine_, source_.affine, source_.row(row), row, lane, out);
      } else {
        pack_affine_blocks(affine_, source_.type, source_.row(row), lane, out);
      }
    }
    return;
  }
  const std::size_t block_bytes = storage_info(source_.type).block_bytes;
  const std::size_t count = storage_blocks(source_.type, cols());
  for (std::size_t row = 0; row < filled; ++row) {
    const std::byte* block = source_.row(group * kGroupRows + row);
    if (form_ == PackedForm::kSuper) {
      for (std::size_t b = 0; b < count; ++b, block += block_bytes)
        pack_super_block(source_.type, block, row, out + b * super_layout(source_.type).bytes());
      continue;
    }
    std::byte* codes = out + group_scale_bytes(count);
    for (std::size_t b = 0; b < count; ++b, block += block_bytes) {
      std::memcpy(out + (b * kGroupRows + row) * 2, block, 2);
      if (form_ == PackedForm::kNibbles) {
        pack_nibbles(block, row, codes + b * kGroupRows * 16);
      } else {
        pack_bytes(block, row, codes + b * kGroupRows * 32);
      }
    }
  }
}

std::size_t PackedMatrix::direct_rows(const Kernels& kernels) const {
  switch (form_) {
    case PackedForm::kNibbles:
    case PackedForm::kBytes:
      return kMostDirectRows;
    case PackedForm::kSuper:  // codes of 6 bits take three times the instructions of four
      if (kernels.group_super == nullptr) return 0;
      return source_.type == StorageType::kQ6_K ? 4 : 8;
    case PackedForm::kAffine:
      if (affine_.bits != 4 && affine_.bits != 8) return 0;
      return affine_kernels(kernels).group != nullptr ? kMostDirectRows : 0;
    case PackedForm::kFloats:
      break;
  }
  return 0;
}

void PackedMatrix::multiply_group(std::size_t group, const Activations& x, std::size_t rows, float* out,
                                  const Kernels& kernels) const {
  if (form_ == PackedForm::kAffine)
    return affine_kernels(kernels).group(affine_, this->group(group), x, rows, out);
  if (form_ == PackedForm::kSuper) return kernels.group_super(source_.type, this->group(group), x, rows, out);
  const auto kernel = form_ == PackedForm::kNibbles ? kernels.group_q4_0 : kernels.group_q8_0;
  kernel(this->group(group), x, rows, out);
}

void PackedMatrix::unpack(std::size_t group, std::size_t first, Panel& panel, const Kernels& kernels) const {
  panel.scales_per_block = 1;
  panel.has_minima = false;
  switch (form_) {
    case PackedForm::kNibbles:
      return kernels.unpack_q4_0(this->group(group), blocks(), first, panel);
    case PackedForm::kBytes:
      return kernels.unpack_q8_0(this->group(group), blocks(), first, panel);
    case PackedForm::kSuper:
      panel.scales_per_block = source_.type == StorageType::kQ6_K ? 2 : 1;
      panel.has_minima = source_.type != StorageType::kQ6_K;
      return kernels.unpack_super(source_.type, this->group(group), first, panel);
    case PackedForm::kAffine:
      panel.has_minima = true;
      return affine_kernels(kernels).unpack(affine_, this->group(group), first, panel);
    case PackedForm::kFloats:
      break;
  }
  fail(ErrorCode::kFailed, "matrices of floats are not unpacked");
}

}  // namespace gem::cpu
