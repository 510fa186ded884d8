// What the transport (http_server.h) and the application exchange: requests, replies, and replies that come
// in time. Nothing here knows of sockets or of the HTTP library, so that every endpoint is tested without
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace gem::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;                                      // "GET"
  std::string target;                                      // as received: path and query
  std::string path;                                        // percent-decoded, without the query
  std::vector<std::pair<std::string, std::string>> query;  // decoded
  Headers headers;
  std::string body;
  std::string peer;  // "127.0.0.1:50312", for the log

  // The first header of that name (case does not matter), or empty.
  std::string_view header(std::string_view name) const;
  std::optional<std::string_view> query_value(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers;  // beside Content-Type and Content-Length
};

// A reply that is not known yet. The transport calls everything on one thread at a time; destroying it
// before it is done means that the client is gone, and ends the work behind it.
class PendingReply {
 public:
  virtual ~PendingReply() = default;
  // Set once, before the first poll: called from any thread whenever poll() may have something. It may be
  // called at any time, also after the PendingReply is gone.
  virtual void on_ready(std::function<void()> wake) = 0;
  // The response, once it is there.
  virtual std::optional<HttpResponse> poll() = 0;
};

// A body sent piece by piece (server-sent events), chunked. Threads and destruction as for PendingReply.
class EventSource {
 public:
  enum class State { kMore, kDone };
  virtual ~EventSource() = default;
  virtual void on_ready(std::function<void()> wake) = 0;
  // Appends what there is to send, perhaps nothing. Not called again after kDone.
  virtual State pull(std::string& out) = 0;
  // Sent when nothing else was for a while, so that neither end gives the connection up.
  virtual std::string heartbeat() const { return ":\n\n"; }
};

struct EventReply {
  HttpResponse head;  // status, type and headers; its body is empty
  std::unique_ptr<EventSource> source;
};

using Reply = std::variant<HttpResponse, std::unique_ptr<PendingReply>, EventReply>;

// One finished exchange, for the access log and the counters.
struct ExchangeRecord {
  std::string method, path, peer;
  int status = 0;               // 0: the client left before a status was sent
  bool aborted = false;         // the client left before the reply was complete
  std::uint64_t bytes_in = 0;   // of the body
  std::uint64_t bytes_out = 0;  // headers included
  double seconds = 0;
};

// The application behind the transport. All members may be called from several threads at once.
class HttpApp {
 public:
  virtual ~HttpApp() = default;
  // Looks at method, path and headers before the body is read: unknown routes, wrong methods, keys, foreign
  // hosts and origins, OPTIONS. A response here is the answer; the body is then discarded. Must be quick.
  virtual std::optional<HttpResponse> admit(const HttpRequest& head) = 0;
  // Answers an admitted request. Called on a worker thread; may take a while, must not throw.
  virtual Reply handle(HttpRequest request) = 0;
  // The response to a fault that the transport found (400, 408, 413, 415, 417, 431, 500, 501, 503, 505), in
  // the shape that the path's API uses. `head` is null when the request line could not be read, and may lack
  // headers that were not reached.
  virtual HttpResponse refuse(const HttpRequest* head, int status, const std::string& message) = 0;
  // Headers that every response to this request carries (CORS, Server). A request that could not be read is
  // empty here.
  virtual void decorate(const HttpRequest& request, HttpResponse& response) = 0;
  // Once for every request whose head was read, and for every refusal.
  virtual void finished(const ExchangeRecord& record) = 0;
};

}  // namespace gem::server
