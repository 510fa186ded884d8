#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "base/output_file.h"

namespace gem::hub {
namespace {

namespace fs = std::filesystem;

// A folder of ours: made where there is none; a link in its place could lead out of the cache.
void require_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return;
  struct stat status {};
  if (errno != EEXIST)
    fail(ErrorCode::kFailed, "cannot make the folder {}: {}", path.string(), std::strerror(errno));
  if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    fail(ErrorCode::kFailed, "{} is not a folder: the cache is not as it should be", path.string());
}

// The folders of a relative path below one that is there, all but the last part.
fs::path require_folders(fs::path folder, const std::string& path) {
  const auto parts = split_path(path);
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    folder /= parts[i];
    require_folder(folder);
  }
  return folder;
}

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(ErrorCode::kFailed, "cannot make the folder {}: {}", path.string(), error.message());
}

void list(const fs::path& folder, const std::string& prefix, std::vector<ListedFile>& found) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string path = join_path(prefix, it->path().filename().string());
    if (it->symlink_status().type() == fs::file_type::directory) {
      list(it->path(), path, found);
      continue;
    }
    std::error_code gone;
    if (!fs::is_regular_file(it->path(), gone) || !is_safe_path(path)) continue;
    const std::uintmax_t size = fs::file_size(it->path(), gone);
    if (!gone) found.push_back({path, size});
  }
}

}  // namespace

Cache::Cache(const fs::path& root, const RepoRef& ref)
    : root_(root), name_(fmt::format("models--{}--{}", ref.org, ref.name)) {
  folder_ = root_ / name_;
}

fs::path Cache::incomplete(const std::string& digest) const {
  return folder_ / "blobs" / (digest + ".incomplete");
}

std::optional<std::string> Cache::commit_of(const std::string& revision) const {
  if (is_hex(revision, 40)) return revision;
  std::ifstream file(folder_ / "refs" / revision, std::ios::binary);
  std::string commit;
  if (!file || !(file >> commit) || !is_hex(commit, 40)) return std::nullopt;
  return commit;
}

std::vector<ListedFile> Cache::files(const std::string& commit) const {
  std::vector<ListedFile> found;
  list(snapshot(commit), "", found);
  std::ranges::sort(found, {}, &ListedFile::path);
  return found;
}

bool Cache::has_incomplete() const {
  std::error_code error;
  for (fs::directory_iterator it(folder_ / "blobs", error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".incomplete") return true;
  return false;
}

void Cache::prepare() const {
  make_folders(folder_);  // which may be a link to another disk
  require_folder(folder_ / "blobs");
  require_folder(folder_ / "snapshots");
  require_folder(folder_ / "refs");
  make_folders(root_ / ".locks" / name_);
}

void Cache::link(const std::string& commit, const std::string& path, const std::string& digest) const {
  require_folder(snapshot(commit));
  const fs::path folder = require_folders(snapshot(commit), path);
  std::string target = "../../";
  for (std::size_t i = 1; i < split_path(path).size(); ++i) target += "../";
  target += "blobs/" + digest;
  const fs::path name = folder / file_name(path);
  std::error_code ignored;
  if (fs::read_symlink(name, ignored) == target) return;
  // Under another name first: whoever looks sees the old file or the new one.
  const fs::path temporary = folder / fmt::format(".{}.link-{}", digest.substr(0, 16), ::getpid());
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0)
    fail(ErrorCode::kFailed, "cannot make the link {}: {}", temporary.string(), std::strerror(errno));
  if (::rename(temporary.c_str(), name.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    fail(ErrorCode::kFailed, "cannot make the link {}: {}", name.string(), std::strerror(reason));
  }
}

void Cache::write_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  const fs::path folder = require_folders(folder_ / "refs", revision);
  OutputFile file((folder / file_name(revision)).string());
  file.write(commit);
  file.commit();
}

BlobLock::BlobLock(const Cache& cache, const std::string& digest, const std::function<bool()>& cancelled,
                   const std::function<void()>& busy) {
  const fs::path path = cache.root() / ".locks" / cache.name_ / (digest + ".lock");
  bool told = false;
  while (true) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd_ < 0) fail(ErrorCode::kFailed, "cannot open the lock {}: {}", path.string(), std::strerror(errno));
    bool mine = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (!mine && errno != EWOULDBLOCK && errno != EINTR) return;  // a file system without locks
    if (mine) {
      // Others may remove the file when they are done: a lock on a removed file keeps nobody out.
      struct stat held {
      }, named{};
      mine = ::fstat(fd_, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
             held.st_dev == named.st_dev;
      if (mine) return;
    }
    ::close(fd_);
    fd_ = -1;
    if (!told) busy();
    told = true;
    if (cancelled()) fail(ErrorCode::kCancelled, "interrupted");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

BlobLock::~BlobLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace gem::hub
