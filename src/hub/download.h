// One file's contents into the cache: resumed where it was left, in parallel ranges, checked before it
// counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "hub/repository.h"

namespace gem::hub {

struct DownloadOptions {
  unsigned connections = 8;                // of a file that is larger than one range
  std::uint64_t smallest_range = 1 << 20;  // bytes; ranges grow with a connection's speed
  std::uint64_t largest_range = 16 << 20;  // and at most two a connection wait in memory
};

struct DownloadState {
  enum class Phase { kChecking, kReceiving };
  Phase phase = Phase::kReceiving;
  std::uint64_t done = 0;  // bytes of the file: checked again, or here (received ones included)
};

struct Download {
  std::string url;
  std::string name;  // for messages
  std::uint64_t size = 0;
  DigestKind digest_kind = DigestKind::kSha256;
  std::string digest;
  std::filesystem::path incomplete;  // holds the file's beginning, at every moment
};

// Makes a client for one more connection; its requests end when `stopped` says so or the user does.
using HubMaker = std::function<std::unique_ptr<Hub>(const std::function<bool()>& stopped)>;

// Leaves the whole, checked file at `incomplete`, durable, for the caller to rename. What fails leaves a
// beginning that the next call goes on from; a file of another size or digest than listed leaves nothing.
// Error(kFailed), Error(kCancelled).
void download(const Download& what, const DownloadOptions& options, const HubMaker& make_hub,
              const std::function<void(const DownloadState&)>& progress);

// The digest of a file on disk. Error(kFailed), Error(kCancelled).
std::string digest_of_file(const std::filesystem::path& path, DigestKind kind, std::uint64_t size,
                           const std::function<bool()>& cancelled,
                           const std::function<void(std::uint64_t done)>& progress);

}  // namespace gem::hub
