// Where the reference data is: GEM_GOLDEN, else ../shared/golden beside the project, else the compact part in
// tests/data. Tests skip with a message where a file is in none of them.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace gem::testing {

inline std::optional<std::string> golden_file(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (const char* root = std::getenv("GEM_GOLDEN")) {
    const fs::path path = fs::path(root) / name;
    if (fs::exists(path, ignored)) return path.string();
  }
  for (const char* root : {"/../shared/golden/", "/tests/data/golden/"}) {
    const fs::path path = std::string(GEM_SOURCE_DIR) + root + name;
    if (fs::exists(path, ignored)) return path.string();
  }
  return std::nullopt;
}

// A stored variant of models/dense-a: a GGUF file, or the folder of a Hugging Face or MLX checkpoint.
inline std::optional<std::string> golden_model(const std::string& type) {
  if (const auto file = golden_file("models/dense-a/" + type + ".gguf")) return file;
  const std::string folder = type == "bf16" ? "models/dense-a/" : "models/dense-a/" + type + "/";
  const auto tensors = golden_file(folder + "model.safetensors");
  if (!tensors) return std::nullopt;
  return tensors->substr(0, tensors->rfind('/'));
}

}  // namespace gem::testing

// Skips the running test when the golden file is not at hand.
#define GEM_GOLDEN_OR_SKIP(variable, name)                                      \
  const auto variable##_found = ::gem::testing::golden_file(name);              \
  if (!variable##_found) GTEST_SKIP() << "golden data not at hand: " << (name); \
  const std::string& variable = *variable##_found
