// Where the hub and the cache are, as the environment says: the variables of the Hugging Face tools, so that
// both use one cache and one token.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace gem::hub {

struct Settings {
  std::string endpoint = "https://huggingface.co";  // no slash at its end
  std::string token;                                // empty: none
  std::filesystem::path cache;                      // the folder of models--ORG--REPO folders
  bool offline = false;
  std::string certificates;  // file of trusted authorities; empty: the system's
};

// A variable's value; nothing where it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> process_environment(const char* name);

// HF_ENDPOINT; HF_TOKEN, HUGGING_FACE_HUB_TOKEN or the file HF_TOKEN_PATH, HF_HOME/token
// (HF_HUB_DISABLE_IMPLICIT_TOKEN leaves the file alone); HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub; HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE;
// SSL_CERT_FILE, CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE. Error(kUsage) names the variable that cannot be used.
Settings settings_from(const Environment& environment = process_environment);

}  // namespace gem::hub
