// What -m and its like may name: a file, a folder, or a repository that `gem pull` has put into the cache.
#pragma once

#include <string>

namespace gem::cli {

// The path to open. A text that is no path and reads as ORG/REPO[@REV][:PATTERN] is looked up in the cache,
// without a network: Error(kUsage) that names `gem pull` where it is not there. Any other text is returned as
// it is.
std::string resolve_model(const std::string& text);

// A name for the model at a path: the file's without its ending, the folder's, and for a folder of the cache
// the repository's.
std::string model_name_of(const std::string& path);

}  // namespace gem::cli
