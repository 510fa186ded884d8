// A scripted application behind a real server, and a client made of a raw socket.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/exchange.h"
#include "server/http/field_name.h"
#include "server/http/http_server.h"

namespace gem::server::http_test {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Nothing here waits longer; a test that gets there has failed.
inline constexpr milliseconds kPatience{20'000};

// A value that threads change and a test waits for.
class Latch {
 public:
  void add(int n = 1) {
    const std::lock_guard lock(mutex_);
    count_ += n;
    changed_.notify_all();
  }
  int count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  bool wait_for(int n, milliseconds limit = kPatience) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return count_ >= n; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int count_ = 0;
};

template <typename Condition>
bool eventually(Condition condition, milliseconds limit = kPatience) {
  const auto end = steady_clock::now() + limit;
  while (!condition()) {
    if (steady_clock::now() >= end) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

// What a test holds of a reply that comes in time: it feeds it, and sees it die.
struct Feed {
  std::mutex mutex;
  std::function<void()> wake;
  std::string text;
  bool done = false;
  bool endless = false;  // every pull gives a piece and asks for the next
  bool fails = false;    // pull throws
  std::size_t pulled = 0;
  std::optional<HttpResponse> response;
  Latch attached, destroyed, pulls, heartbeats;

  void ring() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex);
      call = wake;
    }
    if (call) call();
  }
  void push(std::string_view piece) {
    {
      const std::lock_guard lock(mutex);
      text += piece;
    }
    ring();
  }
  void finish() {
    {
      const std::lock_guard lock(mutex);
      done = true;
    }
    ring();
  }
  void answer(HttpResponse value) {
    {
      const std::lock_guard lock(mutex);
      response = std::move(value);
    }
    ring();
  }
};

class FeedSource final : public EventSource {
 public:
  explicit FeedSource(std::shared_ptr<Feed> feed) : feed_(std::move(feed)) {}
  ~FeedSource() override { feed_->destroyed.add(); }
  void on_ready(std::function<void()> wake) override {
    {
      const std::lock_guard lock(feed_->mutex);
      feed_->wake = std::move(wake);
    }
    feed_->attached.add();
  }
  State pull(std::string& out) override {
    feed_->pulls.add();
    std::function<void()> again;
    State state = State::kMore;
    {
      const std::lock_guard lock(feed_->mutex);
      if (feed_->fails) throw std::runtime_error("the source is broken");
      if (feed_->endless) {
        out.append(64 << 10, 'x');
        again = feed_->wake;
      }
      out += feed_->text;
      feed_->text.clear();
      feed_->pulled += out.size();
      if (feed_->done) state = State::kDone;
    }
    if (again) again();
    return state;
  }
  std::string heartbeat() const override {
    feed_->heartbeats.add();
    return ":\n\n";
  }

 private:
  std::shared_ptr<Feed> feed_;
};

class FeedPending final : public PendingReply {
 public:
  explicit FeedPending(std::shared_ptr<Feed> feed) : feed_(std::move(feed)) {}
  ~FeedPending() override { feed_->destroyed.add(); }
  void on_ready(std::function<void()> wake) override {
    {
      const std::lock_guard lock(feed_->mutex);
      feed_->wake = std::move(wake);
    }
    feed_->attached.add();
  }
  std::optional<HttpResponse> poll() override {
    const std::lock_guard lock(feed_->mutex);
    if (feed_->fails) throw std::runtime_error("the reply is broken");
    return feed_->response;
  }

 private:
  std::shared_ptr<Feed> feed_;
};

inline Reply event_reply(const std::shared_ptr<Feed>& feed) {
  EventReply reply;
  reply.head.content_type = "text/event-stream";
  reply.source = std::make_unique<FeedSource>(feed);
  return reply;
}

inline Reply pending_reply(const std::shared_ptr<Feed>& feed) {
  return std::unique_ptr<PendingReply>(std::make_unique<FeedPending>(feed));
}

// Routes by path: a test gives each its function. Unknown paths are refused before the body is read.
class FakeApp final : public HttpApp {
 public:
  using Handler = std::function<Reply(HttpRequest)>;

  FakeApp() {
    route("/echo", [](HttpRequest request) {
      HttpResponse response;
      response.content_type = "text/plain";
      response.body = request.method + " " + request.body;
      return Reply(std::move(response));
    });
  }

  void route(const std::string& path, Handler handler) { routes_[path] = std::move(handler); }

  std::optional<HttpResponse> admit(const HttpRequest& head) override {
    if (routes_.contains(head.path)) return std::nullopt;
    HttpResponse response;
    response.status = 404;
    response.body = "no such path";
    return response;
  }
  Reply handle(HttpRequest request) override {
    handled.add();
    return routes_.at(request.path)(std::move(request));
  }
  HttpResponse refuse(const HttpRequest* head, int status, const std::string& message) override {
    HttpResponse response;
    response.status = status;
    response.body = (head != nullptr ? head->path : "?") + ": " + message;
    return response;
  }
  void decorate(const HttpRequest&, HttpResponse& response) override {
    response.headers.emplace_back("Server", "fake");
  }
  void finished(const ExchangeRecord& record) override {
    {
      const std::lock_guard lock(mutex_);
      records_.push_back(record);
    }
    records_count.add();
  }

  // The records so far, once there are `n`; at least that many, empty ones where they did not come.
  std::vector<ExchangeRecord> records(std::size_t n) {
    EXPECT_TRUE(records_count.wait_for(static_cast<int>(n)));
    const std::lock_guard lock(mutex_);
    std::vector<ExchangeRecord> result = records_;
    result.resize(std::max(n, result.size()));
    return result;
  }

  Latch handled, records_count;

 private:
  std::map<std::string, Handler> routes_;
  std::mutex mutex_;
  std::vector<ExchangeRecord> records_;
};

struct Received {
  int status = 0;
  Headers headers;
  std::string body;
  bool whole = false;  // all of the body came

  std::string header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (same_field_name(key, name)) return value;
    }
    return "";
  }
};

class Client {
 public:
  Client() = default;
  explicit Client(std::uint16_t port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) close();
  }
  explicit Client(const std::string& unix_path) {
    fd_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, unix_path.data(), unix_path.size());
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) close();
  }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}
  Client& operator=(Client&& other) noexcept {
    close();
    fd_ = std::exchange(other.fd_, -1);
    buffer_ = std::move(other.buffer_);
    return *this;
  }
  ~Client() { close(); }

  bool connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  // False when the other end does not take it all (it has closed).
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void reset() {  // RST instead of FIN
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }

  // Reads until the text has come; false at the end of the connection.
  bool read_until(std::string_view text) {
    while (buffer_.find(text) == std::string::npos) {
      if (!fill()) return false;
    }
    return true;
  }
  // Everything until the end of the connection; nothing when it does not end.
  std::optional<std::string> read_all() {
    while (fill()) {
    }
    return ended_ ? std::optional(std::exchange(buffer_, {})) : std::nullopt;
  }
  bool at_end() {
    while (buffer_.empty() && fill()) {
    }
    return buffer_.empty() && ended_;
  }
  // Whether there is nothing to read for so long.
  bool silent_for(milliseconds time) {
    pollfd entry{fd_, POLLIN, 0};
    return buffer_.empty() && ::poll(&entry, 1, static_cast<int>(time.count())) == 0;
  }
  std::string take_buffer() { return std::exchange(buffer_, {}); }

  // The head of the next response alone.
  Received read_head() {
    Received result;
    if (!read_until("\r\n\r\n")) return result;
    const auto end = buffer_.find("\r\n\r\n");
    std::string head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    auto line = head.find("\r\n");
    if (head.rfind("HTTP/1.1 ", 0) == 0) result.status = std::atoi(head.c_str() + 9);
    for (std::size_t at = line + 2; at < head.size(); at = line + 2) {
      line = head.find("\r\n", at);
      const std::string field = head.substr(at, line - at);
      const auto colon = field.find(": ");
      result.headers.emplace_back(field.substr(0, colon), field.substr(colon + 2));
    }
    return result;
  }
  // The next response. `to_head`: it answers a HEAD request.
  Received receive(bool to_head = false) {
    Received result = read_head();
    if (result.status == 0) return result;
    if (to_head || result.status == 204 || result.status == 304) {
      result.whole = true;
    } else if (result.header("Transfer-Encoding") == "chunked") {
      while (const auto chunk = read_chunk()) {
        result.body += *chunk;
        if (chunk->empty()) {
          result.whole = true;
          break;
        }
      }
    } else if (const std::string length = result.header("Content-Length"); !length.empty()) {
      const auto bytes = static_cast<std::size_t>(std::stoull(length));
      while (buffer_.size() < bytes && fill()) {
      }
      result.whole = buffer_.size() >= bytes;
      result.body = buffer_.substr(0, bytes);
      buffer_.erase(0, result.body.size());
    } else {
      while (fill()) {
      }
      result.body = std::exchange(buffer_, {});
      result.whole = ended_;
    }
    return result;
  }
  // The next chunk of a chunked body; empty: the last one. Nothing at the end of the connection.
  std::optional<std::string> read_chunk() {
    if (!read_until("\r\n")) return std::nullopt;
    const auto line = buffer_.find("\r\n");
    const auto size = static_cast<std::size_t>(std::stoull(buffer_.substr(0, line), nullptr, 16));
    while (buffer_.size() < line + size + 4) {
      if (!fill()) return std::nullopt;
    }
    std::string chunk = buffer_.substr(line + 2, size);
    EXPECT_EQ(buffer_.substr(line + 2 + size, 2), "\r\n");
    buffer_.erase(0, line + size + 4);
    return chunk;
  }
  Received get(const std::string& path) {
    send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return receive();
  }

 private:
  bool fill() {
    pollfd entry{fd_, POLLIN, 0};
    int ready = 0;
    do {
      ready = ::poll(&entry, 1, static_cast<int>(kPatience.count()));
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) {
      ADD_FAILURE() << "nothing came";
      return false;
    }
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    buffer_.append(bytes, static_cast<std::size_t>(n));
    return true;
  }

  int fd_ = -1;
  std::string buffer_;
  bool ended_ = false;
};

inline HttpOptions quick_options() {
  HttpOptions options;
  options.port = 0;
  return options;
}

// An application and its server, started.
class Running {
 public:
  explicit Running(HttpOptions options = quick_options()) : server(app, std::move(options)) {}
  Client client(int receive_buffer = 0) { return Client(server.port(), receive_buffer); }
  Running& start() {
    server.start();
    return *this;
  }

  FakeApp app;
  HttpServer server;
};

}  // namespace gem::server::http_test
