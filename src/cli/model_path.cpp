#include "cli/model_path.h"

#include <filesystem>

#include "hub/names.h"
#include "hub/pull.h"
#include "hub/settings.h"

namespace gem::cli {

namespace fs = std::filesystem;

std::string resolve_model(const std::string& text) {
  std::error_code ignored;
  if (fs::exists(text, ignored)) return text;
  const auto ref = hub::repo_ref_of_model(text);
  return ref ? hub::find_in_cache(*ref, hub::settings_from()).main.string() : text;
}

std::string model_name_of(const std::string& path) {
  fs::path p = fs::path(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();  // "folder/"
  std::error_code ignored;
  if (!fs::is_directory(p, ignored)) return p.stem().string();
  const std::string name = p.filename().string();
  const std::string repository = p.parent_path().parent_path().filename().string();
  const bool cached = hub::is_hex(name, 40) && p.parent_path().filename() == "snapshots" &&
                      repository.starts_with("models--");
  return cached ? repository.substr(repository.rfind("--") + 2) : name;
}

}  // namespace gem::cli
