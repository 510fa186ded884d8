// JSON of a request, given back in a reply.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "server/http/exchange.h"
#include "text/json_value.h"

namespace gem::server {

// The same value; a number that neither 64 bits nor a double hold is given as its spelling in a string.
nlohmann::ordered_json echo(const JsonValue& value);

// Compact, valid UTF-8 whatever the strings hold.
std::string dump(const nlohmann::ordered_json& json);
// The same as a response (200).
HttpResponse json_response(const nlohmann::ordered_json& json);

}  // namespace gem::server
