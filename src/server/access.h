// Who may call: API keys, host names, origins; and the CORS headers that follow from them.
//
// A server on the loopback interface is reached by every page that its user's browser opens. Two checks keep
// foreign pages out, with and without keys: the Host must be a name of this machine (else a name that an
// attacker points at 127.0.0.1 makes his page same-origin: DNS rebinding), and an Origin must be our own or
// one that was allowed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "server/http/exchange.h"

namespace gem::server {

struct AccessOptions {
  std::vector<std::string> keys = {};     // none: everybody may call
  std::vector<std::string> origins = {};  // allowed beside our own: "https://app.example", "localhost", "*"
  std::string host = "127.0.0.1";         // what the server is bound to
  std::vector<std::string> hosts = {};    // further names that clients may call it by
};

class AccessGuard {
 public:
  // Error(kUsage) for an empty key and for what is no origin.
  explicit AccessGuard(AccessOptions options);

  // Host and Origin. 403 with what was refused.
  std::optional<ApiError> check_site(const HttpRequest& request) const;
  // `Authorization: Bearer KEY` or `X-Api-Key: KEY`. 401.
  std::optional<ApiError> check_key(const HttpRequest& request) const;

  // The answer to OPTIONS (after check_site), without what add_cors adds.
  HttpResponse preflight(const HttpRequest& request, std::string_view allow) const;
  // Access-Control-Allow-Origin and its companions where the request's origin may read the response.
  void add_cors(const HttpRequest& request, HttpResponse& response) const;

  bool needs_key() const { return !options_.keys.empty(); }

 private:
  bool known_host(std::string_view authority) const;
  bool allowed_origin(std::string_view origin, std::string_view host) const;

  AccessOptions options_;
  bool check_hosts_ = false;
  bool any_origin_ = false;
  bool local_origins_ = false;
};

// Whether both are the same, in a time that depends on `given` alone.
bool same_secret(std::string_view given, std::string_view secret);
// "localhost", 127.0.0.0/8, "::1" ("[::1]" as well), any letter case.
bool is_loopback_host(std::string_view host);
// The keys in a file's text, one a line; blank lines and blanks around keys do not count.
std::vector<std::string> parse_key_lines(std::string_view text);

}  // namespace gem::server
