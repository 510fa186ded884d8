// What a hub says: the description of a repository, a list of shards, names. Whatever it is, it is read or
// refused with gem::Error, and what was read stays inside a folder.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "hub/repository.h"
#include "hub/selection.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gem::hub;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto stays_inside = [](std::string_view path) {
    return !path.empty() && path.front() != '/' &&
           ("/" + std::string(path) + "/").find("/../") == std::string::npos;
  };
  try {
    const RepoInfo info = parse_repo_info(text);
    std::vector<ListedFile> files;
    for (const RepoFile& file : info.files) {
      if (!stays_inside(file.path)) std::abort();
      files.push_back({file.path, file.size});
    }
    describe_models(files);
    const Selection s =
        select_files(files, {.pattern = "", .repository = "org/model"},
                     [](const std::string&) { return std::string(R"({"weight_map": {"a": "b"}})"); });
    for (const std::string& file : s.files)
      if (!stays_inside(file)) std::abort();
  } catch (const gem::Error&) {
  }
  try {
    for (const std::string& shard : parse_shard_index(std::string(text)))
      if (!stays_inside(shard) || shard.find('/') != std::string::npos) std::abort();
  } catch (const gem::Error&) {
  }
  try {
    const RepoRef ref = parse_repo_ref(text);
    if (!stays_inside(ref.id()) || !stays_inside(ref.revision)) std::abort();
  } catch (const gem::Error&) {
  }
  return 0;
}
