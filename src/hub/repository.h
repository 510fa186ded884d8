// A repository as the hub describes it: the commit that a revision names, and its files with sizes and
// digests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "hub/http.h"
#include "hub/names.h"
#include "hub/settings.h"

namespace gem::hub {

// Waits between tries double, up to the longest.
struct RetryOptions {
  int tries = 6;  // one after the other without a byte of progress
  std::chrono::milliseconds first_wait{500};
  std::chrono::milliseconds longest_wait{30'000};
};

struct RepoFile {
  std::string path;                   // is_safe_path
  std::optional<std::uint64_t> size;  // bytes; some mirrors leave it out
  std::string sha256;                 // large files; else empty
  std::string git_sha1;               // of small files' contents; else empty

  // By which the cache names the contents; empty when the hub said none.
  const std::string& digest() const { return sha256.empty() ? git_sha1 : sha256; }
  DigestKind digest_kind() const { return sha256.empty() ? DigestKind::kGitBlob : DigestKind::kSha256; }
};

struct RepoInfo {
  std::string commit;  // 40 hex digits
  std::vector<RepoFile> files;
};

// The hub's answer about a model ("sha", "siblings" with "rfilename", "size", "blobId", "lfs").
// Error(kFailed) where it is not that, or names a file that does not stay inside a folder.
RepoInfo parse_repo_info(std::string_view json);

// The hub, for one thread.
class Hub {
 public:
  using Note = std::function<void(const std::string&)>;
  // `note` hears of each try that failed. Error(kUsage) for an endpoint that is no address.
  Hub(const Settings& settings, HttpOptions http, RetryOptions retry, std::function<bool()> cancelled,
      Note note);

  // Error(kFailed) that says whether there is no such repository or revision, or a token is missing.
  RepoInfo info(const RepoRef& ref);

  // Where a file of a commit is to be got.
  std::string file_url(const RepoRef& ref, const std::string& commit, const std::string& path) const;

  HttpClient& http() { return http_; }
  const RetryOptions& retry() const { return retry_; }
  const Origin& origin() const { return origin_; }
  bool cancelled() const { return cancelled_(); }
  void note(const std::string& text) const { note_(text); }

  // Waits before try number `tried` + 1, as long as the answer asks or the doubling says. Error(kCancelled);
  // Error(kFailed) with `reason` when there have been enough tries, or the answer asks for too long.
  void wait(int tried, const HttpHead& head, const std::string& reason) const;

  // What an answer that is neither 2xx nor worth another try means, for people.
  [[noreturn]] void refuse(const HttpHead& head, const std::string& what) const;
  static bool worth_another_try(long status);

 private:
  Origin origin_;
  std::string endpoint_;
  bool has_token_;
  RetryOptions retry_;
  std::function<bool()> cancelled_;
  Note note_;
  HttpClient http_;
};

// The token, or none where the endpoint would get it unencrypted over a network.
std::string token_for(const Settings& settings);

}  // namespace gem::hub
