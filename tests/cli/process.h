// The program running beside the test, and a client that speaks to it.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cli/command.h"

extern char** environ;

namespace gem::testing {

using namespace std::chrono_literals;

// Nothing here waits longer; a test that gets there has failed.
inline constexpr std::chrono::seconds kPatience{60};

// Looks until it is so.
inline bool eventually(const std::function<bool()>& is_so, std::chrono::milliseconds limit = kPatience) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

class Process {
 public:
  // gem ARGUMENTS. Output and errors go to files; `variables` replace those of the environment.
  explicit Process(std::vector<std::string> arguments,
                   const std::map<std::string, std::string>& variables = {}, const std::string& input = "") {
    write_text(folder_ / "in", input);
    arguments.insert(arguments.begin(), GEM_PROGRAM);
    std::vector<char*> argv, envp;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    std::vector<std::string> texts;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (!variables.contains(text.substr(0, text.find('=')))) texts.push_back(text);
    }
    for (const auto& [key, value] : variables) texts.push_back(key + "=" + value);
    for (std::string& t : texts) envp.push_back(t.data());
    envp.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    const auto redirect = [&](int fd, const char* name, int flags) {
      ::posix_spawn_file_actions_addopen(&actions, fd, (folder_ / name).c_str(), flags, 0600);
    };
    redirect(0, "in", O_RDONLY);
    redirect(1, "out", O_WRONLY | O_CREAT | O_APPEND);
    redirect(2, "err", O_WRONLY | O_CREAT | O_APPEND);
    EXPECT_EQ(::posix_spawn(&pid_, GEM_PROGRAM, &actions, nullptr, argv.data(), envp.data()), 0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (status_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }
  bool running() {
    if (status_) return false;
    int raw = 0;
    if (::waitpid(pid_, &raw, WNOHANG) != pid_) return true;
    status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
    return false;
  }
  // The exit status, or 128 + the signal; -1 when it does not end.
  int wait() {
    return eventually([&] { return !running(); }) ? *status_ : -1;
  }
  std::string out() const { return read_text(folder_ / "out"); }
  std::string err() const { return read_text(folder_ / "err"); }
  pid_t pid() const { return pid_; }

 private:
  Folder folder_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

struct HttpReply {
  int status = 0;
  std::string head, body;  // the body without its chunks
};

// The text that a stream of chat completions says.
inline std::string streamed_content(const std::string& stream) {
  std::string text;
  for (std::size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos; ++at) {
    const auto event = nlohmann::json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6));
    if (event["choices"].empty()) continue;
    const auto& delta = event["choices"][0]["delta"];
    if (delta.contains("content") && delta["content"].is_string()) text += delta["content"];
  }
  return text;
}

// One connection to 127.0.0.1. What does not come is an empty reply, never a hanging test.
class Client {
 public:
  explicit Client(std::uint16_t port) : port_(port), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void send(const std::string& method, const std::string& target, const std::string& body = "",
            const std::string& headers = "") {
    std::string text = method + " " + target + " HTTP/1.1\r\n";
    if (headers.find("Host:") == std::string::npos)
      text += "Host: 127.0.0.1:" + std::to_string(port_) + "\r\n";
    text += headers;
    if (!body.empty())
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    text += "\r\n" + body;
    std::string_view rest = text;
    while (!rest.empty()) {
      const ssize_t n = ::send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  // Reads until `text` has come; false when the connection ends first.
  bool read_until(std::string_view text) {
    while (buffer_.find(text) == std::string::npos) {
      if (!fill()) return false;
    }
    return true;
  }
  HttpReply receive(bool with_body = true) {
    HttpReply reply;
    if (!read_until("\r\n\r\n")) return reply;
    const std::size_t end = buffer_.find("\r\n\r\n") + 4;
    reply.head = buffer_.substr(0, end);
    buffer_.erase(0, end);
    reply.status = std::atoi(reply.head.c_str() + std::string_view("HTTP/1.1 ").size());
    if (!with_body) return reply;
    if (reply.head.find("chunked") != std::string::npos) {
      while (true) {
        if (!read_until("\r\n")) return reply;
        const std::size_t line = buffer_.find("\r\n");
        const std::size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
        while (buffer_.size() < line + 2 + size + 2) {
          if (!fill()) return reply;
        }
        reply.body += buffer_.substr(line + 2, size);
        buffer_.erase(0, line + 2 + size + 2);
        if (size == 0) return reply;
      }
    }
    const std::size_t length = reply.head.find("Content-Length: ");
    const std::size_t size = length == std::string::npos ? 0 : std::stoul(reply.head.substr(length + 16));
    while (buffer_.size() < size) {
      if (!fill()) return reply;
    }
    reply.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return reply;
  }
  HttpReply call(const std::string& method, const std::string& target, const std::string& body = "",
                 const std::string& headers = "") {
    send(method, target, body, headers);
    return receive(method != "HEAD");
  }

 private:
  bool fill() {
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) != 1) return false;
    char bytes[4096];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    buffer_.append(bytes, static_cast<std::size_t>(n));
    return true;
  }

  std::uint16_t port_;
  int fd_;
  bool connected_ = false;
  std::string buffer_;
};

}  // namespace gem::testing
