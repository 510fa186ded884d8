#include "base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace gem {
namespace {

constexpr std::size_t kBufferBytes = 1u << 20;
constexpr int kAttempts = 100;  // names tried before giving up

}  // namespace

OutputFile::OutputFile(std::string path, unsigned mode) : path_(std::move(path)) {
  struct stat status {};
  // Renaming over a device (/dev/null) or a folder would replace or break it.
  if (::stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    fail(ErrorCode::kUsage, "cannot write {}: it exists and is not a regular file", path_);
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.part-{}-{}", path_, ::getpid(), attempt);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd_ < 0 && (errno != EEXIST || attempt == kAttempts))
      fail(ErrorCode::kFailed, "cannot create {}: {}", temporary_, std::strerror(errno));
  }
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  written_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes) {
    write_through(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void OutputFile::write_zeros(std::uint64_t count) {
  const std::vector<std::byte> zeros(static_cast<std::size_t>(std::min<std::uint64_t>(count, kBufferBytes)));
  while (count > 0) {
    const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(count, zeros.size()));
    write(std::span(zeros).first(piece));
    count -= piece;
  }
}

void OutputFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void OutputFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      fail(ErrorCode::kFailed, "cannot write {}: {}", temporary_, std::strerror(n < 0 ? errno : EIO));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void OutputFile::commit() {
  flush();
  if (::fsync(fd_) != 0) fail(ErrorCode::kFailed, "cannot write {}: {}", temporary_, std::strerror(errno));
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail(ErrorCode::kFailed, "cannot rename {} to {}: {}", temporary_, path_, std::strerror(errno));
  ::close(fd_);
  fd_ = -1;
}

}  // namespace gem
