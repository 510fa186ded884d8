// The safetensors container: u64 header length, a JSON header, then the tensors' bytes (little-endian).
// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"text": "text"}}
// Reading is strict, as the format asks: no key twice, no hole, no overlap, no byte left over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gem {

class MappedFile;

// Element types; the value is no part of any file.
enum class Dtype : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};
std::string_view dtype_name(Dtype dtype);  // as the header writes it: "BF16", "F8_E4M3"
std::uint64_t dtype_bytes(Dtype dtype);

struct SafetensorsView {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint64_t> shape;  // row-major, outermost first; empty for a scalar
  std::span<const std::byte> bytes;  // exactly dtype_bytes times the product of shape; not aligned

  std::uint64_t elements() const;
  // Copies of the elements. Error(kBadFile) naming the tensor when it has another type: `floats` takes F32,
  // F16 and BF16, `integers` every integer type that fits and BOOL.
  std::vector<float> floats() const;
  std::vector<std::int64_t> integers() const;
};

class SafetensorsFile {
 public:
  // Maps the file. Error(kBadFile) says what was found, where, and what was expected.
  static SafetensorsFile open(const std::string& path);
  // The same over bytes that outlive the result; `where` names them in messages.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& where);

  const std::vector<SafetensorsView>& tensors() const { return tensors_; }  // in the order of their bytes
  const SafetensorsView* find(std::string_view name) const;                 // nullptr when absent
  const SafetensorsView& at(std::string_view name) const;                   // Error(kBadFile) when absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::string where_;
  std::vector<SafetensorsView> tensors_;
  std::map<std::string, std::string> metadata_;
  std::shared_ptr<const MappedFile> file_;
};

// One tensor to write; the bytes are read during the call only.
struct SafetensorsEntry {
  std::string name;
  Dtype dtype;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes a file that appears whole or not at all. Error(kUsage) for a name given twice or bytes that do not
// match the shape, Error(kFailed) when the file cannot be written.
void write_safetensors(const std::string& path, const std::vector<SafetensorsEntry>& entries);

// The same as a stream: `produce` is called for each tensor in order and passes its bytes to `sink` in as
// many pieces as it likes. Error(kFailed) when they are not as many as the shape says.
struct SafetensorsPlan {
  std::string name;
  Dtype dtype;
  std::vector<std::uint64_t> shape;

  std::uint64_t bytes() const;  // Error(kUsage) when they overflow
};
using SafetensorsSink = std::function<void(std::span<const std::byte>)>;
void write_safetensors(
    const std::string& path, const std::vector<SafetensorsPlan>& tensors,
    const std::map<std::string, std::string>& metadata,
    const std::function<void(const SafetensorsPlan& tensor, const SafetensorsSink& sink)>& produce);

}  // namespace gem
