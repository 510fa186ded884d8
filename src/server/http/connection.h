// One client connection: a coroutine that reads requests, has them answered and writes the replies. Internal
// to the transport; with http_server.cpp the only place that uses Boost.Asio.
//
// Everything here runs on the I/O thread. The coroutine waits in one place only (wait()): whoever has news
// (bytes, room to write, a worker's result, a source's wake, the server closing) sets the state and calls
// notify(). So there is one thread of control, whatever happens at the same time, and a client that leaves
// ends its reply within one turn of the event loop.
#pragma once

// ThreadSanitizer does not know fences, and GCC says so; Asio's own only add to what its mutexes order.
#if defined(__SANITIZE_THREAD__)
#define BOOST_ASIO_DISABLE_FENCED_BLOCK
#endif

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http/exchange.h"
#include "server/http/http_server.h"
#include "server/http/request_parser.h"

// GCC 12 takes Asio's recycling of coroutine frames for a mismatch, in whatever function it is inlined into.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

namespace gem::server {

namespace asio = boost::asio;
using IoExecutor = asio::io_context::executor_type;
template <typename T>
using Task = asio::awaitable<T, IoExecutor>;
using Clock = std::chrono::steady_clock;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, IoExecutor>;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, IoExecutor>;

// What the connections of a server share. Used on the I/O thread only.
struct Transport {
  HttpApp& app;
  const HttpOptions& options;
  asio::io_context& io;
  asio::thread_pool& workers;
  bool draining = false;
  std::size_t body_bytes = 0;  // of requests being received, all connections together
  std::array<char, 64 << 10>
      read_space;  // where every connection reads to, so that an idle one holds no buffer
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Transport& transport, Socket socket, std::string peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Serves requests until the connection has ended, and closes it.
  Task<void> serve();
  // Answers 503 without reading a request: too many connections.
  Task<void> turn_away();

  void close();   // now, whatever is going on
  void notify();  // the state has changed: the coroutine looks again

 private:
  class Exchange;
  class Call;
  class Wake;

  // Until notify() or the deadline; true when it was notify().
  Task<bool> wait(Clock::time_point deadline);
  Task<void> wait_watching(Clock::time_point deadline);
  bool gone() const { return eof_ || broken_ || closed_; }  // half-closed counts as gone
  void arm_read();
  void arm_write();
  void on_readable(const boost::system::error_code& ec);

  Task<bool> next_request();
  Task<bool> exchange();
  Task<void> read_head(RequestParser& parser, Clock::time_point began, std::optional<RequestFault>& fault);
  Task<void> read_body(Exchange& exchange, RequestParser& parser, std::optional<RequestFault>& fault);
  void parse(RequestParser& parser);
  Task<bool> refuse(Exchange& exchange, RequestParser& parser, RequestFault fault);
  Task<bool> answer_unread(Exchange& exchange, RequestParser& parser, HttpResponse response);
  Task<bool> drain_body(RequestParser& parser);
  Task<std::optional<Reply>> call(HttpRequest request, const HttpRequest& head);
  Task<bool> respond(Exchange& exchange, const HttpRequest& head, HttpResponse response, bool keep_alive);
  std::optional<HttpResponse> poll(PendingReply& reply, const HttpRequest& head);
  Task<bool> await_pending(Exchange& exchange, const HttpRequest& head, std::unique_ptr<PendingReply> reply,
                           bool keep_alive);
  Task<bool> stream(Exchange& exchange, const HttpRequest& head, EventReply reply, bool keep_alive);
  void append_piece(std::string& piece, bool last);
  Task<bool> flush(Exchange& exchange);
  bool write_some(Exchange& exchange);
  Task<void> linger();

  std::size_t unsent() const { return out_.size() - sent_; }

  Transport& transport_;
  Socket socket_;
  Timer timer_;
  std::string peer_;
  std::string in_;   // received, not yet parsed: the request in work, and pipelined ones
  std::string out_;  // to be sent, from sent_ on
  std::size_t sent_ = 0;
  bool notified_ = false;
  bool reading_ = false, writing_ = false;  // the reactor tells us when the socket is ready
  bool http11_ = true;                      // the request in work
  bool eof_ = false;                        // the client sends no more
  bool broken_ = false;                     // the connection is lost
  bool closed_ = false;                     // by us
  bool unread_ = false;                     // it ends with input that nobody has read
};

}  // namespace gem::server
