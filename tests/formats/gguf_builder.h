// Builds GGUF images byte by byte, sound ones and broken ones. It shares no code with the writer under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gem::testing {

class GgufBuilder {
 public:
  // Value type ids of the format.
  enum Type : std::uint32_t { U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 };

  GgufBuilder() = default;
  GgufBuilder(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    text("GGUF").put(version).put(tensors).put(keys);
  }

  template <typename T>
  GgufBuilder& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBuilder& text(std::string_view raw) {
    bytes_ += raw;
    return *this;
  }
  GgufBuilder& string(std::string_view s) { return put(static_cast<std::uint64_t>(s.size())).text(s); }

  // The start of a key: its name and type; the value follows.
  GgufBuilder& key(std::string_view name, std::uint32_t type) { return string(name).put(type); }
  template <typename T>
  GgufBuilder& key(std::string_view name, std::uint32_t type, T value) {
    return key(name, type).put(value);
  }
  GgufBuilder& key_string(std::string_view name, std::string_view value) {
    return key(name, STR).string(value);
  }
  GgufBuilder& array(std::string_view name, std::uint32_t element_type, std::uint64_t count) {
    return key(name, ARR).put(element_type).put(count);
  }

  // A tensor info; `ne` has the contiguous axis first. Type ids: 0 F32, 1 F16, 2 Q4_0, 8 Q8_0.
  GgufBuilder& tensor(std::string_view name, const std::vector<std::int64_t>& ne, std::uint32_t type,
                      std::uint64_t offset) {
    string(name).put(static_cast<std::uint32_t>(ne.size()));
    for (const std::int64_t extent : ne) put(extent);
    return put(type).put(offset);
  }
  GgufBuilder& align(std::size_t alignment = 32) {
    bytes_.append((alignment - bytes_.size() % alignment) % alignment, '\0');
    return *this;
  }
  GgufBuilder& zeros(std::size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Two keys, two tensors: "a" F32 {3} at 0 and "b" Q4_0 {64, 2} at 32; 32 + 72 bytes of data.
inline std::string sound_gguf(std::uint32_t version = 3) {
  GgufBuilder b(2, 2, version);
  b.key_string("general.architecture", "gemma4")
      .key("gemma4.block_count", GgufBuilder::U32, std::uint32_t{12});
  b.tensor("a", {3}, 0, 0).tensor("b", {64, 2}, 2, 32).align();
  b.put(1.0f).put(2.0f).put(3.0f).align().zeros(72);
  return b.bytes();
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace gem::testing
