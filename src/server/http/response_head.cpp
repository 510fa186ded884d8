#include "server/http/response_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "server/http/field_name.h"

namespace gem::server {
namespace {

constexpr std::array<std::string_view, 5> kTransportFields = {"connection", "content-length", "date",
                                                              "transfer-encoding", "keep-alive"};

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  std::transform(value.begin(), value.end(), std::back_inserter(out),
                 [](char c) { return c == '\r' || c == '\n' || c == '\0' ? ' ' : c; });
  out += "\r\n";
}

}  // namespace

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 406:
      return "Not Acceptable";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    case 529:
      return "Overloaded";
    default:
      return "Status";
  }
}

bool may_have_body(int status) {
  return status >= 200 && status != 204 && status != 304;
}

std::string http_date(std::chrono::system_clock::time_point time) {
  using namespace std::chrono;
  constexpr std::array<const char*, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const auto day = floor<days>(time);
  const year_month_day date{day};
  const hh_mm_ss clock{floor<seconds>(time - day)};
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[weekday{day}.c_encoding()],
                     static_cast<unsigned>(date.day()), kMonths[static_cast<unsigned>(date.month()) - 1],
                     static_cast<int>(date.year()), clock.hours().count(), clock.minutes().count(),
                     clock.seconds().count());
}

std::string response_head(const HttpResponse& response, const Framing& framing,
                          std::chrono::system_clock::time_point now) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  append_field(out, "Date", http_date(now));
  if (may_have_body(response.status)) {
    if (!response.content_type.empty()) append_field(out, "Content-Type", response.content_type);
    if (framing.chunked) {
      append_field(out, "Transfer-Encoding", "chunked");
    } else if (framing.content_length) {
      append_field(out, "Content-Length", fmt::format("{}", *framing.content_length));
    }
  }
  for (const auto& [name, value] : response.headers) {
    const bool own = std::any_of(
        kTransportFields.begin(), kTransportFields.end(),
        [&field = name](std::string_view own_field) { return same_field_name(field, own_field); });
    if (!own) append_field(out, name, value);
  }
  if (!framing.keep_alive) {
    append_field(out, "Connection", "close");
  } else if (!framing.http11) {
    append_field(out, "Connection", "keep-alive");  // not the rule in HTTP/1.0
  }
  out += "\r\n";
  return out;
}

void append_chunk(std::string& out, std::string_view data) {
  if (data.empty()) return;
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", data.size());
  out += data;
  out += "\r\n";
}

}  // namespace gem::server
