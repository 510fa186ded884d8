#include "engine/draft/find.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace gem {
namespace {

namespace fs = std::filesystem;

bool holds_assistant(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return name.find("assistant") != std::string::npos;
}

// GGUF files, and folders with a config.json.
bool can_be_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return fs::exists(path / "config.json", ignored);
  return path.extension() == ".gguf" && fs::is_regular_file(path, ignored);
}

std::vector<fs::path> candidates(const fs::path& model) {
  const fs::path folder = model.has_parent_path() ? model.parent_path() : fs::path(".");
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (holds_assistant(name) && can_be_checkpoint(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  const fs::path mtp = folder / ("mtp-" + model.filename().string());
  if (can_be_checkpoint(mtp)) found.insert(found.begin(), mtp);
  std::erase_if(found, [&](const fs::path& path) { return fs::equivalent(path, model, ignored); });
  return found;
}

}  // namespace

FoundAssistant find_assistant(const Model& target, const AdmissionOptions& options) {
  FoundAssistant result;
  fs::path model = fs::path(target.path()).lexically_normal();
  if (!model.has_filename()) model = model.parent_path();  // "folder/"
  for (const fs::path& path : candidates(model)) {
    try {
      result.assistant = Assistant::load(path.string(), target, options);
      result.why_none.clear();
      return result;
    } catch (const Error& e) {
      if (result.why_none.empty()) result.why_none = e.what();
    }
  }
  if (result.why_none.empty()) result.why_none = "no assistant lies beside the model";
  return result;
}

FoundAssistant open_assistant(const Model& target, const std::string& named, bool find,
                              const AdmissionOptions& options) {
  if (!named.empty()) return {Assistant::load(named, target, options), {}};
  if (!find) return {nullptr, "not wanted"};
  return find_assistant(target, options);
}

}  // namespace gem
