// Which files of a repository make up the model that is meant: by their names alone, the same for a hub's
// listing and a cache's folder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gem::hub {

struct ListedFile {
  std::string path;  // is_safe_path
  std::optional<std::uint64_t> size;
};

struct SelectionOptions {
  std::string pattern;  // empty: the best; else a file, a storage type (Q4_K_M), a glob or a part of a name
  bool assistant = true, mmproj = true;
  std::string repository;  // "ORG/REPO", for messages
};

struct Selection {
  // What to open: a GGUF file (of a split set the first), or the folder of config.json ("" at the root).
  std::string main;
  bool folder = false;
  std::vector<std::string> files;  // all that the model needs, without the two below
  std::string assistant, mmproj;   // GGUF files beside it; empty: none
};

// The text of a small file of the repository; for the list of shards.
using SmallFile = std::function<std::string(const std::string& path)>;

// Error(kUsage) with a list when nothing matches, or several do and none is better; Error(kFailed) when parts
// of a split set or shards are not there.
Selection select_files(const std::vector<ListedFile>& files, const SelectionOptions& options,
                       const SmallFile& read);

// One line a model: its name and size, and whether it is a main model, an assistant or an image projector.
std::vector<std::string> describe_models(const std::vector<ListedFile>& files);

// The shards that a model.safetensors.index.json names, each a plain name, sorted. Error(kFailed).
std::vector<std::string> parse_shard_index(const std::string& text);

}  // namespace gem::hub
