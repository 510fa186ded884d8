// Keys, host names and origins.
#include "server/access.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace gem::server {
namespace {

HttpRequest with(Headers headers, std::string method = "POST") {
  HttpRequest request;
  request.method = std::move(method);
  request.path = request.target = "/v1/chat/completions";
  request.headers = std::move(headers);
  return request;
}

std::string header_of(const HttpResponse& response, std::string_view name) {
  std::string all;
  for (const auto& [key, value] : response.headers) {
    if (key == name) all += (all.empty() ? "" : " | ") + value;
  }
  return all;
}

std::string cors_origin(const AccessGuard& guard, const HttpRequest& request) {
  HttpResponse response;
  guard.add_cors(request, response);
  return header_of(response, "Access-Control-Allow-Origin");
}

TEST(Access, SecretsAreEqualOrNot) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  for (const char* given : {"", "a", "ab", "abd", "abcd", "abcabc", "ABC", "xabc"})
    EXPECT_FALSE(same_secret(given, "abc")) << given;
  EXPECT_FALSE(same_secret("", ""));  // no secret opens nothing
  EXPECT_FALSE(same_secret(std::string_view("abc\0", 4), "abc"));
}

TEST(Access, LoopbackNames) {
  for (const char* host :
       {"localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "127.255.255.255", "::1", "[::1]"})
    EXPECT_TRUE(is_loopback_host(host)) << host;
  for (const char* host :
       {"", "0.0.0.0", "128.0.0.1", "127.0.0.1.example.com", "127.0.0", "127.0.0.256", "127.0.0.",
        "localhost.example.com", "xlocalhost", "[::2]", "1.127.0.0", "127.0.0.1x"})
    EXPECT_FALSE(is_loopback_host(host)) << host;
}

TEST(Access, KeysOfAFile) {
  EXPECT_EQ(parse_key_lines("one\r\n\n  two \nthree"), (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_TRUE(parse_key_lines("\n \t\n").empty());
}

TEST(Access, WithoutKeysEverybodyMayCall) {
  EXPECT_FALSE(AccessGuard({}).check_key(with({})));
}

TEST(Access, AnyOfTheKeysInEitherHeader) {
  const AccessGuard guard({.keys = {"first-key", "second-key"}});
  EXPECT_FALSE(guard.check_key(with({{"Authorization", "Bearer first-key"}})));
  EXPECT_FALSE(guard.check_key(with({{"authorization", "bearer  second-key "}})));
  EXPECT_FALSE(guard.check_key(with({{"X-Api-Key", "second-key"}})));
  // Some clients fill one of the two with a placeholder.
  EXPECT_FALSE(guard.check_key(with({{"X-Api-Key", "none"}, {"Authorization", "Bearer first-key"}})));
  for (const Headers& headers : std::vector<Headers>{{},
                                                     {{"Authorization", ""}},
                                                     {{"Authorization", "Bearer"}},
                                                     {{"Authorization", "Bearer "}},
                                                     {{"Authorization", "first-key"}},
                                                     {{"Authorization", "Basic first-key"}},
                                                     {{"Authorization", "Bearer first-keyx"}},
                                                     {{"Authorization", "Bearer first-ke"}},
                                                     {{"X-Api-Key", "First-key"}},
                                                     {{"X-Api-Key", ""}},
                                                     {{"X-Api-Key", "first-key,second-key"}}}) {
    const auto refused = guard.check_key(with(headers));
    ASSERT_TRUE(refused) << (headers.empty() ? "" : headers[0].second);
    EXPECT_EQ(refused->status, 401);
    EXPECT_EQ(refused->type, "authentication_error");
    EXPECT_EQ(refused->message, "Invalid API Key");
  }
}

TEST(Access, KeysAndOriginsThatCannotBe) {
  EXPECT_THROW(AccessGuard({.keys = {""}}), Error);
  EXPECT_THROW(AccessGuard({.keys = {"ok", " key"}}), Error);
  for (const char* origin :
       {"null", "example.com", "http://", "http://a/b", "://a", "http://u@h", "http://h:x"})
    EXPECT_THROW(AccessGuard({.origins = {origin}}), Error) << origin;
}

TEST(Access, ALoopbackServerIsCalledByLocalNames) {
  for (const char* bound : {"127.0.0.1", "localhost", "::1"}) {
    const AccessGuard guard({.host = bound});
    for (const char* host :
         {"localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1:8080", "127.0.0.2", "[::1]", "[::1]:8080"})
      EXPECT_FALSE(guard.check_site(with({{"Host", host}}))) << bound << " " << host;
    for (const char* host :
         {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
          "192.168.1.7:8080", "localhost:80:80", "localhost:8x", "[::1", "a@localhost", ":8080"}) {
      const auto refused = guard.check_site(with({{"Host", host}}));
      ASSERT_TRUE(refused) << bound << " " << host;
      EXPECT_EQ(refused->status, 403);
      EXPECT_EQ(refused->type, "permission_error");
    }
    // A second one does not slip past the first.
    EXPECT_TRUE(guard.check_site(with({{"Host", "localhost"}, {"Host", "evil.example"}})));
    EXPECT_FALSE(guard.check_site(with({})));  // HTTP/1.0, no browser
  }
}

TEST(Access, FurtherNamesAndOtherInterfaces) {
  const AccessGuard proxied({.host = "127.0.0.1", .hosts = {"gem.example", "other.example:8443"}});
  EXPECT_FALSE(proxied.check_site(with({{"Host", "gem.example"}})));
  EXPECT_FALSE(proxied.check_site(with({{"Host", "Gem.Example:443"}})));
  EXPECT_FALSE(proxied.check_site(with({{"Host", "other.example:8443"}})));
  EXPECT_TRUE(proxied.check_site(with({{"Host", "sub.gem.example"}})));
  const AccessGuard open({.host = "0.0.0.0"});
  EXPECT_FALSE(open.check_site(with({{"Host", "any.example"}})));
  const AccessGuard named({.host = "0.0.0.0", .hosts = {"gem.example"}});
  EXPECT_FALSE(named.check_site(with({{"Host", "gem.example"}})));
  EXPECT_TRUE(named.check_site(with({{"Host", "any.example"}})));
  const AccessGuard socket({.host = "run/gem.sock"});
  EXPECT_FALSE(socket.check_site(with({{"Host", "whatever"}})));
}

TEST(Access, OnlyOurOwnOriginUnlessToldOtherwise) {
  const AccessGuard guard({.host = "127.0.0.1"});
  EXPECT_FALSE(guard.check_site(with({{"Host", "localhost:8080"}, {"Origin", "http://localhost:8080"}})));
  EXPECT_FALSE(guard.check_site(with({{"Host", "[::1]:8080"}, {"Origin", "http://[::1]:8080"}})));
  EXPECT_FALSE(guard.check_site(with({{"Host", "localhost"}, {"Origin", "http://localhost:80"}})));
  EXPECT_FALSE(guard.check_site(with({{"Host", "localhost"}, {"Origin", "https://localhost"}})));
  for (const char* origin :
       {"null", "NULL", "http://evil.example", "http://localhost", "http://localhost:8081",
        "http://localhost:80800", "http://127.0.0.1:8080", "http://localhost:8080.evil.example",
        "http://localhost:8080@evil.example", "file://", "x://localhost:8080",
        "http://evil.example/localhost:8080", "localhost:8080"}) {
    const HttpRequest request = with({{"Host", "localhost:8080"}, {"Origin", origin}});
    const auto refused = guard.check_site(request);
    ASSERT_TRUE(refused) << origin;
    EXPECT_EQ(refused->status, 403);
    EXPECT_EQ(cors_origin(guard, request), "") << origin;
  }
  EXPECT_TRUE(guard.check_site(with(
      {{"Host", "localhost:8080"}, {"Origin", "http://localhost:8080"}, {"Origin", "http://evil.example"}})));
}

TEST(Access, AllowedOriginsAndTheirHeaders) {
  const AccessGuard guard({.origins = {"https://app.example/", "chrome-extension://abcdef"}});
  for (const char* origin : {"https://app.example", "chrome-extension://abcdef"}) {
    const HttpRequest request = with({{"Host", "localhost:8080"}, {"Origin", origin}});
    EXPECT_FALSE(guard.check_site(request)) << origin;
    HttpResponse response;
    guard.add_cors(request, response);
    EXPECT_EQ(header_of(response, "Access-Control-Allow-Origin"), origin);
    EXPECT_EQ(header_of(response, "Access-Control-Allow-Credentials"), "true");
    EXPECT_EQ(header_of(response, "Vary"), "Origin");
  }
  for (const char* origin :
       {"http://app.example", "https://app.example:444", "https://app.example.evil", "null"})
    EXPECT_TRUE(guard.check_site(with({{"Host", "localhost:8080"}, {"Origin", origin}}))) << origin;
}

TEST(Access, LocalOriginsOfAnyPort) {
  const AccessGuard guard({.origins = {"localhost"}});
  for (const char* origin : {"http://localhost:3000", "http://127.0.0.1:5173", "https://[::1]"})
    EXPECT_FALSE(guard.check_site(with({{"Host", "localhost:8080"}, {"Origin", origin}}))) << origin;
  for (const char* origin :
       {"http://localhost.evil.example", "ftp://localhost", "null", "http://evil.example"})
    EXPECT_TRUE(guard.check_site(with({{"Host", "localhost:8080"}, {"Origin", origin}}))) << origin;
}

TEST(Access, EveryOrigin) {
  const AccessGuard guard({.origins = {"*"}});
  const HttpRequest page = with({{"Host", "localhost:8080"}, {"Origin", "https://app.example"}});
  EXPECT_FALSE(guard.check_site(page));
  EXPECT_EQ(cors_origin(guard, page), "https://app.example");
  EXPECT_EQ(cors_origin(guard, with({})), "*");
  // "null" is everybody and nobody: never by name, and never with credentials.
  const HttpRequest sandboxed = with({{"Host", "localhost:8080"}, {"Origin", "null"}});
  HttpResponse response;
  guard.add_cors(sandboxed, response);
  EXPECT_EQ(header_of(response, "Access-Control-Allow-Origin"), "*");
  EXPECT_EQ(header_of(response, "Access-Control-Allow-Credentials"), "");
}

TEST(Access, Preflight) {
  const AccessGuard guard({.origins = {"https://app.example"}});
  const HttpRequest request = with({{"Host", "localhost:8080"},
                                    {"Origin", "https://app.example"},
                                    {"Access-Control-Request-Method", "POST"},
                                    {"Access-Control-Request-Headers", "x-stainless-os, bad\r\nheader,x y"},
                                    {"Access-Control-Request-Private-Network", "true"}},
                                   "OPTIONS");
  const HttpResponse response = guard.preflight(request, "POST, OPTIONS");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "");
  EXPECT_EQ(header_of(response, "Allow"), "POST, OPTIONS");
  EXPECT_NE(header_of(response, "Access-Control-Allow-Methods").find("DELETE"), std::string::npos);
  const std::string headers = header_of(response, "Access-Control-Allow-Headers");
  for (const char* name :
       {"Authorization", "Content-Type", "X-Api-Key", "anthropic-version", "x-stainless-os"})
    EXPECT_NE(headers.find(name), std::string::npos) << name;
  EXPECT_EQ(headers.find("bad"), std::string::npos);
  EXPECT_EQ(headers.find('\n'), std::string::npos);
  EXPECT_EQ(header_of(response, "Access-Control-Allow-Private-Network"), "true");
  EXPECT_EQ(guard.preflight(with({}, "OPTIONS"), "GET").headers.size(), 1u);  // Allow alone
}

}  // namespace
}  // namespace gem::server
