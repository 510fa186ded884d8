#include "hub/growing_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"

namespace gem::hub {
namespace {

constexpr std::size_t kBlock = 1 << 20;

[[noreturn]] void failed(const char* what, const std::filesystem::path& path, int reason) {
  fail(ErrorCode::kFailed, "cannot {} {}: {}", what, path.string(), std::strerror(reason));
}

}  // namespace

GrowingFile::GrowingFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd_ < 0) failed("write", path_, errno);
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    fail(ErrorCode::kFailed, "{} is not a regular file", path_.string());
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

GrowingFile::~GrowingFile() {
  ::close(fd_);
}

void GrowingFile::append(std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) failed("write", path_, n < 0 ? errno : EIO);
    size_ += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void GrowingFile::truncate(std::uint64_t size) {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) failed("write", path_, errno);
  size_ = size;
}

void GrowingFile::sync() {
  if (::fsync(fd_) != 0) failed("write", path_, errno);
}

void GrowingFile::remove() {
  ::unlink(path_.c_str());
}

void GrowingFile::read_into(Digest& digest, const std::function<bool()>& cancelled,
                            const std::function<void(std::uint64_t done)>& progress) const {
  read_file_into(digest, fd_, path_, cancelled, progress);
}

void GrowingFile::require_space(std::uint64_t bytes) const {
  struct statvfs system {};
  if (::fstatvfs(fd_, &system) != 0) return;  // the write will tell
  const auto free = static_cast<std::uint64_t>(system.f_bavail) * system.f_frsize;
  if (free < bytes)
    fail(ErrorCode::kFailed, "{:.2f} GB more are needed, and the file system of {} has {:.2f} GB left",
         static_cast<double>(bytes) / 1e9, path_.parent_path().string(), static_cast<double>(free) / 1e9);
}

void read_file_into(Digest& digest, int fd, const std::filesystem::path& path,
                    const std::function<bool()>& cancelled,
                    const std::function<void(std::uint64_t done)>& progress) {
  std::vector<char> block(kBlock);
  std::uint64_t done = 0;
  while (true) {
    const ssize_t n = ::pread(fd, block.data(), block.size(), static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed("read", path, errno);
    if (n == 0) return;
    digest.update(std::span(block).first(static_cast<std::size_t>(n)));
    done += static_cast<std::uint64_t>(n);
    progress(done);
    if (cancelled()) fail(ErrorCode::kCancelled, "interrupted");
  }
}

}  // namespace gem::hub
