// The bytes of a response before and around its body.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/exchange.h"

namespace gem::server {

std::string_view reason_phrase(int status);

// 204, 304 and 1xx have none (RFC 9110, section 6.4.1).
bool may_have_body(int status);

struct Framing {
  std::optional<std::uint64_t> content_length;  // of the body that a GET would get
  bool chunked = false;
  bool keep_alive = false;
  bool http11 = true;  // what the client speaks
};

// Status line and headers, the empty line included. Connection, Content-Length, Transfer-Encoding and Date
// are the transport's own: such names in response.headers are left out. Line breaks and NUL in a value
// become spaces, so that nothing that is echoed can start a header of its own.
std::string response_head(const HttpResponse& response, const Framing& framing,
                          std::chrono::system_clock::time_point now);

// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, section 5.6.7).
std::string http_date(std::chrono::system_clock::time_point time);

// A chunk of a chunked body; no data appends nothing, as an empty chunk would end the body.
void append_chunk(std::string& out, std::string_view data);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace gem::server
