// The HTTP/1.1 transport: connections, limits, keep-alive, streaming, disconnects. One thread runs all
// sockets, one coroutine a connection; worker threads call the application. An idle connection costs about
// 2.5 KB, an idle event stream 5.4 KB (resident memory over 1,000 of them, without the kernel's share).
//
// A client that closes its sending side counts as gone while a PendingReply or EventReply is running; a plain
// response it still gets. A refused request's connection goes on where the rest of its body is small (256 KB)
// and its end is known; otherwise it is closed after the answer, in such a way that the client sees it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "server/http/exchange.h"

namespace gem::server {

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address, "localhost", or a path that ends in .sock: a Unix socket
  std::uint16_t port = 8080;       // 0: any free one
  unsigned workers = 2;            // threads that call HttpApp::handle

  std::size_t max_header_bytes = 32 << 10;
  std::size_t max_headers = 100;
  std::size_t max_body_bytes = std::size_t{64} << 20;
  std::size_t max_total_body_bytes = std::size_t{512} << 20;  // of requests being received, together
  std::size_t max_connections = 1024;                         // those beyond get 503
  std::size_t send_buffer_bytes = 256 << 10;  // unsent bytes of a stream; beyond that nothing more is pulled

  std::chrono::milliseconds header_timeout{10'000};  // from the first byte to the end of the headers
  std::chrono::milliseconds body_timeout{60'000};    // without progress
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of a connection
  std::chrono::milliseconds write_timeout{30'000};   // without progress: the client has stopped reading
  std::chrono::milliseconds heartbeat{10'000};       // of a silent event stream
};

class HttpServer {
 public:
  // Binds and listens. Error(kFailed) naming the address when that is not possible.
  // `app` must outlive the server.
  HttpServer(HttpApp& app, HttpOptions options);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;   // the real one; 0 for a Unix socket
  std::string address() const;  // "http://127.0.0.1:8080", or the socket's path

  void start();
  // No new connections; idle ones are closed, running exchanges are finished (each connection closes after
  // its reply). Returns at once.
  void drain();
  // Waits until all connections are gone, at most that long. False: some are left.
  bool wait_until_drained(std::chrono::milliseconds limit);
  // Closes everything now and joins the threads.
  void stop();

  std::size_t connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gem::server
