// GET over HTTP and TLS (libcurl), as much of it as a download needs: ranges, redirects that are looked at
// before they are followed, a bearer token that never leaves the hub's own origin, an end at any moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gem::hub {

// Scheme, host and port: what a token may be sent to.
struct Origin {
  std::string scheme, host;
  std::string port;
  bool operator==(const Origin&) const = default;
  std::string text() const;  // "https://huggingface.co"; the port where it is not the scheme's own
};

// Error(kUsage) when `url` is no http or https address or holds a user's name.
Origin origin_of(const std::string& url);

// Why a redirect from one to the other is not followed; empty: it is.
std::string refused_redirect(const Origin& from, const Origin& to);

// One component of an address, percent-encoded.
std::string encode_component(std::string_view text);

struct HttpOptions {
  std::string certificates;  // file or folder of trusted authorities; empty: the system's
  std::chrono::seconds connect_timeout{20};
  std::chrono::milliseconds stall_timeout{30'000};  // without a byte
  int redirects = 10;
};

// First and last byte.
struct ByteRange {
  std::uint64_t first = 0, last = 0;
};

struct HttpHead {
  long status = 0;
  std::map<std::string, std::string> fields;  // names in lower case
  std::string url;                            // that answered, after redirects
  std::optional<std::string> field(const std::string& name) const;
  // Content-Range of a 206: the range and the whole's size, where it is well formed.
  struct Part {
    ByteRange range;
    std::optional<std::uint64_t> whole;
  };
  std::optional<Part> content_range() const;
  std::optional<std::uint64_t> content_length() const;
  std::optional<std::chrono::seconds> retry_after() const;
};

enum class HttpEnd {
  kComplete,   // a final answer, whole
  kStopped,    // a callback wanted no more
  kCancelled,  // `cancelled` said so
  kBroken,     // the connection failed or stalled; another try may work
  kRefused,    // no try will work: a bad certificate, a redirect that is not followed
};

struct HttpResult {
  HttpEnd end = HttpEnd::kBroken;
  HttpHead head;       // status 0: there was no answer
  std::string reason;  // kBroken, kRefused; fit for a terminal
};

// Keeps its connection from one request to the next. Used by one thread at a time.
class HttpClient {
 public:
  // The token is sent to `hub` alone. `cancelled` is asked several times a second.
  HttpClient(HttpOptions options, Origin hub, std::string token, std::function<bool()> cancelled);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // on_head is called once with the final answer's head, before any byte of the body; on_body with the body
  // of a 2xx answer. Either returns false to stop. What they throw comes out of get().
  HttpResult get(const std::string& url, std::optional<ByteRange> range,
                 const std::function<bool(const HttpHead&)>& on_head,
                 const std::function<bool(std::span<const char>)>& on_body);

 private:
  struct Handle;
  struct Transfer;
  HttpResult one(const std::string& url, std::optional<ByteRange> range, Transfer& transfer);

  HttpOptions options_;
  Origin hub_;
  std::string token_;
  std::function<bool()> cancelled_;
  std::unique_ptr<Handle> handle_;
};

}  // namespace gem::hub
