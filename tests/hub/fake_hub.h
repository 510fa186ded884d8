// A hub on loopback with one repository, its large files on a second origin as a hub's storage is, and a
// folder for the cache.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/temporary_folder.h"
#include "hub/loopback_server.h"
#include "hub/pull.h"

namespace gem::testing {

// Bytes that look like nothing in particular; another seed, other bytes.
std::string some_bytes(std::size_t size, unsigned seed = 1);
std::string sha256_of(const std::string& bytes);
std::string git_blob_of(const std::string& bytes);

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

class HubTest : public ::testing::Test {
 protected:
  HubTest();

  void add_large(const std::string& path, const std::string& bytes);  // by SHA-256, on the storage
  void add_small(const std::string& path, const std::string& bytes);  // by git's id, on the hub

  hub::PulledModel pull(const std::string& text = "org/model");
  // The message of the failure.
  std::string pull_fails(const std::string& text = "org/model");
  hub::PulledModel find(const std::string& text = "org/model");
  std::string find_fails(const std::string& text = "org/model");
  bool noted(const std::string& part) const;

  std::filesystem::path repo() const { return settings.cache / "models--org--model"; }
  std::filesystem::path blob(const std::string& bytes) const { return repo() / "blobs" / sha256_of(bytes); }
  std::filesystem::path incomplete(const std::string& bytes) const { return blob(bytes) += ".incomplete"; }
  // Files below the repository's folder, as relative paths.
  std::vector<std::string> tree() const;
  // Below the folder that holds the cache: what the cache is not to touch.
  std::vector<std::string> outside() const;

  LoopbackReply hub_reply(const LoopbackRequest& request);
  LoopbackReply storage_reply(const LoopbackRequest& request);

  TemporaryFolder folder;
  std::string commit = kCommit;
  std::map<std::string, std::string> content;
  nlohmann::ordered_json info;  // what the hub says of the repository
  // Answers that replace the usual ones; set before a request is made.
  std::function<std::optional<LoopbackReply>(const LoopbackRequest&)> on_hub, on_storage;
  LoopbackServer storage;
  LoopbackServer server;

  hub::Settings settings;
  hub::PullOptions options;
  hub::PullEvents events;
  std::vector<std::string> notes;
  std::atomic<bool> cancelled{false};
};

}  // namespace gem::testing
