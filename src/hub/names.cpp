#include "hub/names.h"

#include <algorithm>

#include "base/error.h"

namespace gem::hub {
namespace {

constexpr std::size_t kLongestName = 96;        // the hub's own limit of a repository's name
constexpr std::size_t kLongestComponent = 255;  // of a file's name on Linux
constexpr std::size_t kLongestPath = 1024;

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The hub's rule: letters, digits, '-', '_', '.'; no '..' and no '--', which the cache's folders use as
// slash.
bool is_repo_name(std::string_view text) {
  const auto allowed = [](char c) { return is_alnum(c) || c == '-' || c == '_' || c == '.'; };
  return !text.empty() && text.size() <= kLongestName && std::ranges::all_of(text, allowed) &&
         text.find("..") == std::string_view::npos && text.find("--") == std::string_view::npos &&
         text.front() != '-' && text.front() != '.' && text.back() != '-' && text.back() != '.';
}

void strip(std::string_view& text, std::string_view prefix) {
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
}

// What is wrong with it; empty: nothing.
std::string read_ref(std::string_view text, RepoRef& ref) {
  if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    ref.pattern = text.substr(colon + 1);
    if (ref.pattern.empty()) return "nothing follows the ':'";
    text = text.substr(0, colon);
  }
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    ref.revision = text.substr(at + 1);
    if (!is_safe_path(ref.revision)) return "the revision after '@' is no branch, tag or commit";
    text = text.substr(0, at);
  }
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return "there is no '/'";
  ref.org = text.substr(0, slash);
  ref.name = text.substr(slash + 1);
  if (ref.name.find('/') != std::string::npos)
    return "there is more than one '/'; a file of the repository is named after ':'";
  if (!is_repo_name(ref.org) || !is_repo_name(ref.name))
    return "names are made of letters, digits, '-', '_' and '.', up to 96 of them";
  return {};
}

}  // namespace

std::string RepoRef::text() const {
  return id() + (revision == "main" ? "" : "@" + revision) + (pattern.empty() ? "" : ":" + pattern);
}

RepoRef parse_repo_ref(std::string_view text) {
  std::string_view rest = text;
  strip(rest, "https://");
  strip(rest, "huggingface.co/");
  strip(rest, "hf.co/");
  RepoRef ref;
  const std::string wrong = read_ref(rest, ref);
  if (!wrong.empty())
    fail(ErrorCode::kUsage, "{:?} is not ORG/REPO[@REVISION][:PATTERN]: {}", printable(text), wrong);
  return ref;
}

std::optional<RepoRef> repo_ref_of_model(const std::string& text) {
  std::string_view rest = text;
  strip(rest, "https://");
  strip(rest, "huggingface.co/");
  strip(rest, "hf.co/");
  RepoRef ref;
  if (!read_ref(rest, ref).empty()) return std::nullopt;
  const std::string name = lower_case(ref.name);
  for (const std::string_view end : {".gguf", ".safetensors", ".json", ".bin"})
    if (name.ends_with(end)) return std::nullopt;
  return ref;
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kLongestPath) return false;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto c = static_cast<unsigned char>(path[i]);
    if (c < 0x20 || c == 0x7F || c == '\\') return false;
    // U+0080 to U+009F: what some terminals take for the start of a command.
    if (c == 0xC2 && i + 1 < path.size() && static_cast<unsigned char>(path[i + 1]) < 0xA0) return false;
  }
  return std::ranges::all_of(split_path(path), [](std::string_view part) {
    return !part.empty() && part != "." && part != ".." && part.size() <= kLongestComponent;
  });
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::vector<std::string_view> split_path(std::string_view path) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t slash = path.find('/');
    parts.push_back(path.substr(0, slash));
    if (slash == std::string_view::npos) return parts;
    path.remove_prefix(slash + 1);
  }
}

std::string_view file_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string_view folder_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

std::string join_path(std::string_view folder, std::string_view name) {
  return folder.empty() ? std::string(name) : std::string(folder) + "/" + std::string(name);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out(text.substr(0, limit));
  for (char& c : out)
    if (c < 0x20 || c == 0x7F) c = '?';  // bytes above ASCII are negative where char is signed
  for (char& c : out)
    if (static_cast<unsigned char>(c) > 0x7E) c = '?';
  if (text.size() > limit) out += "...";
  return out;
}

}  // namespace gem::hub
