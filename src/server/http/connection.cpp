#include "server/http/connection.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <utility>

#include "server/http/connection_exchange.h"

namespace gem::server {
namespace {

using std::chrono::milliseconds;
using ErrorCode = boost::system::error_code;
constexpr asio::use_awaitable_t<IoExecutor> kAwait{};

// Received and not yet parsed while a reply is running: beyond that the client has to wait.
constexpr std::size_t kMaxPipelined = 256 << 10;
// How often the peer is looked at when nothing can be read from it for that reason.
constexpr milliseconds kPeerWatch{100};
// Closing with unread input: the client may be sending still, and would see a reset instead of the answer.
constexpr milliseconds kLinger{10'000}, kLingerIdle{2'000};
// A buffer that has grown beyond that is given back after use.
constexpr std::size_t kKeptBuffer = 4 << 10;
// Sent bytes at the front of a buffer that goes on growing are dropped from there on.
constexpr std::size_t kCompacted = 64 << 10;

void reset_buffer(std::string& buffer) {
  if (buffer.capacity() > kKeptBuffer) {
    std::string().swap(buffer);
  } else {
    buffer.clear();
  }
}

bool peer_closed(int fd) {
#ifdef POLLRDHUP
  pollfd entry{fd, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
#else
  pollfd entry{fd, 0, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLERR)) != 0;
#endif
}

bool is_would_block(const ErrorCode& ec) {
  return ec == asio::error::would_block || ec == asio::error::try_again || ec == asio::error::interrupted;
}

}  // namespace

Connection::Connection(Transport& transport, Socket socket, std::string peer)
    : transport_(transport),
      socket_(std::move(socket)),
      timer_(transport.io.get_executor()),
      peer_(std::move(peer)) {}

void Connection::close() {
  closed_ = true;
  ErrorCode ignored;
  socket_.close(ignored);
  notify();
}

void Connection::notify() {
  if (notified_) return;
  notified_ = true;
  timer_.cancel();
}

Task<bool> Connection::wait(Clock::time_point deadline) {
  if (!notified_) {
    timer_.expires_at(deadline);
    ErrorCode ec;
    co_await timer_.async_wait(asio::redirect_error(kAwait, ec));
  }
  co_return std::exchange(notified_, false);
}

// ---- the socket -------------------------------------------------------------------------------------------

void Connection::arm_read() {
  if (reading_ || gone() || in_.size() >= kMaxPipelined) return;
  reading_ = true;
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](const ErrorCode& ec) { self->on_readable(ec); });
}

void Connection::on_readable(const ErrorCode& ec) {
  reading_ = false;
  if (closed_) return;
  if (ec) {
    broken_ = true;
    return notify();
  }
  ErrorCode failure;
  const std::size_t n = socket_.read_some(asio::buffer(transport_.read_space), failure);
  if (is_would_block(failure)) return arm_read();
  if (failure == asio::error::eof) {
    eof_ = true;
  } else if (failure) {
    broken_ = true;
  } else {
    in_.append(transport_.read_space.data(), n);
  }
  notify();
}

// wait() while a reply is running: the client's leaving wakes us, as does all else.
Task<void> Connection::wait_watching(Clock::time_point deadline) {
  arm_read();
  if (in_.size() >= kMaxPipelined) {
    // With the input full nothing is read, so that the end does not show; it does to poll(). (Not while
    // there is more in the client's kernel than fits into ours: then the next write finds out.)
    deadline = std::min(deadline, Clock::now() + kPeerWatch);
    co_await wait(deadline);
    if (!closed_ && peer_closed(socket_.native_handle())) eof_ = true;
  } else {
    co_await wait(deadline);
  }
}

void Connection::arm_write() {
  if (writing_ || closed_) return;
  writing_ = true;
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const ErrorCode&) {
    self->writing_ = false;
    self->notify();
  });
}

// Sends what the socket takes; true when that was something.
bool Connection::write_some(Exchange& exchange) {
  bool progress = false;
  while (unsent() > 0 && !closed_ && !broken_) {
    ErrorCode ec;
    const std::size_t n = socket_.write_some(asio::buffer(out_.data() + sent_, unsent()), ec);
    if (is_would_block(ec)) break;
    if (ec) {
      broken_ = true;
      break;
    }
    sent_ += n;
    exchange.record.bytes_out += n;
    exchange.record.status = exchange.status;
    progress = true;
  }
  if (unsent() == 0) {
    reset_buffer(out_);
    sent_ = 0;
  } else if (sent_ >= kCompacted) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
  return progress;
}

// Sends all of out_. False: the client is gone, or has stopped reading.
Task<bool> Connection::flush(Exchange& exchange) {
  auto deadline = Clock::now() + transport_.options.write_timeout;
  for (;;) {
    if (write_some(exchange)) deadline = Clock::now() + transport_.options.write_timeout;
    if (closed_ || broken_) co_return false;
    if (unsent() == 0) co_return true;
    if (Clock::now() >= deadline) {
      broken_ = true;
      co_return false;
    }
    arm_write();
    co_await wait(deadline);
  }
}

// ---- requests ---------------------------------------------------------------------------------------------

Task<void> Connection::serve() {
  const auto self = shared_from_this();
  try {
    bool more = co_await next_request();
    while (more) {
      more = co_await exchange();
      if (more) more = co_await next_request();
    }
    if (unread_ || !in_.empty()) co_await linger();
  } catch (const std::exception& e) {
    spdlog::error("the connection of {} failed: {}", peer_, e.what());
  }
  close();
}

// Waits for the first byte of a request.
Task<bool> Connection::next_request() {
  const auto deadline = Clock::now() + transport_.options.idle_timeout;
  for (;;) {
    // Some clients end a body with an empty line that belongs to nothing.
    in_.erase(0, std::min(in_.find_first_not_of("\r\n"), in_.size()));
    if (!in_.empty()) break;
    if (gone() || transport_.draining) co_return false;
    arm_read();
    const bool notified = co_await wait(deadline);
    if (!notified && in_.empty()) co_return false;
  }
  co_return !closed_;
}

void Connection::parse(RequestParser& parser) {
  const std::size_t taken = parser.put(in_);
  if (taken == in_.size()) {
    reset_buffer(in_);
  } else {
    in_.erase(0, taken);
  }
}

Task<void> Connection::read_head(RequestParser& parser, Clock::time_point began,
                                 std::optional<RequestFault>& fault) {
  const auto deadline = began + transport_.options.header_timeout;
  for (;;) {
    parse(parser);
    if (parser.fault()) fault = parser.fault();
    if (parser.head_done() || fault || gone()) co_return;
    if (Clock::now() >= deadline) {
      fault = RequestFault{408, "the request's headers did not come in time"};
      co_return;
    }
    arm_read();
    co_await wait(deadline);
  }
}

Task<bool> Connection::exchange() {
  const auto began = Clock::now();
  const HttpOptions& options = transport_.options;
  std::optional<RequestParser> parser;
  parser.emplace(RequestLimits{options.max_header_bytes, options.max_headers, options.max_body_bytes});
  std::optional<RequestFault> fault;
  co_await read_head(*parser, began, fault);
  // A client that leaves before it has said what it wants leaves no record.
  if (!fault && !parser->head_done()) co_return false;

  Exchange exchange(transport_.app, peer_, began);
  HttpRequest* request = parser->request();
  if (request != nullptr) {
    request->peer = peer_;
    exchange.record.method = request->method;
    exchange.record.path = request->path;
  }
  http11_ = request == nullptr || parser->http11();
  if (fault) {
    const bool keep = co_await refuse(exchange, *parser, std::move(*fault));
    co_return keep;
  }

  std::optional<HttpResponse> admission = transport_.app.admit(*request);
  if (admission) {
    const bool keep = co_await answer_unread(exchange, *parser, std::move(*admission));
    co_return keep;
  }
  fault = parser->body_fault();
  if (!fault && !parser->done()) co_await read_body(exchange, *parser, fault);
  exchange.record.bytes_in = parser->body_bytes();
  if (fault) {
    const bool keep = co_await refuse(exchange, *parser, std::move(*fault));
    co_return keep;
  }
  if (!parser->done()) co_return false;

  const bool keep_alive = parser->keep_alive();
  std::string body = std::move(request->body);
  request->body.clear();
  HttpRequest head = *request;
  request->body = std::move(body);
  std::optional<Reply> reply = co_await call(std::move(*request), head);
  parser.reset();
  if (!reply) co_return false;

  bool keep = false;
  if (auto* response = std::get_if<HttpResponse>(&*reply)) {
    keep = co_await respond(exchange, head, std::move(*response), keep_alive);
  } else if (auto* pending = std::get_if<std::unique_ptr<PendingReply>>(&*reply)) {
    keep = co_await await_pending(exchange, head, std::move(*pending), keep_alive);
  } else if (auto* events = std::get_if<EventReply>(&*reply)) {
    keep = co_await stream(exchange, head, std::move(*events), keep_alive);
  }
  co_return keep;
}

namespace {

// The share of one connection in what all of them are receiving.
class BodyShare {
 public:
  explicit BodyShare(std::size_t& total) : total_(total) {}
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  ~BodyShare() { total_ -= own_; }
  void set(std::size_t bytes) {
    total_ += bytes - own_;
    own_ = bytes;
  }

 private:
  std::size_t& total_;
  std::size_t own_ = 0;
};

}  // namespace

// Until the parser is done, a fault is found or the client is gone.
Task<void> Connection::read_body(Exchange& exchange, RequestParser& parser,
                                 std::optional<RequestFault>& fault) {
  const HttpOptions& options = transport_.options;
  BodyShare share(transport_.body_bytes);
  if (parser.expects_continue() && in_.empty()) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    const bool sent = co_await flush(exchange);
    if (!sent) co_return;
  }
  auto deadline = Clock::now() + options.body_timeout;
  for (;;) {
    const std::size_t before = in_.size();
    parse(parser);
    if (in_.size() < before) deadline = Clock::now() + options.body_timeout;
    share.set(static_cast<std::size_t>(parser.body_bytes()));
    if (parser.fault()) {
      fault = parser.fault();
    } else if (!parser.done() && transport_.body_bytes > options.max_total_body_bytes) {
      fault = RequestFault{503, "too many large requests are being received, try again later"};
    } else if (!parser.done() && Clock::now() >= deadline) {
      fault = RequestFault{408, "the request's body did not come in time"};
    }
    if (parser.done() || fault || gone()) co_return;
    arm_read();
    co_await wait(deadline);
  }
}

// ---- ends -------------------------------------------------------------------------------------------------

Task<void> Connection::turn_away() {
  const auto self = shared_from_this();
  try {
    Exchange exchange(transport_.app, peer_, Clock::now());
    HttpResponse response = transport_.app.refuse(nullptr, 503, "too many connections");
    const HttpRequest none{};
    co_await respond(exchange, none, std::move(response), false);
    co_await linger();
  } catch (const std::exception& e) {
    spdlog::error("the connection of {} failed: {}", peer_, e.what());
  }
  close();
}

// Lets a client that is sending still see the answer: the end of ours, then its bytes go unread.
Task<void> Connection::linger() {
  ErrorCode ignored;
  if (!closed_) socket_.shutdown(Socket::shutdown_send, ignored);
  const auto end = Clock::now() + kLinger;
  for (;;) {
    reset_buffer(in_);
    if (gone()) co_return;
    arm_read();
    const bool notified = co_await wait(std::min(end, Clock::now() + kLingerIdle));
    if (!notified || Clock::now() >= end) co_return;
  }
}

}  // namespace gem::server
