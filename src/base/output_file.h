// A file that appears under its name only when it is complete: written under a temporary name in the same
// folder, then renamed. Readers see the old file or the new one, never a part, and a mapping of the old one
// stays whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gem {

class OutputFile {
 public:
  // Error(kUsage) when `path` exists and is no regular file; Error(kFailed) with the system's reason
  // otherwise. `mode`: who may read it, 0600 for what is the owner's alone.
  explicit OutputFile(std::string path, unsigned mode = 0644);
  ~OutputFile();  // removes the temporary file unless commit() has run
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Both buffer small pieces; Error(kFailed) when the disk is full or failing.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  void write_zeros(std::uint64_t count);

  std::uint64_t written() const { return written_; }

  // Makes the bytes durable and gives the file its name.
  void commit();

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;
};

}  // namespace gem
