// Any bytes are a safetensors file or a gem::Error; the views cover the data without overlap.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "formats/safetensors.h"

namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    const gem::SafetensorsFile file = gem::SafetensorsFile::parse(bytes, "fuzz");
    const std::byte* end = nullptr;
    for (const gem::SafetensorsView& view : file.tensors()) {
      require(view.bytes.data() >= bytes.data() + 8 && (end == nullptr || view.bytes.data() == end));
      end = view.bytes.data() + view.bytes.size();
      require(end <= bytes.data() + bytes.size());
      require(view.elements() * gem::dtype_bytes(view.dtype) == view.bytes.size());
      try {
        require(view.integers().size() == view.elements());
      } catch (const gem::Error&) {  // not integers
        try {
          require(view.floats().size() == view.elements());
        } catch (const gem::Error&) {  // nor floats
        }
      }
    }
    require(end == nullptr || end == bytes.data() + bytes.size());
  } catch (const gem::Error&) {
  }
  return 0;
}
