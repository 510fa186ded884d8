#include "server/http/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>

#include "base/error.h"

namespace gem::server {
namespace {

constexpr int kBacklog = 1024;  // the kernel cuts it to its own limit

std::string reason(int error) {
  return std::generic_category().message(error);
}

FileDescriptor open_socket(int family) {
  FileDescriptor fd(::socket(family, SOCK_STREAM, 0));
  if (fd) ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
  return fd;
}

bool is_socket_path(const std::string& host) {
  return host.size() > 5 && host.ends_with(".sock");
}

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    fail(ErrorCode::kFailed, "cannot listen on {}: a Unix socket's path has at most {} bytes", path,
         sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// The file of a server that is gone may be replaced; that of a living one, or another file, may not.
void remove_stale_socket(const std::string& path, const sockaddr_un& address) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;
  if (!S_ISSOCK(status.st_mode)) {
    fail(ErrorCode::kFailed, "cannot listen on {}: a file of that name exists and is not a socket", path);
  }
  const FileDescriptor probe = open_socket(AF_UNIX);
  if (!probe) fail(ErrorCode::kFailed, "cannot listen on {}: {}", path, reason(errno));
  ::fcntl(probe.get(), F_SETFL, O_NONBLOCK);  // a listener with a full backlog must not hold us up
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno != ECONNREFUSED) {
    fail(ErrorCode::kFailed, "cannot listen on {}: another process listens there", path);
  }
  ::unlink(path.c_str());
}

Listeners listen_unix(const std::string& path) {
  const sockaddr_un address = unix_address(path);
  remove_stale_socket(path, address);
  ListeningSocket socket{open_socket(AF_UNIX), AF_UNIX};
  if (!socket.fd ||
      ::bind(socket.fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.fd.get(), kBacklog) != 0) {
    fail(ErrorCode::kFailed, "cannot listen on {}: {}", path, reason(errno));
  }
  Listeners result;
  result.sockets.push_back(std::move(socket));
  result.address = path;
  return result;
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// "127.0.0.1:80" or "[::1]:80"
std::string endpoint_name(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), ntohs(v6.sin6_port));
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  return fmt::format("{}:{}", text.data(), ntohs(v4.sin_port));
}

// One address. On failure nothing, and `error` says why.
std::optional<ListeningSocket> listen_tcp(const addrinfo& info, int& error) {
  ListeningSocket socket{open_socket(info.ai_family), info.ai_family};
  if (socket.fd) {
    // A port whose last server's connections still linger is free for a new server.
    const int on = 1;
    ::setsockopt(socket.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket.fd.get(), info.ai_addr, info.ai_addrlen) == 0 &&
        ::listen(socket.fd.get(), kBacklog) == 0) {
      return socket;
    }
  }
  error = errno;
  return std::nullopt;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (status != 0) {
    fail(ErrorCode::kFailed, "cannot listen on {}: {}", host, ::gai_strerror(status));
  }
  return {list, ::freeaddrinfo};
}

Listeners listen_localhost(std::uint16_t port) {
  Listeners result = listen_on("127.0.0.1", port);
  try {
    Listeners v6 = listen_on("::1", result.port);
    for (auto& socket : v6.sockets) result.sockets.push_back(std::move(socket));
  } catch (const Error&) {
    // No IPv6 here, or the port is taken there: IPv4 is enough.
  }
  return result;
}

}  // namespace

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Listeners listen_on(const std::string& host, std::uint16_t port) {
  if (is_socket_path(host)) return listen_unix(host);
  if (host == "localhost") return listen_localhost(port);

  const AddressList list = resolve(host, port);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    auto socket = listen_tcp(*info, error);
    if (!socket) continue;
    Listeners result;
    result.port = bound_port(socket->fd.get());
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    ::getsockname(socket->fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    result.address = "http://" + endpoint_name(address);
    result.sockets.push_back(std::move(*socket));
    return result;
  }
  fail(ErrorCode::kFailed, "cannot listen on {} port {}: {}", host, port, reason(error));
}

std::string peer_name(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "gone";
  return address.ss_family == AF_UNIX ? "unix" : endpoint_name(address);
}

SocketFile::SocketFile(std::string path) : path_(std::move(path)) {
  struct stat status {};
  if (::lstat(path_.c_str(), &status) != 0) path_.clear();
  device_ = static_cast<std::uint64_t>(status.st_dev);
  inode_ = static_cast<std::uint64_t>(status.st_ino);
}

SocketFile::SocketFile(SocketFile&& other) noexcept
    : path_(std::exchange(other.path_, {})), device_(other.device_), inode_(other.inode_) {}

SocketFile& SocketFile::operator=(SocketFile&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::exchange(other.path_, {});
    device_ = other.device_;
    inode_ = other.inode_;
  }
  return *this;
}

void SocketFile::remove() {
  const std::string path = std::exchange(path_, {});
  struct stat status {};
  if (path.empty() || ::lstat(path.c_str(), &status) != 0) return;
  if (static_cast<std::uint64_t>(status.st_dev) == device_ &&
      static_cast<std::uint64_t>(status.st_ino) == inode_) {
    ::unlink(path.c_str());
  }
}

}  // namespace gem::server
