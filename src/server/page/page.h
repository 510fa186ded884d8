// The web page: the files of src/server/page/assets, embedded at build time. They are the same for everyone
// and hold no secrets, so they need no key. The page calls the API by relative addresses and loads nothing
// from elsewhere; its Content-Security-Policy lets it do neither more nor less.
#pragma once

#include <optional>
#include <string_view>

#include "server/http/exchange.h"

namespace gem::server {

// Whether page_file would answer: "/", "/index.html", "/favicon.ico" and "/page/NAME".
bool is_page_file(std::string_view path);

// The response for GET (HEAD) of `path`, or nothing where the page has no such file. `if_none_match` is the
// request's header of that name: where it holds the file's tag, the answer is 304 without a body.
std::optional<HttpResponse> page_file(std::string_view path, std::string_view if_none_match = {});

}  // namespace gem::server
