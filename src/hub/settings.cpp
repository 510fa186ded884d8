#include "hub/settings.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "hub/names.h"

namespace gem::hub {
namespace {

namespace fs = std::filesystem;

// As the Hugging Face tools read them.
bool is_true(const std::optional<std::string>& value) {
  if (!value) return false;
  const std::string text = lower_case(*value);
  return text == "1" || text == "on" || text == "yes" || text == "true";
}

std::string trimmed(const std::string& text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  // Set, but empty, is as good as not set.
  std::optional<std::string> value(const char* name) const {
    auto text = environment_(name);
    return text && !trimmed(*text).empty() ? std::optional(trimmed(*text)) : std::nullopt;
  }
  std::optional<fs::path> path(const char* name) const {
    auto text = value(name);
    if (!text) return std::nullopt;
    if (*text == "~" || text->starts_with("~/")) return home() / fs::path(text->substr(1)).relative_path();
    return fs::path(*text);
  }
  fs::path home() const {
    if (const auto text = value("HOME")) return *text;
    fail(ErrorCode::kUsage, "there is no HOME to put the cache into: set HF_HOME or HF_HUB_CACHE");
  }
  fs::path hf_home() const {
    if (const auto folder = path("HF_HOME")) return *folder;
    if (const auto folder = path("XDG_CACHE_HOME")) return *folder / "huggingface";
    return home() / ".cache" / "huggingface";
  }

 private:
  const Environment& environment_;
};

fs::path cache_folder(const Reader& reader) {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const auto folder = reader.path(name)) return *folder;
  return reader.hf_home() / "hub";
}

// A token becomes a header's line: what could end the line or be read as something else is refused.
std::string checked_token(const std::string& text, const std::string& source) {
  std::string token = trimmed(text);
  if (!std::ranges::all_of(token, [](char c) { return c > 0x20 && c < 0x7F; }))
    fail(ErrorCode::kUsage, "{} holds characters that no token has", source);
  return token;
}

std::string token(const Reader& reader) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
    if (const auto text = reader.value(name)) return checked_token(*text, name);
  if (is_true(reader.value("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return {};
  const fs::path path = reader.path("HF_TOKEN_PATH").value_or(reader.hf_home() / "token");
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;
  if (!file || !fs::is_regular_file(path, ignored)) return {};
  std::array<char, 4096> text{};  // longer than any token
  file.read(text.data(), text.size());
  return checked_token(std::string(text.data(), static_cast<std::size_t>(file.gcount())), path.string());
}

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Settings settings_from(const Environment& environment) {
  const Reader reader(environment);
  Settings s;
  if (const auto endpoint = reader.value("HF_ENDPOINT")) s.endpoint = *endpoint;
  while (s.endpoint.ends_with('/')) s.endpoint.pop_back();
  s.token = token(reader);
  s.cache = cache_folder(reader);
  s.offline = is_true(reader.value("HF_HUB_OFFLINE")) || is_true(reader.value("TRANSFORMERS_OFFLINE"));
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}) {
    if (!s.certificates.empty()) break;
    s.certificates = reader.value(name).value_or("");
  }
  return s;
}

}  // namespace gem::hub
