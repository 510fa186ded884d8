// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace gem {

class MappedFile {
 public:
  // Error(kBadFile) with the path and the system's reason. An empty file maps to an empty span.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Gives back the pages wholly inside `part`, a part of bytes(): they are read anew if they are used again.
  void release(std::span<const std::byte> part) const;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
  const std::byte* data_;
  std::size_t size_;
};

}  // namespace gem
