#include "server/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.h"

namespace gem::server {
namespace {

constexpr std::string_view kBlanks = " \t\r";

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_text(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// "NAME", "NAME:PORT", "[ADDRESS]", "[ADDRESS]:PORT". Nothing where it is none of them.
struct Authority {
  std::string_view host;  // without brackets
  std::string_view port;  // perhaps empty
};
std::optional<Authority> split_authority(std::string_view text) {
  Authority a;
  std::string_view rest;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return std::nullopt;
    a.host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
  } else {
    const std::size_t colon = text.find(':');
    a.host = text.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon);
  }
  if (!rest.empty()) {
    if (rest.front() != ':') return std::nullopt;
    a.port = rest.substr(1);
    if (!std::all_of(a.port.begin(), a.port.end(), is_digit)) return std::nullopt;
  }
  if (a.host.empty()) return std::nullopt;
  return a;
}

// "http://host:port", as browsers send it. Nothing for "null" and everything else.
struct Origin {
  std::string_view scheme;
  Authority authority;
};
std::optional<Origin> split_origin(std::string_view text) {
  const std::size_t colon = text.find("://");
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  const auto authority = split_authority(text.substr(colon + 3));
  if (!authority || authority->host.find_first_of("/?#@ \t") != std::string_view::npos) return std::nullopt;
  return Origin{text.substr(0, colon), *authority};
}

// Browsers leave a scheme's own port out of Origin and Host.
std::string_view effective_port(std::string_view scheme, std::string_view port) {
  if (!port.empty()) return port;
  return same_text(scheme, "https") ? "443" : "80";
}

bool is_token(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') || c == '-' || c == '_';
  });
}

// What preflights ask for, kept to what can be a list of header names.
std::string requested_headers(std::string_view list) {
  std::string out;
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view name = trim(list.substr(0, comma));
    if (!name.empty() && is_token(name)) out += fmt::format(", {}", name);
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
  }
  return out;
}

// For messages: what a client sent, cut and without control characters.
std::string shown(std::string_view text) {
  std::string out(text.substr(0, 100));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return out;
}

// Calls `visit` for every header of that name: a second one must not slip past the check of the first.
template <typename Visit>
void each_header(const HttpRequest& request, std::string_view name, const Visit& visit) {
  for (const auto& [key, value] : request.headers) {
    if (same_text(key, name)) visit(trim(value));
  }
}

}  // namespace

bool same_secret(std::string_view given, std::string_view secret) {
  if (secret.empty()) return false;
  std::size_t different = given.size() ^ secret.size();
  for (std::size_t i = 0; i < given.size(); ++i)
    different |= static_cast<std::size_t>(static_cast<unsigned char>(given[i] ^ secret[i % secret.size()]));
  return different == 0;
}

bool is_loopback_host(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (same_text(host, "localhost") || same_text(host, "localhost.") || host == "::1") return true;
  // Four decimal numbers, the first 127: "127.0.0.1.example.com" is a name like any other.
  std::size_t numbers = 0;
  std::string_view rest = host;
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    if (part.empty() || part.size() > 3 || !std::all_of(part.begin(), part.end(), is_digit)) return false;
    if (numbers == 0 && part != "127") return false;
    if (part.size() == 3 && part > "255") return false;
    ++numbers;
    if (dot == std::string_view::npos) break;
    rest = rest.substr(dot + 1);
  }
  return numbers == 4;
}

std::vector<std::string> parse_key_lines(std::string_view text) {
  std::vector<std::string> keys;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = trim(text.substr(0, end));
    if (!line.empty()) keys.emplace_back(line);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return keys;
}

AccessGuard::AccessGuard(AccessOptions options) : options_(std::move(options)) {
  for (const std::string& key : options_.keys) {
    if (trim(key).empty() || trim(key).size() != key.size())
      fail(ErrorCode::kUsage, "an API key is empty, or begins or ends with a blank");
  }
  for (std::string& origin : options_.origins) {
    if (origin == "*") {
      any_origin_ = true;
      continue;
    }
    if (origin == "localhost") {
      local_origins_ = true;
      continue;
    }
    if (origin.ends_with('/')) origin.pop_back();
    if (origin == "null")
      fail(ErrorCode::kUsage,
           "the origin null is every sandboxed page and every local file: allow * if each of them may call");
    if (!split_origin(origin))
      fail(ErrorCode::kUsage, "{} is no origin: expected SCHEME://HOST[:PORT], localhost or *", origin);
  }
  // Browsers do not talk to Unix sockets; a server on another interface is called by names unknown here.
  const bool unix_socket = options_.host.ends_with(".sock");
  check_hosts_ = !unix_socket && (is_loopback_host(options_.host) || !options_.hosts.empty());
}

bool AccessGuard::known_host(std::string_view text) const {
  const auto authority = split_authority(text);
  if (!authority) return false;
  if (is_loopback_host(authority->host) || same_text(authority->host, options_.host)) return true;
  return std::any_of(options_.hosts.begin(), options_.hosts.end(), [&](const std::string& name) {
    return same_text(name, authority->host) || same_text(name, text);
  });
}

bool AccessGuard::allowed_origin(std::string_view text, std::string_view host) const {
  if (any_origin_) return true;
  const auto origin = split_origin(text);
  if (!origin) return false;  // "null" above all
  if (same_text(origin->scheme, "http") || same_text(origin->scheme, "https")) {
    if (local_origins_ && is_loopback_host(origin->authority.host)) return true;
    if (const auto own = split_authority(host)) {
      const std::string_view port = effective_port(origin->scheme, origin->authority.port);
      if (same_text(origin->authority.host, own->host) && port == effective_port(origin->scheme, own->port))
        return true;
    }
  }
  return std::any_of(options_.origins.begin(), options_.origins.end(),
                     [&](const std::string& o) { return same_text(o, text); });
}

std::optional<ApiError> AccessGuard::check_site(const HttpRequest& request) const {
  std::optional<ApiError> refused;
  // No Host at all: no browser.
  each_header(request, "host", [&](std::string_view host) {
    if (check_hosts_ && !host.empty() && !known_host(host)) {
      refused = ApiError::of(
          403, "permission_error",
          fmt::format("the host name '{}' is not one of this server (--allow-host adds names)", shown(host)));
    }
  });
  each_header(request, "origin", [&](std::string_view origin) {
    if (!refused && !allowed_origin(origin, request.header("host"))) {
      refused =
          ApiError::of(403, "permission_error",
                       fmt::format("the origin '{}' may not call this server (--cors-origin allows origins)",
                                   shown(origin)));
    }
  });
  return refused;
}

std::optional<ApiError> AccessGuard::check_key(const HttpRequest& request) const {
  if (options_.keys.empty()) return std::nullopt;
  bool right = false;
  const auto present = [&](std::string_view given) {
    // Every key is compared, whichever matches.
    for (const std::string& key : options_.keys) right |= same_secret(given, key);
  };
  each_header(request, "x-api-key", present);
  each_header(request, "authorization", [&](std::string_view value) {
    constexpr std::string_view kScheme = "bearer ";
    if (value.size() > kScheme.size() && same_text(value.substr(0, kScheme.size()), kScheme))
      present(trim(value.substr(kScheme.size())));
  });
  if (right) return std::nullopt;
  return ApiError::of(401, "authentication_error", "Invalid API Key");
}

HttpResponse AccessGuard::preflight(const HttpRequest& request, std::string_view allow) const {
  HttpResponse response;
  response.content_type = "text/plain";
  response.headers.emplace_back("Allow", allow);
  if (!request.header("origin").empty()) {
    response.headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS");
    // Browsers do not take a * here for Authorization.
    response.headers.emplace_back(
        "Access-Control-Allow-Headers",
        "Authorization, Content-Type, X-Api-Key, anthropic-version, anthropic-beta" +
            requested_headers(request.header("access-control-request-headers")));
    response.headers.emplace_back("Access-Control-Max-Age", "600");
    // Chrome asks before a public page may call a private address.
    if (same_text(request.header("access-control-request-private-network"), "true"))
      response.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  }
  return response;
}

void AccessGuard::add_cors(const HttpRequest& request, HttpResponse& response) const {
  const std::string_view origin = trim(request.header("origin"));
  if (!options_.origins.empty()) response.headers.emplace_back("Vary", "Origin");
  if (any_origin_ && !split_origin(origin)) {
    // Also for "null", which is nobody's name: it must not be echoed with credentials.
    response.headers.emplace_back("Access-Control-Allow-Origin", "*");
  } else if (!origin.empty() && !check_site(request)) {
    response.headers.emplace_back("Access-Control-Allow-Origin", origin);
    response.headers.emplace_back("Access-Control-Allow-Credentials", "true");
    response.headers.emplace_back("Access-Control-Expose-Headers", "Retry-After");
  }
}

}  // namespace gem::server
