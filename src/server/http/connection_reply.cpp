// The replies of a connection: whole, pending, streamed.
#include "server/http/connection.h"  // before Asio's own headers

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <utility>
#include <variant>

#include "server/http/connection_exchange.h"
#include "server/http/response_head.h"

namespace gem::server {

using std::chrono::milliseconds;

// A refused request's body up to that size is read, so that the connection can go on, and for that long.
constexpr std::size_t kMaxDrained = 256 << 10;
constexpr milliseconds kDrainTime{10'000};

Task<bool> Connection::refuse(Exchange& exchange, RequestParser& parser, RequestFault fault) {
  HttpResponse response = transport_.app.refuse(parser.request(), fault.status, fault.message);
  const bool keep = co_await answer_unread(exchange, parser, std::move(response));
  co_return keep;
}

// A response to a request whose body, if any, has not been read. The connection goes on where the rest of the
// body is small and its end is known.
Task<bool> Connection::answer_unread(Exchange& exchange, RequestParser& parser, HttpResponse response) {
  bool keep = parser.head_done() && parser.keep_alive();
  if (keep && !parser.done()) {
    const std::uint64_t length = parser.content_length().value_or(0);
    const bool small = length - std::min(length, parser.body_bytes()) <= kMaxDrained;
    // A client that waits for "100 Continue" may send the body after a refusal, or not: nobody can tell where
    // its next request begins.
    keep = small && !(parser.expects_continue() && parser.body_bytes() == 0);
  }
  const HttpRequest none{};
  const HttpRequest& head = parser.request() != nullptr ? *parser.request() : none;
  keep = co_await respond(exchange, head, std::move(response), keep);
  if (keep && !parser.done()) keep = co_await drain_body(parser);
  unread_ = !keep && !parser.done();
  exchange.record.bytes_in = parser.body_bytes();
  co_return keep;
}

// Reads what is left of a body, up to a bound. False: it has no end that can be waited for.
Task<bool> Connection::drain_body(RequestParser& parser) {
  parser.discard_body();
  const auto limit = parser.body_bytes() + kMaxDrained;
  const auto deadline = Clock::now() + std::min<milliseconds>(transport_.options.body_timeout, kDrainTime);
  for (;;) {
    parse(parser);
    if (parser.done()) co_return true;
    if (parser.fault() || gone() || parser.body_bytes() > limit || Clock::now() >= deadline) co_return false;
    arm_read();
    co_await wait(deadline);
  }
}

// The application's answer. Nothing when the connection was lost meanwhile. A client that has only closed its
// sending side ("nc -N") still gets a plain response; a longer reply ends in await_pending() and stream().
Task<std::optional<Reply>> Connection::call(HttpRequest request, const HttpRequest& head) {
  Attached<Call> call(std::make_shared<Call>(*this, std::move(request)));
  asio::post(transport_.workers, [work = call.get()] { work->run(); });
  while (!call->reply && !broken_ && !closed_) {
    arm_read();
    co_await wait(Clock::time_point::max());
  }
  if (!call->reply || broken_ || closed_) co_return std::nullopt;
  if (call->failed) co_return Reply(transport_.app.refuse(&head, 500, "internal error"));
  co_return std::move(call->reply);
}

Task<bool> Connection::respond(Exchange& exchange, const HttpRequest& head, HttpResponse response,
                               bool keep_alive) {
  transport_.app.decorate(head, response);
  keep_alive = keep_alive && !transport_.draining;
  Framing framing;
  framing.content_length = response.body.size();
  framing.keep_alive = keep_alive;
  framing.http11 = http11_;
  out_ += response_head(response, framing, std::chrono::system_clock::now());
  if (head.method != "HEAD" && may_have_body(response.status)) out_ += response.body;
  exchange.status = response.status;
  const bool sent = co_await flush(exchange);
  exchange.record.aborted = !sent;
  co_return sent&& keep_alive;
}

std::optional<HttpResponse> Connection::poll(PendingReply& reply, const HttpRequest& head) {
  try {
    return reply.poll();
  } catch (const std::exception& e) {
    spdlog::error("a request failed: {}", e.what());
    return transport_.app.refuse(&head, 500, "internal error");
  }
}

Task<bool> Connection::await_pending(Exchange& exchange, const HttpRequest& head,
                                     std::unique_ptr<PendingReply> reply, bool keep_alive) {
  std::optional<HttpResponse> response;
  {
    Attached<Wake> wake(std::make_shared<Wake>(*this));
    if (reply != nullptr && !gone()) reply->on_ready(wake->function());
    while (reply != nullptr && !gone()) {
      if (std::exchange(wake->ready, false)) response = poll(*reply, head);
      if (response) break;
      co_await wait_watching(Clock::time_point::max());
    }
  }
  reply.reset();
  if (!response) co_return false;
  const bool keep = co_await respond(exchange, head, std::move(*response), keep_alive);
  co_return keep;
}

// A piece of an event stream's body, and its end.
void Connection::append_piece(std::string& piece, bool last) {
  if (http11_) {
    append_chunk(out_, piece);
    if (last) out_ += kLastChunk;
  } else {
    out_ += piece;
  }
  piece.clear();
}

Task<bool> Connection::stream(Exchange& exchange, const HttpRequest& head, EventReply reply,
                              bool keep_alive) {
  if (gone()) co_return false;
  const HttpOptions& options = transport_.options;
  transport_.app.decorate(head, reply.head);
  const bool has_body = head.method != "HEAD" && may_have_body(reply.head.status);
  Framing framing;
  framing.chunked = http11_;
  framing.http11 = http11_;
  keep_alive = keep_alive && !transport_.draining && (http11_ || !has_body);
  framing.keep_alive = keep_alive;  // without chunks only the connection's end tells the body's
  out_ += response_head(reply.head, framing, std::chrono::system_clock::now());
  exchange.status = reply.head.status;
  reply.head = {};

  Attached<Wake> wake(std::make_shared<Wake>(*this));
  bool done = !has_body || reply.source == nullptr;
  if (!done) reply.source->on_ready(wake->function());
  std::string piece;
  auto progress = Clock::now();  // of the socket
  for (;;) {
    if (gone()) co_return false;
    if (!done && wake->ready && unsent() < options.send_buffer_bytes) {
      wake->ready = false;
      done = reply.source->pull(piece) == EventSource::State::kDone;
      append_piece(piece, done);
      if (done) reply.source.reset();
    }
    if (write_some(exchange)) progress = Clock::now();
    if (unsent() == 0 && done) break;
    if (broken_) continue;
    if (!done && wake->ready && unsent() < options.send_buffer_bytes) continue;  // there is room again
    const bool stalled = unsent() > 0;
    if (stalled) arm_write();
    const auto deadline = progress + (stalled ? options.write_timeout : options.heartbeat);
    if (Clock::now() >= deadline) {
      if (stalled) {
        broken_ = true;
        continue;
      }
      piece = reply.source->heartbeat();
      if (piece.empty()) progress = Clock::now();
      append_piece(piece, false);
      continue;
    }
    co_await wait_watching(deadline);
  }
  exchange.record.aborted = false;
  co_return keep_alive;
}

}  // namespace gem::server
