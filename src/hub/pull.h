// A model from the hub into the cache, and from the cache to a path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/download.h"
#include "hub/repository.h"
#include "hub/selection.h"
#include "hub/settings.h"

namespace gem::hub {

struct PullProgress {
  std::string file;
  bool checking = false;             // what is here already, rather than receiving
  std::uint64_t done = 0;            // bytes of all files that are here
  std::uint64_t fresh = 0;           // of them, received by this pull
  std::uint64_t total = 0;           // bytes of all files
  std::size_t index = 0, files = 0;  // this one of so many, from 1
};

struct PullEvents {
  std::function<void(const std::string&)> note = [](const std::string&) {};        // a line for people
  std::function<void(const PullProgress&)> progress = [](const PullProgress&) {};  // several times a second
  std::function<bool()> cancelled = [] { return false; };                          // asked by several threads
};

struct PullOptions {
  bool assistant = true, mmproj = true;
  bool verify = false;  // read again what the cache has, and get anew what is damaged
  HttpOptions http;
  RetryOptions retry;
  DownloadOptions download;
};

struct PulledModel {
  std::string repository, commit;
  std::filesystem::path main;                // the GGUF file (of a split set the first), or the folder
  std::filesystem::path assistant, mmproj;   // empty: none
  std::vector<std::filesystem::path> files;  // all of them
  std::uint64_t bytes = 0, received = 0;
};

// Gets what is missing. Error as its parts; what was got stays, and the next call goes on from there.
PulledModel pull(const RepoRef& ref, const Settings& settings, const PullOptions& options,
                 const PullEvents& events);

// The same from the cache alone. Error(kUsage) that names `gem pull` when it is not (all) here.
PulledModel find_in_cache(const RepoRef& ref, const Settings& settings, const PullOptions& options = {});

// The models that the hub lists for a repository, one a line.
std::vector<std::string> list_models(const RepoRef& ref, const Settings& settings, const PullOptions& options,
                                     const PullEvents& events);

}  // namespace gem::hub
