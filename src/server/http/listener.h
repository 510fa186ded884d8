// Sockets that listen: TCP addresses and Unix sockets.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gem::server {

// A file descriptor that is closed with its owner.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct ListeningSocket {
  FileDescriptor fd;
  int family = 0;  // AF_INET, AF_INET6, AF_UNIX
};

struct Listeners {
  std::vector<ListeningSocket> sockets;  // at least one; two for "localhost" where IPv6 is there
  std::uint16_t port = 0;                // of all of them; 0 for a Unix socket
  std::string address;                   // as HttpServer::address says it
};

// Binds and listens. `host`: an address, a name that resolves to addresses of this machine, or a path that
// ends in .sock. "localhost" is 127.0.0.1 and, where possible, ::1 with the same port, as clients differ in
// which they try first. A Unix socket whose file is there already is taken over only if nobody listens there;
// who may connect is for the umask and the folder to say.
// Error(kFailed), naming the address, when it is not possible.
Listeners listen_on(const std::string& host, std::uint16_t port);

// The other end of a connection, "127.0.0.1:50312", "[::1]:50312" or "unix".
std::string peer_name(int fd);

// Removes the file of a Unix socket at the end of its owner, if it is still the same file.
class SocketFile {
 public:
  SocketFile() = default;
  explicit SocketFile(std::string path);  // remembers which file it is
  SocketFile(SocketFile&& other) noexcept;
  SocketFile& operator=(SocketFile&& other) noexcept;
  ~SocketFile() { remove(); }
  void remove();

 private:
  std::string path_;
  std::uint64_t device_ = 0, inode_ = 0;
};

}  // namespace gem::server
