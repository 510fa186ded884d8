#include "hub/fake_hub.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace gem::testing {
namespace {

namespace fs = std::filesystem;

std::string hex(const unsigned char* bytes, std::size_t size) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    text.push_back(kDigits[bytes[i] >> 4]);
    text.push_back(kDigits[bytes[i] & 15]);
  }
  return text;
}

std::vector<std::string> files_below(const fs::path& root) {
  std::vector<std::string> found;
  if (!fs::exists(root)) return found;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (!entry.is_directory() || entry.is_symlink())
      found.push_back(fs::relative(entry.path().parent_path(), root) / entry.path().filename());
  for (std::string& path : found)
    if (path.starts_with("./")) path = path.substr(2);
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string some_bytes(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  std::uint32_t state = seed * 2654435761u + 1;
  for (char& c : bytes) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return bytes;
}

std::string sha256_of(const std::string& bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return hex(digest.data(), digest.size());
}

std::string git_blob_of(const std::string& bytes) {
  const std::string whole = "blob " + std::to_string(bytes.size()) + std::string(1, '\0') + bytes;
  std::array<unsigned char, SHA_DIGEST_LENGTH> digest{};
  ::SHA1(reinterpret_cast<const unsigned char*>(whole.data()), whole.size(), digest.data());
  return hex(digest.data(), digest.size());
}

HubTest::HubTest()
    : storage([this](const LoopbackRequest& r) { return storage_reply(r); }),
      server([this](const LoopbackRequest& r) { return hub_reply(r); }) {
  info = {{"id", "org/model"}, {"sha", commit}, {"siblings", nlohmann::ordered_json::array()}};
  settings.endpoint = server.url();
  settings.cache = folder.file("cache");
  options.retry = {
      .tries = 3, .first_wait = std::chrono::milliseconds(1), .longest_wait = std::chrono::milliseconds(4)};
  options.download = {.connections = 4, .smallest_range = 4096, .largest_range = 16384};
  events.note = [this](const std::string& text) { notes.push_back(text); };
  events.cancelled = [this] { return cancelled.load(); };
}

void HubTest::add_large(const std::string& path, const std::string& bytes) {
  content[path] = bytes;
  info["siblings"].push_back(
      {{"rfilename", path},
       {"size", bytes.size()},
       {"blobId", git_blob_of("pointer")},
       {"lfs", {{"sha256", sha256_of(bytes)}, {"size", bytes.size()}, {"pointerSize", 134}}}});
}

void HubTest::add_small(const std::string& path, const std::string& bytes) {
  content[path] = bytes;
  info["siblings"].push_back({{"rfilename", path}, {"size", bytes.size()}, {"blobId", git_blob_of(bytes)}});
}

LoopbackReply HubTest::hub_reply(const LoopbackRequest& request) {
  if (on_hub)
    if (auto reply = on_hub(request)) return *reply;
  LoopbackReply reply;
  if (request.target == "/api/models/org/model/revision/main?blobs=true") {
    reply.body = info.dump();
    return reply;
  }
  const std::string prefix = "/org/model/resolve/" + commit + "/";
  const auto found =
      request.target.starts_with(prefix) ? content.find(request.target.substr(prefix.size())) : content.end();
  if (found == content.end()) {
    reply.status = 404;
    return reply;
  }
  for (const auto& entry : info["siblings"]) {
    if (entry["rfilename"] != found->first || !entry.contains("lfs")) continue;
    reply.status = 302;
    reply.fields.emplace_back("Location", storage.url() + "/store/" + found->first + "?signature=secret");
    return reply;
  }
  return serve_content(request, found->second);
}

LoopbackReply HubTest::storage_reply(const LoopbackRequest& request) {
  if (on_storage)
    if (auto reply = on_storage(request)) return *reply;
  const std::string path = request.target.substr(7, request.target.find('?') - 7);
  const auto found = content.find(path);
  if (found == content.end()) return {.status = 404};
  return serve_content(request, found->second);
}

hub::PulledModel HubTest::pull(const std::string& text) {
  return hub::pull(hub::parse_repo_ref(text), settings, options, events);
}

std::string HubTest::pull_fails(const std::string& text) {
  try {
    pull(text);
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "the pull did not fail";
  return {};
}

hub::PulledModel HubTest::find(const std::string& text) {
  return hub::find_in_cache(hub::parse_repo_ref(text), settings);
}

std::string HubTest::find_fails(const std::string& text) {
  try {
    find(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  ADD_FAILURE() << "it was found";
  return {};
}

bool HubTest::noted(const std::string& part) const {
  return std::ranges::any_of(notes, [&](const std::string& n) { return n.find(part) != std::string::npos; });
}

std::vector<std::string> HubTest::tree() const {
  return files_below(repo());
}

std::vector<std::string> HubTest::outside() const {
  std::vector<std::string> found;
  for (const std::string& path : files_below(folder.file("")))
    if (!path.starts_with("cache/")) found.push_back(path);
  return found;
}

}  // namespace gem::testing
