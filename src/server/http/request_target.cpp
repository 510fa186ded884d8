#include "server/http/request_target.h"

#include <algorithm>
#include <utility>

#include "server/http/field_name.h"

namespace gem::server {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void set_host(HttpRequest& request, std::string_view authority) {
  std::erase_if(request.headers, [](const auto& header) { return same_field_name(header.first, "host"); });
  request.headers.emplace_back("Host", authority);
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus_is_space) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      if (text.size() - i < 3) return std::nullopt;
      const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0 || (high == 0 && low == 0)) return std::nullopt;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

bool parse_target(HttpRequest& request) {
  std::string_view rest = request.target;
  if (const auto scheme = rest.find("://"); scheme == 4 || scheme == 5) {
    if (!same_field_name(rest.substr(0, scheme), scheme == 4 ? "http" : "https")) return false;
    rest.remove_prefix(scheme + 3);
    const auto end = std::min(rest.find_first_of("/?"), rest.size());
    if (end == 0) return false;
    set_host(request, rest.substr(0, end));
    rest.remove_prefix(end);
    if (rest.empty()) rest = "/";
  } else if (rest == "*") {  // OPTIONS *
    request.path = "*";
    return true;
  } else if (rest.empty() || rest.front() != '/') {
    return false;
  }
  rest = rest.substr(0, rest.find('#'));  // a fragment is the client's own; some send it

  const auto mark = rest.find('?');
  auto path = percent_decode(rest.substr(0, mark), false);
  if (!path) return false;
  request.path = path->empty() ? "/" : std::move(*path);
  if (mark == std::string_view::npos) return true;

  for (rest.remove_prefix(mark + 1); !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const auto equals = pair.find('=');
    auto key = percent_decode(pair.substr(0, equals), true);
    auto value = equals == std::string_view::npos ? std::optional<std::string>("")
                                                  : percent_decode(pair.substr(equals + 1), true);
    if (!key || !value) return false;
    request.query.emplace_back(std::move(*key), std::move(*value));
  }
  return true;
}

}  // namespace gem::server
