#include "hub/loopback_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace gem::testing {
namespace {

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

LoopbackRequest parse(const std::string& head) {
  LoopbackRequest request;
  std::size_t at = head.find("\r\n");
  const std::string line = head.substr(0, at);
  const std::size_t first = line.find(' '), second = line.rfind(' ');
  request.target = line.substr(first + 1, second - first - 1);
  while (at != std::string::npos) {
    const std::size_t begin = at + 2, end = head.find("\r\n", begin);
    const std::string field = head.substr(begin, end == std::string::npos ? end : end - begin);
    if (const std::size_t colon = field.find(": "); colon != std::string::npos) {
      std::string name = field.substr(0, colon);
      for (char& c : name)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
      request.fields[name] = field.substr(colon + 2);
    }
    at = end;
  }
  return request;
}

}  // namespace

std::optional<std::pair<std::size_t, std::size_t>> LoopbackRequest::range() const {
  const auto found = fields.find("range");
  std::size_t first = 0, last = 0;
  if (found == fields.end() || std::sscanf(found->second.c_str(), "bytes=%zu-%zu", &first, &last) != 2)
    return std::nullopt;
  return std::pair(first, last);
}

LoopbackReply serve_content(const LoopbackRequest& request, const std::string& content) {
  LoopbackReply reply;
  const auto range = request.range();
  if (!range) {
    reply.body = content;
    return reply;
  }
  if (range->first >= content.size()) {
    reply.status = 416;
    return reply;
  }
  const std::size_t last = std::min(range->second, content.size() - 1);
  reply.status = 206;
  reply.body = content.substr(range->first, last - range->first + 1);
  reply.fields.emplace_back("Content-Range", "bytes " + std::to_string(range->first) + "-" +
                                                 std::to_string(last) + "/" + std::to_string(content.size()));
  return reply;
}

LoopbackServer::LoopbackServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("no loopback socket");
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { accept_all(); });
}

LoopbackServer::~LoopbackServer() {
  closing_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  accepting_.join();
  ::close(listener_);
  {
    const std::scoped_lock lock(mutex_);
    for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
  }
  for (std::thread& t : threads_) t.join();
}

std::string LoopbackServer::url() const {
  return "http://127.0.0.1:" + std::to_string(port_);
}

std::vector<LoopbackRequest> LoopbackServer::requests() const {
  const std::scoped_lock lock(mutex_);
  return requests_;
}

void LoopbackServer::forget_requests() {
  const std::scoped_lock lock(mutex_);
  requests_.clear();
}

void LoopbackServer::accept_all() {
  while (!closing_) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    const int at_once = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);
    const std::scoped_lock lock(mutex_);
    open_.insert(fd);
    threads_.emplace_back([this, fd] {
      serve(fd);
      const std::scoped_lock closing(mutex_);
      open_.erase(fd);
      ::close(fd);
    });
  }
}

void LoopbackServer::serve(int fd) {
  std::string in;
  while (!closing_) {
    std::size_t end = 0;
    while ((end = in.find("\r\n\r\n")) == std::string::npos) {
      char bytes[4096];
      const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
      if (n <= 0) return;
      in.append(bytes, static_cast<std::size_t>(n));
    }
    const LoopbackRequest request = parse(in.substr(0, end));
    in.erase(0, end + 4);
    {
      const std::scoped_lock lock(mutex_);
      requests_.push_back(request);
    }
    const LoopbackReply reply = handler_(request);
    std::string out = "HTTP/1.1 " + std::to_string(reply.status) + " -\r\n";
    for (const auto& [name, value] : reply.fields) out.append(name).append(": ").append(value).append("\r\n");
    if (!reply.no_length)
      out += "Content-Length: " + std::to_string(reply.said_length.value_or(reply.body.size())) + "\r\n";
    out += "\r\n";
    const std::size_t sent = std::min(reply.body.size(), reply.cut_after.value_or(reply.body.size()));
    if (!send_all(fd, out) || !send_all(fd, std::string_view(reply.body).substr(0, sent))) return;
    if (reply.hold_after_cut) {
      // Until the test has seen enough or the client is gone.
      while (!closing_ && !reply.hold_after_cut()) {
        pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
        char byte = 0;
        if (::poll(&entry, 1, 5) == 1 && ::recv(fd, &byte, 1, MSG_PEEK) <= 0) return;
      }
    }
    if (reply.cut_after || reply.no_length ||
        reply.said_length.value_or(reply.body.size()) > reply.body.size()) {
      ::shutdown(fd, SHUT_RDWR);
      return;
    }
  }
}

}  // namespace gem::testing
