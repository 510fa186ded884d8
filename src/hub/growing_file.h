// A file that holds the beginning of what it will be, at every moment. Internal to the download.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "base/digest.h"

namespace gem::hub {

class GrowingFile {
 public:
  // Made where there is none; a link in its place is not followed. Error(kFailed).
  explicit GrowingFile(std::filesystem::path path);
  ~GrowingFile();
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;

  std::uint64_t size() const { return size_; }
  void append(std::span<const char> bytes);  // a full disk leaves a beginning, too
  void truncate(std::uint64_t size);
  void sync();    // to the disk
  void remove();  // its name
  // What is there goes into the digest. Error(kCancelled).
  void read_into(Digest& digest, const std::function<bool()>& cancelled,
                 const std::function<void(std::uint64_t done)>& progress) const;
  // Error(kFailed) when the file system has less than `bytes` left.
  void require_space(std::uint64_t bytes) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

// Reads a whole file into the digest. Error(kFailed), Error(kCancelled).
void read_file_into(Digest& digest, int fd, const std::filesystem::path& path,
                    const std::function<bool()>& cancelled,
                    const std::function<void(std::uint64_t done)>& progress);

}  // namespace gem::hub
