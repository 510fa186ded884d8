// Writing a GGUF version 3 file as a stream: first the metadata and the tensor table, then the data of each
// tensor in that order, so that a file of any size needs the memory of its header and of one piece of data.
//
//   GgufWriter writer;
//   writer.add("general.architecture", std::string_view("gemma4"));
//   writer.add("gemma4.block_count", std::uint32_t{12});
//   writer.add_tensor("output_norm.weight", StorageType::kF32, {128});
//   writer.write(path, [&](const GgufWriter::Tensor& tensor, const GgufWriter::Sink& sink) {
//   sink(bytes_of(tensor)); });
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/storage.h"
#include "formats/checkpoint.h"

namespace gem {

class GgufWriter {
 public:
  // `alignment` of the data section and of each tensor: a power of two. A value other than 32 is also written
  // as general.alignment.
  explicit GgufWriter(std::uint32_t alignment = 32);

  // One key and its value. T is a fixed-width integer, float, double, bool, std::string or std::string_view,
  // or a std::vector of one of them; the GGUF type follows from T. Error(kUsage) for an empty, malformed or
  // repeated key.
  template <typename T>
  void add(std::string_view key, const T& value);

  // A value read from another checkpoint, with the type that says the same: integers as u32, i32, u64 or i64,
  // whichever is the first to hold it (or all of them), numbers as f32 when exact, else f64.
  void add_value(std::string_view key, const MetadataValue& value);

  struct Tensor {
    std::string name;
    StorageType type;
    std::vector<std::uint64_t> shape;  // row-major, outermost first, as in TensorView; 1 to 4 dimensions
    std::uint64_t bytes;
    std::uint64_t offset;  // in the data section
  };
  // Error(kUsage) for a name, shape or row length that a reader would refuse.
  void add_tensor(std::string name, StorageType type, std::vector<std::uint64_t> shape);
  const std::vector<Tensor>& tensors() const { return tensors_; }

  // Bytes of the file that write() makes.
  std::uint64_t file_bytes() const;

  // Calls `produce` for each tensor in order; it passes the tensor's bytes to `sink` in as many pieces as it
  // likes. Error(kFailed) when the pieces are not `tensor.bytes` in all, or the file cannot be written; there
  // is then no file at `path`, or the one that was there before.
  using Sink = std::function<void(std::span<const std::byte>)>;
  using Producer = std::function<void(const Tensor& tensor, const Sink& sink)>;
  void write(const std::string& path, const Producer& produce) const;

 private:
  void begin_key(std::string_view key);
  std::string header() const;

  std::uint32_t alignment_;
  std::string metadata_;  // encoded
  std::uint64_t keys_ = 0;
  std::unordered_set<std::string> used_keys_;
  std::unordered_set<std::string> used_names_;
  std::vector<Tensor> tensors_;
  std::uint64_t data_bytes_ = 0;  // of the data section, the last tensor padded too
};

}  // namespace gem
