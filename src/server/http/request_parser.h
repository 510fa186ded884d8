// One request from bytes: an incremental HTTP/1.x parser with its limits. Knows nothing of sockets; the only
// place that uses Boost.Beast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/exchange.h"

namespace gem::server {

struct RequestLimits {
  std::size_t max_header_bytes = 32 << 10;  // request line and headers, or the trailers of a chunked body
  std::size_t max_headers = 100;
  std::size_t max_body_bytes = std::size_t{64} << 20;
};

// Why a request is refused before the application has seen it whole.
struct RequestFault {
  int status = 400;
  std::string message;
};

class RequestParser {
 public:
  explicit RequestParser(const RequestLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Takes bytes from the front of `in` and returns how many; what it left belongs to `in` still and must be
  // given again, with more behind it. Stops behind the headers, once (head_done()), behind the body (done()),
  // and at a fault. After a fault there is no telling where the next request begins.
  std::size_t put(std::string_view in);

  bool head_done() const;
  bool done() const;
  const std::optional<RequestFault>& fault() const;

  // Known in part before head_done(); null while not even the request line is known.
  HttpRequest* request();

  // From head_done() on:
  bool http11() const;
  bool keep_alive() const;  // what the client wishes
  bool has_body() const;    // of more than no bytes, as far as is known
  std::optional<std::uint64_t> content_length() const;
  // What the headers say of the body that cannot be served: a coding other than identity (415), an
  // expectation other than 100-continue (417), a length above the limit (413).
  std::optional<RequestFault> body_fault() const;
  bool expects_continue() const;

  // From now on the body is parsed and thrown away, whatever its size.
  void discard_body();
  std::uint64_t body_bytes() const;  // so far, thrown away ones included

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gem::server
