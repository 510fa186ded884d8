// The request-target of RFC 9112, section 3.2: what a client asks for, taken apart.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http/exchange.h"

namespace gem::server {

// Percent-decoding (RFC 3986, section 2.1). Nothing for a broken escape, or one that stands for NUL.
// `plus_is_space`: the form encoding of queries.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space);

// Fills request.path and request.query from request.target. An absolute form ("http://host:80/path", which
// proxies send) is admitted; its authority replaces the Host header, as the RFC demands. False: the target is
// none of the forms, or holds a broken escape.
bool parse_target(HttpRequest& request);

}  // namespace gem::server
