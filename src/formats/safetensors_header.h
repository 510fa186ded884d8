// The JSON header of a safetensors file, read as a stream: no document is built, so a header costs its own
// size, and a nesting that the format does not have is refused where it begins.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gem {

struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin = 0;  // data_offsets, not yet checked
    std::uint64_t end = 0;
  };
  std::vector<Tensor> tensors;  // in the order of the header
  std::map<std::string, std::string> metadata;
};

// Error(kBadFile), prefixed by `where`, for anything but one object of the documented form, each key once.
SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& where);

}  // namespace gem
