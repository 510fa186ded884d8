// The routes of the HTTP interface: paths, their methods, and what answers them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api.h"

namespace gem::server {

struct Route {
  enum class Needs : std::uint8_t {
    kNothing,  // answers before the model is open
    kModel,
    kService,  // makes work: refused once the server is stopping
  };
  using Handler = Reply (*)(const ApiContext&, const HttpRequest&);

  // "*" at the end stands for the rest of the path, at least one character.
  std::string_view pattern;
  std::string_view methods;  // "GET" (which includes HEAD), "POST", "GET, POST"
  Needs needs = Needs::kModel;
  bool open = false;          // without a key
  Handler handler = nullptr;  // null: App answers it itself
};

std::span<const Route> all_routes();
// The route of a path (without a prefix), or null. Exact ones go before those with a rest.
const Route* find_route(std::string_view path);
// Whether the route takes that method.
bool takes(const Route& route, std::string_view method);
// For the Allow header.
std::string allowed_methods(const Route& route);

}  // namespace gem::server
