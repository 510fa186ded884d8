#include "server/page/page.h"

#include <algorithm>
#include <string>

#include "server/page/embedded.h"

namespace gem::server {
namespace {

constexpr std::string_view kFolder = "/page/";

// Scripts, styles and pictures come from this server alone, nothing is evaluated, nothing frames the page,
// and the only place that it talks to is the server.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const EmbeddedFile* find(std::string_view path) {
  std::string_view name;
  if (path == "/" || path == "/index.html") {
    name = "index.html";
  } else if (path == "/favicon.ico") {
    name = "icon.svg";
  } else if (path.starts_with(kFolder)) {
    name = path.substr(kFolder.size());
    if (name == "index.html") return nullptr;  // its addresses are relative to "/"
  } else {
    return nullptr;
  }
  const auto files = embedded_files();
  const auto found = std::ranges::lower_bound(files, name, {}, &EmbeddedFile::name);
  return found != files.end() && found->name == name ? &*found : nullptr;
}

const char* content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "application/octet-stream";
}

// If-None-Match is "*" or a list of quoted tags, perhaps marked weak. The comparison is the weak one, so a
// substring with its quotes is enough: a tag of ours holds hexadecimal digits only.
bool matches(std::string_view if_none_match, std::string_view quoted_tag) {
  return if_none_match == "*" || if_none_match.find(quoted_tag) != std::string_view::npos;
}

}  // namespace

bool is_page_file(std::string_view path) {
  return find(path) != nullptr;
}

std::optional<HttpResponse> page_file(std::string_view path, std::string_view if_none_match) {
  const EmbeddedFile* file = find(path);
  if (!file) return std::nullopt;
  const std::string tag = '"' + std::string(file->tag) + '"';
  HttpResponse response;
  response.content_type = content_type(file->name);
  response.headers = {
      {"ETag", tag},
      // Kept by the browser but asked for again each time: a new version of the program is a new page.
      {"Cache-Control", "no-cache"},
      {"Content-Security-Policy", kContentSecurityPolicy},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
  };
  if (!if_none_match.empty() && matches(if_none_match, tag)) {
    response.status = 304;
  } else {
    response.body = std::string(file->content);
  }
  return response;
}

}  // namespace gem::server
