// The names that a user, a hub and a cache give to things, checked before they become parts of addresses and
// paths.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gem::hub {

// ORG/REPO[@REV][:PATTERN]
struct RepoRef {
  std::string org, name;
  std::string revision = "main";  // branch, tag, refs/pr/N or commit
  std::string pattern;            // which of the repository's models; empty: the best one

  std::string id() const { return org + "/" + name; }
  std::string text() const;  // as the user would write it
};

// Error(kUsage) that says what is wrong. hf.co/, huggingface.co/ and https:// before it are taken off.
RepoRef parse_repo_ref(std::string_view text);

// Whether a text given for a model is meant as a repository rather than a file: it reads as one and does not
// end like a checkpoint's file.
std::optional<RepoRef> repo_ref_of_model(const std::string& text);

// A file of a repository: components between slashes, none of them empty, "." or "..", without control
// characters, backslashes or leading slash, short enough for a file system. So it stays inside the folder
// that it is put into.
bool is_safe_path(std::string_view path);
bool is_hex(std::string_view text, std::size_t digits);  // lower case

std::vector<std::string_view> split_path(std::string_view path);
std::string_view file_name(std::string_view path);    // after the last slash
std::string_view folder_name(std::string_view path);  // before it; empty where there is none
std::string join_path(std::string_view folder, std::string_view name);
std::string lower_case(std::string_view text);  // ASCII letters

// Text from elsewhere, fit for a terminal: control characters and bytes above ASCII become '?'; cut at
// `limit`.
std::string printable(std::string_view text, std::size_t limit = 200);

}  // namespace gem::hub
