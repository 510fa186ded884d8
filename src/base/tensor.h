// A tensor as it lies in a checkpoint: no copy, no ownership.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/storage.h"

namespace gem {

struct TensorView {
  std::string name;
  StorageType type = StorageType::kF32;
  std::vector<std::uint64_t> shape;  // row-major, outermost first: a matrix [out, in] has shape {out, in}
  std::span<const std::byte> bytes;  // exactly storage_bytes(type, product of shape)

  std::uint64_t elements() const {
    std::uint64_t n = 1;
    for (const std::uint64_t d : shape) n *= d;
    return n;
  }
};

}  // namespace gem
