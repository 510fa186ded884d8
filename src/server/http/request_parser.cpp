#include "server/http/request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <utility>

#include "server/http/field_name.h"
#include "server/http/request_target.h"

namespace gem::server {
namespace http = boost::beast::http;
using boost::beast::string_view;
using ErrorCode = boost::beast::error_code;

namespace {

// A chunk's size line with its extensions (which nobody uses). Beast looks for its end in one buffer.
constexpr std::size_t kMaxChunkLine = 4096;

std::string_view view(string_view text) {
  return {text.data(), text.size()};
}

// What Beast found, in the words of this server.
RequestFault describe(const ErrorCode& ec) {
  if (ec == http::error::bad_version) return {505, "only HTTP/1.0 and HTTP/1.1 are spoken here"};
  if (ec == http::error::bad_method) return {400, "the request line does not begin with a method"};
  if (ec == http::error::bad_target) return {400, "the request line holds no valid target"};
  if (ec == http::error::bad_content_length)
    return {400, "Content-Length is not a number, or stands beside Transfer-Encoding"};
  if (ec == http::error::multiple_content_length) return {400, "two different Content-Length headers"};
  if (ec == http::error::bad_transfer_encoding)
    return {400, "Transfer-Encoding given twice, or beside Content-Length"};
  if (ec == http::error::bad_chunk) return {400, "malformed chunk in the body"};
  if (ec == http::error::bad_chunk_extension) return {400, "malformed chunk extension in the body"};
  if (ec == http::error::header_limit) return {431, "the headers are too large"};
  return {400, "malformed header"};
}

}  // namespace

class RequestParser::Impl final : public http::basic_parser<true> {
 public:
  explicit Impl(const RequestLimits& limits) : limits_(limits) {
    // The limits of this class, not Beast's: they count across reads, and know what the fault is called.
    header_limit((std::numeric_limits<std::uint32_t>::max)());
    body_limit(boost::none);
    eager(false);
  }

  std::size_t put_bytes(std::string_view in) {
    std::size_t taken = 0;
    while (!fault && !is_done()) {
      const bool in_head = !is_header_done();
      if (in_head && !line_known) {  // empty lines before a request are skipped (RFC 9112, section 2.2)
        while (head_bytes == 0 && taken < in.size() && (in[taken] == '\r' || in[taken] == '\n')) ++taken;
      }
      ErrorCode ec;
      const std::string_view rest = in.substr(taken);
      if (rest.empty()) break;  // which Beast would not tell from progress
      // A chunked body goes on with at least "0\r\n\r\n"; Beast asserts that of a last chunk it sees twice.
      if (!in_head && chunked() && rest.size() < 5) break;
      const std::size_t n = put(boost::asio::const_buffer(rest.data(), rest.size()), ec);
      taken += n;
      if (in_head) head_bytes += n;
      const bool waits = ec == http::error::need_more;
      if (ec && !waits && !fault) fault = describe(ec);
      if (fault) break;
      if (in_head) {
        const std::size_t pending = waits ? rest.size() - n : 0;
        if (head_bytes + pending > limits_.max_header_bytes) {
          fault = RequestFault{431,
                               fmt::format("the headers are larger than {} bytes", limits_.max_header_bytes)};
          break;
        }
        if (is_header_done()) finish_head();
        break;  // the caller looks at the head first
      }
      if (waits) {
        // All that can wait here is a chunk's size line, or the last one with its trailers behind it.
        if (rest.size() - n > std::max(kMaxChunkLine, limits_.max_header_bytes)) {
          fault = RequestFault{400, "a chunk's size line or the trailers are too long"};
        }
        break;
      }
    }
    return taken;
  }

  // The body's framing and the request line, once all headers are known.
  void finish_head() {
    const bool one_one = version == 11;
    if (transfer_encodings > 0) {
      if (!one_one) {
        fault = RequestFault{400, "Transfer-Encoding in an HTTP/1.0 request"};
      } else if (!same_field_name(transfer_encoding, "chunked")) {
        fault = RequestFault{501, "the only Transfer-Encoding understood is chunked"};
      }
    }
    if (!fault && (hosts > 1 || (one_one && hosts == 0))) {
      fault = RequestFault{400, "an HTTP/1.1 request has one Host header"};
    }
  }

  std::optional<RequestFault> fault;
  HttpRequest request;
  bool line_known = false;
  int version = 0;
  std::size_t head_bytes = 0, fields = 0, hosts = 0, transfer_encodings = 0;
  std::string transfer_encoding;
  bool discard = false;
  std::uint64_t body_bytes = 0;

  const RequestLimits& limits() const { return limits_; }

 private:
  void on_request_impl(http::verb, string_view method, string_view target, int http_version,
                       ErrorCode& ec) override {
    request.method = view(method);
    request.target = view(target);
    version = http_version;
    line_known = true;
    if (!server::parse_target(request)) {
      fault = RequestFault{400, "the request line holds no valid target"};
      ec = http::error::bad_target;
    }
  }
  void on_response_impl(int, string_view, int, ErrorCode&) override {}
  void on_field_impl(http::field field, string_view name, string_view value, ErrorCode& ec) override {
    if (++fields > limits_.max_headers) {
      fault = RequestFault{431, fmt::format("more than {} headers", limits_.max_headers)};
      ec = http::error::header_limit;
      return;
    }
    if (is_header_done()) return;  // a trailer must not pass for a header
    if (field == http::field::host) {
      // An absolute target has brought its own, which goes before.
      if (++hosts == 1 && !request.header("Host").empty()) return;
    } else if (field == http::field::transfer_encoding) {
      if (++transfer_encodings > 1) transfer_encoding += ", ";
      transfer_encoding += view(value);
    }
    request.headers.emplace_back(view(name), view(value));
  }
  void on_header_impl(ErrorCode&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, ErrorCode&) override {}
  std::size_t on_body_impl(string_view body, ErrorCode&) override { return take(body); }
  void on_chunk_header_impl(std::uint64_t size, string_view, ErrorCode& ec) override {
    if (discard || size <= limits_.max_body_bytes - body_bytes) return;
    fault = RequestFault{413, fmt::format("the body is larger than {} bytes", limits_.max_body_bytes)};
    ec = http::error::body_limit;
  }
  std::size_t on_chunk_body_impl(std::uint64_t, string_view body, ErrorCode&) override { return take(body); }
  void on_finish_impl(ErrorCode&) override {}

  std::size_t take(string_view body) {
    if (!discard) request.body.append(body.data(), body.size());
    body_bytes += body.size();
    return body.size();
  }

  const RequestLimits limits_;
};

RequestParser::RequestParser(const RequestLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;

std::size_t RequestParser::put(std::string_view in) {
  return impl_->put_bytes(in);
}

bool RequestParser::head_done() const {
  return impl_->is_header_done() && !impl_->fault;
}

bool RequestParser::done() const {
  return impl_->is_done() && !impl_->fault;
}

const std::optional<RequestFault>& RequestParser::fault() const {
  return impl_->fault;
}

HttpRequest* RequestParser::request() {
  return impl_->line_known ? &impl_->request : nullptr;
}

bool RequestParser::http11() const {
  return impl_->version == 11;
}

bool RequestParser::keep_alive() const {
  return impl_->is_header_done() && impl_->keep_alive();
}

bool RequestParser::has_body() const {
  return impl_->chunked() || content_length().value_or(0) > 0;
}

std::optional<std::uint64_t> RequestParser::content_length() const {
  const auto length = impl_->content_length();
  return length ? std::optional<std::uint64_t>(*length) : std::nullopt;
}

std::optional<RequestFault> RequestParser::body_fault() const {
  const HttpRequest& request = impl_->request;
  const std::string_view expect = request.header("Expect");
  if (!expect.empty() && !same_field_name(expect, "100-continue")) {
    return RequestFault{417, "the only expectation understood is 100-continue"};
  }
  if (!has_body()) return std::nullopt;
  const std::string_view coding = request.header("Content-Encoding");
  if (!coding.empty() && !same_field_name(coding, "identity")) {
    return RequestFault{415, "bodies are taken as they are: no Content-Encoding"};
  }
  if (content_length().value_or(0) > impl_->limits().max_body_bytes) {
    return RequestFault{413, fmt::format("the body is larger than {} bytes", impl_->limits().max_body_bytes)};
  }
  return std::nullopt;
}

bool RequestParser::expects_continue() const {
  return http11() && has_body() && same_field_name(impl_->request.header("Expect"), "100-continue");
}

void RequestParser::discard_body() {
  impl_->discard = true;
}

std::uint64_t RequestParser::body_bytes() const {
  return impl_->body_bytes;
}

}  // namespace gem::server
