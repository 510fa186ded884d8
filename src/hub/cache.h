// The cache on disk, laid out as the Hugging Face tools do, and shared with them:
//
//   models--ORG--REPO/blobs/DIGEST                  the contents, by SHA-256 or git's blob id
//   models--ORG--REPO/blobs/DIGEST.incomplete       the beginning of one that is being got
//   models--ORG--REPO/snapshots/COMMIT/PATH         a relative link to a blob
//   models--ORG--REPO/refs/REVISION                 the commit that a branch or tag named last
//   .locks/models--ORG--REPO/DIGEST.lock            held (flock) by who writes that blob
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hub/names.h"
#include "hub/selection.h"

namespace gem::hub {

class Cache {
 public:
  Cache(const std::filesystem::path& root, const RepoRef& ref);

  const std::filesystem::path& root() const { return root_; }
  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }
  std::filesystem::path blob(const std::string& digest) const { return folder_ / "blobs" / digest; }
  std::filesystem::path incomplete(const std::string& digest) const;

  // The commit of a revision: itself where it is one, else what refs/ says. Nothing: not known here.
  std::optional<std::string> commit_of(const std::string& revision) const;
  // The files of a commit that are here, sorted. Links that lead nowhere do not count.
  std::vector<ListedFile> files(const std::string& commit) const;
  bool has_incomplete() const;

  // The folders that a blob needs. Error(kFailed) with the system's reason.
  void prepare() const;
  // Gives a blob its name in a commit. Error(kFailed) when a folder on the way is none (a link in its place
  // is not followed).
  void link(const std::string& commit, const std::string& path, const std::string& digest) const;
  void write_ref(const std::string& revision, const std::string& commit) const;

 private:
  std::filesystem::path root_, folder_;
  std::string name_;  // models--ORG--REPO
  friend class BlobLock;
};

// Holds the lock of one blob, against gem and the Hugging Face tools alike. Where the file system has no
// locks, it holds none.
class BlobLock {
 public:
  // Waits; `busy` is called once if it has to. Error(kCancelled), Error(kFailed).
  BlobLock(const Cache& cache, const std::string& digest, const std::function<bool()>& cancelled,
           const std::function<void()>& busy);
  ~BlobLock();
  BlobLock(const BlobLock&) = delete;
  BlobLock& operator=(const BlobLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace gem::hub
