#include "server/http/exchange.h"

#include "server/http/field_name.h"

namespace gem::server {

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (same_field_name(key, name)) return value;
  }
  return {};
}

std::optional<std::string_view> HttpRequest::query_value(std::string_view name) const {
  for (const auto& [key, value] : query) {
    if (key == name) return value;
  }
  return std::nullopt;
}

}  // namespace gem::server
