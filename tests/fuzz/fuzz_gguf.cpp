// Any bytes are a GGUF file or a gem::Error; whatever was read lies within the bytes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/storage.h"
#include "formats/gguf.h"

namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

void use_tensor(const gem::TensorView& tensor, std::span<const std::byte> file) {
  require(tensor.bytes.data() >= file.data());
  require(tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size());
  require(gem::storage_bytes(tensor.type, tensor.elements()) == tensor.bytes.size());
  const std::size_t block = gem::storage_info(tensor.type).block_elements;
  std::vector<float> values(block);
  gem::dequantize(tensor.type, tensor.bytes.data(), values.data(), block);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  gem::Checkpoint checkpoint;
  try {
    gem::read_gguf(file, "fuzz", checkpoint);
  } catch (const gem::Error&) {
    return 0;
  }
  for (const gem::TensorView& tensor : checkpoint.tensors()) {
    use_tensor(tensor, file);
    require(checkpoint.tensor(tensor.name) != nullptr);
  }
  for (const auto& [key, value] : checkpoint.metadata()) {
    require(checkpoint.find(key) == &value);
    const auto each = {+[](const gem::Checkpoint& c, const std::string& k) { (void)c.integers(k); },
                       +[](const gem::Checkpoint& c, const std::string& k) { (void)c.number(k); },
                       +[](const gem::Checkpoint& c, const std::string& k) { (void)c.booleans(k); },
                       +[](const gem::Checkpoint& c, const std::string& k) { (void)c.strings(k); },
                       +[](const gem::Checkpoint& c, const std::string& k) { (void)c.string(k); }};
    for (const auto look_up : each) {
      try {
        look_up(checkpoint, key);
      } catch (const gem::Error&) {  // of another type
      }
    }
  }
  return 0;
}
