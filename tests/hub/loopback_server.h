// A small HTTP server on loopback whose answers a test makes byte by byte, wrong ones too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gem::testing {

struct LoopbackRequest {
  std::string target;                         // path and query
  std::map<std::string, std::string> fields;  // names in lower case
  // "bytes=A-B": both; nothing where there is no range.
  std::optional<std::pair<std::size_t, std::size_t>> range() const;
};

struct LoopbackReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> fields = {};
  std::string body = {};
  std::optional<std::size_t> cut_after = {};    // bytes of the body, after which the connection is closed
  std::optional<std::size_t> said_length = {};  // Content-Length, where it is not the body's
  bool no_length = false;                       // the body ends with the connection
  std::function<bool()> hold_after_cut = {};    // instead of closing: silent until this is so
};

// Content, whole or the range that was asked for.
LoopbackReply serve_content(const LoopbackRequest& request, const std::string& content);

class LoopbackServer {
 public:
  using Handler = std::function<LoopbackReply(const LoopbackRequest&)>;
  explicit LoopbackServer(Handler handler);
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  std::string url() const;  // http://127.0.0.1:PORT
  std::vector<LoopbackRequest> requests() const;
  void forget_requests();

 private:
  void accept_all();
  void serve(int fd);

  Handler handler_;
  int listener_ = -1;
  unsigned port_ = 0;
  mutable std::mutex mutex_;
  std::vector<LoopbackRequest> requests_;
  std::vector<std::thread> threads_;
  std::set<int> open_;
  std::atomic<bool> closing_{false};
  std::thread accepting_;
};

}  // namespace gem::testing
