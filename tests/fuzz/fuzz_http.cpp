// Any bytes as HTTP requests: the result does not depend on how they are cut, limits hold, and what is
// admitted keeps its promises.
//
// Byte 0 is the size of the pieces; the rest is what a client sends, perhaps several requests.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/http/request_parser.h"

namespace {

using gem::server::HttpRequest;
using gem::server::RequestLimits;
using gem::server::RequestParser;

void require(bool holds) {
  if (!holds) std::abort();
}

constexpr RequestLimits kLimits{2048, 8, 4096};

void check(RequestParser& parser) {
  const HttpRequest& request = *parser.request();
  require(request.path == "*" || request.path.front() == '/');
  require(request.path.find('\0') == std::string::npos);
  require(request.headers.size() <= kLimits.max_headers + 1);  // an absolute target brings a Host
  std::size_t bytes = 0;
  for (const auto& [name, value] : request.headers) {
    require(!name.empty());
    require(name.find_first_of(" \t\r\n:") == std::string::npos);
    require(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
    bytes += name.size() + value.size();
  }
  require(bytes <= 2 * kLimits.max_header_bytes);
  if (parser.content_length()) require(request.header("Transfer-Encoding").empty());
}

// The requests of the input, as text, until one is refused or not whole. Which of the two, and why, is not
// compared: a head that comes in pieces is looked at when its end is there, one that comes at once line by
// line, so that a broken one without an end is found sooner or later.
std::string outcome(std::string_view input, std::size_t piece) {
  std::string result, pending;
  std::size_t at = 0;
  for (;;) {
    RequestParser parser(kLimits);
    bool checked = false;
    for (;;) {
      const std::size_t taken = parser.put(pending);
      require(taken <= pending.size());
      pending.erase(0, taken);
      if (parser.fault()) return result;
      if (parser.head_done() && !checked) {
        checked = true;
        check(parser);
        if (parser.body_fault()) return result;
        continue;  // the body may be there already
      }
      if (parser.done()) break;
      if (at == input.size()) return result;
      pending += input.substr(at, piece);
      at += std::min(piece, input.size() - at);
    }
    const HttpRequest& request = *parser.request();
    require(request.body.size() == parser.body_bytes() && request.body.size() <= kLimits.max_body_bytes);
    result += request.method + " " + request.path + " " + std::to_string(request.headers.size()) + " " +
              request.body + (parser.keep_alive() ? "\n" : " close\n");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t piece = data[0] % 64 + 1;
  require(outcome(input, piece) == outcome(input, size));
  return 0;
}
