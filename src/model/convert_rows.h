// Rows of a tensor from one storage to another, batch by batch on all threads: the inner part of gem convert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/geometry.h"
#include "base/thread_pool.h"
#include "formats/checkpoint.h"

namespace gem {

// A matrix as backends see it.
Matrix matrix_of(const TensorView& view);

// What rows are written as.
struct RowForm {
  StorageType type = StorageType::kBF16;
  Affine affine;  // kAffine: the codes alone go to the sink; scales and biases are kept

  static RowForm of(StorageType type) { return {type, {}}; }
};

class RowEncoder {
 public:
  // Both must outlive this.
  RowEncoder(const Checkpoint& source, ThreadPool& pool) : source_(source), pool_(pool) {}

  using Sink = std::function<void(std::span<const std::byte>)>;
  // All rows in order; a vector counts as one row. Gives the source's pages back. Error(kRefused) for a value
  // that is not finite.
  void run(const TensorView& view, const RowForm& form, const Sink& sink);

  // Of the last matrix that was written as kAffine.
  std::span<const std::byte> scales() const { return scales_; }
  std::span<const std::byte> biases() const { return biases_; }

 private:
  const Checkpoint& source_;
  ThreadPool& pool_;
  std::vector<std::byte> scales_, biases_;
};

// A sum of bytes (FNV-1a, 64 bits) that does not depend on how they are cut into pieces.
class ByteSum {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) value_ = (value_ ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace gem
