// A tensor as it lies in a checkpoint: no copy, no ownership.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/affine.h"
#include "base/storage.h"

namespace gem {

struct TensorView {
  std::string name;
  StorageType type = StorageType::kF32;
  std::vector<std::uint64_t> shape;  // row-major, outermost first: a matrix [out, in] has shape {out, in}
  std::span<const std::byte> bytes;  // exactly storage_bytes(type, product of shape); kAffine: the codes
  Affine affine = {};                // kAffine: a matrix [out, in]

  std::uint64_t elements() const {
    std::uint64_t n = 1;
    for (const std::uint64_t d : shape) n *= d;
    return n;
  }
  // Of all that the tensor is stored in.
  std::uint64_t stored_bytes() const {
    return bytes.size() +
           (type == StorageType::kAffine ? 2 * shape[0] * affine.row_scale_bytes(shape[1]) : 0);
  }
  // "BF16", "MLX 4-bit g64"
  std::string storage_name() const {
    return type == StorageType::kAffine ? affine.name() : std::string(storage_info(type).name);
  }
};

}  // namespace gem
