#include "hub/http.h"

#include <curl/curl.h>

#include <charconv>
#include <exception>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "hub/names.h"

namespace gem::hub {
namespace {

constexpr std::size_t kLargestHead = 256 << 10;
constexpr std::size_t kLargestPage = 1 << 20;  // of an error or a redirect, which nobody reads
constexpr const char* kUserAgent = "gem (libcurl)";

void start_curl() {
  static const CURLcode done = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  if (done != CURLE_OK) fail(ErrorCode::kFailed, "libcurl does not start");
}

class Url {
 public:
  Url() : url_(::curl_url()) {}
  ~Url() { ::curl_url_cleanup(url_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;

  // A relative address is taken from the one that was set before.
  bool set(const std::string& text) {
    return ::curl_url_set(url_, CURLUPART_URL, text.c_str(), 0) == CURLUE_OK;
  }
  std::string part(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (::curl_url_get(url_, part, &text, flags) != CURLUE_OK) return {};
    std::string copy(text);
    ::curl_free(text);
    return copy;
  }

 private:
  CURLU* url_;
};

// Nothing when it is none that gem talks to.
std::optional<Origin> read_origin(const Url& url) {
  Origin o{lower_case(url.part(CURLUPART_SCHEME)), lower_case(url.part(CURLUPART_HOST)),
           url.part(CURLUPART_PORT, CURLU_DEFAULT_PORT)};
  const bool http = o.scheme == "https" || o.scheme == "http";
  const bool anonymous = url.part(CURLUPART_USER).empty() && url.part(CURLUPART_PASSWORD).empty();
  return http && anonymous && !o.host.empty() ? std::optional(o) : std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

template <typename T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Failures that the next try would meet again.
bool is_final(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string Origin::text() const {
  const bool usual = port == (scheme == "https" ? "443" : "80");
  return printable(scheme + "://" + host + (usual ? "" : ":" + port));
}

Origin origin_of(const std::string& url) {
  start_curl();
  Url parsed;
  if (parsed.set(url))
    if (auto origin = read_origin(parsed)) return *origin;
  // Not quoted: it may hold a password.
  fail(ErrorCode::kUsage,
       "the hub's address (HF_ENDPOINT) is no https:// or http:// address without a user name");
}

std::string refused_redirect(const Origin& from, const Origin& to) {
  if (from.scheme != "https" || to.scheme == "https") return {};
  return fmt::format("{} redirects to {}, which is not encrypted", from.text(), to.text());
}

std::string encode_component(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      out.push_back(c);
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::optional<std::string> HttpHead::field(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? std::nullopt : std::optional(found->second);
}

std::optional<HttpHead::Part> HttpHead::content_range() const {
  const auto text = field("content-range");
  if (!text || !text->starts_with("bytes ")) return std::nullopt;
  const std::string_view rest = std::string_view(*text).substr(6);
  const std::size_t dash = rest.find('-'), slash = rest.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || slash < dash) return std::nullopt;
  const auto first = number<std::uint64_t>(rest.substr(0, dash));
  const auto last = number<std::uint64_t>(rest.substr(dash + 1, slash - dash - 1));
  const std::string_view size = rest.substr(slash + 1);
  const auto whole = number<std::uint64_t>(size);
  if (!first || !last || *last < *first || (size != "*" && !whole)) return std::nullopt;
  return Part{{*first, *last}, whole};
}

std::optional<std::uint64_t> HttpHead::content_length() const {
  const auto text = field("content-length");
  return text ? number<std::uint64_t>(*text) : std::nullopt;
}

std::optional<std::chrono::seconds> HttpHead::retry_after() const {
  const auto text = field("retry-after");
  const auto seconds = text ? number<std::uint32_t>(*text) : std::nullopt;  // a date is not read
  return seconds ? std::optional(std::chrono::seconds(*seconds)) : std::nullopt;
}

struct HttpClient::Handle {
  CURL* curl = nullptr;
  char error[CURL_ERROR_SIZE] = {};

  Handle() {
    start_curl();
    curl = ::curl_easy_init();
    if (curl == nullptr) fail(ErrorCode::kFailed, "libcurl does not start");
  }
  ~Handle() { ::curl_easy_cleanup(curl); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

// What the callbacks of one request share. Nothing is thrown through libcurl: it is kept and thrown after it.
struct HttpClient::Transfer {
  Transfer(const std::function<bool(const HttpHead&)>& head_call,
           const std::function<bool(std::span<const char>)>& body_call,
           const std::function<bool()>& cancel_call, std::chrono::milliseconds longest_pause)
      : on_head(head_call), on_body(body_call), cancelled(cancel_call), stall_timeout(longest_pause) {}

  const std::function<bool(const HttpHead&)>& on_head;
  const std::function<bool(std::span<const char>)>& on_body;
  const std::function<bool()>& cancelled;
  const std::chrono::milliseconds stall_timeout;
  std::chrono::steady_clock::time_point last_byte = std::chrono::steady_clock::now();
  HttpHead head;
  std::size_t head_bytes = 0, page_bytes = 0;
  bool head_given = false, stopped = false, was_cancelled = false, stalled = false, too_long = false;
  std::exception_ptr thrown;

  template <typename Call>
  bool guarded(const Call& call) {
    try {
      if (call()) return true;
      stopped = true;
    } catch (...) {
      thrown = std::current_exception();
    }
    return false;
  }
  bool give_head() {
    if (head_given) return true;
    head_given = true;
    return guarded([&] { return on_head(head); });
  }

  static std::size_t on_header_line(char* data, std::size_t, std::size_t size, void* self) {
    auto& t = *static_cast<Transfer*>(self);
    const std::string_view line = trimmed({data, size});
    t.last_byte = std::chrono::steady_clock::now();
    t.head_bytes += size;
    if (t.head_bytes > kLargestHead) {
      t.too_long = true;
      return 0;
    }
    if (line.starts_with("HTTP/")) {  // a new head: after an interim answer, or a proxy's
      t.head.fields.clear();
      const std::size_t space = line.find(' ');
      t.head.status =
          space == std::string_view::npos ? 0 : number<long>(line.substr(space + 1, 3)).value_or(0);
    } else if (const std::size_t colon = line.find(':'); colon != std::string_view::npos) {
      t.head.fields[lower_case(line.substr(0, colon))] = trimmed(line.substr(colon + 1));
    }
    return size;
  }

  static std::size_t on_bytes(char* data, std::size_t, std::size_t size, void* self) {
    auto& t = *static_cast<Transfer*>(self);
    t.last_byte = std::chrono::steady_clock::now();
    if (t.head.status < 200 || t.head.status > 299) {
      t.page_bytes += size;
      return t.page_bytes <= kLargestPage ? size : 0;
    }
    return t.give_head() && t.guarded([&] { return t.on_body(std::span<const char>(data, size)); }) ? size
                                                                                                    : 0;
  }

  // libcurl calls this at least once a second.
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& t = *static_cast<Transfer*>(self);
    t.was_cancelled = t.was_cancelled || t.cancelled();
    t.stalled = std::chrono::steady_clock::now() - t.last_byte > t.stall_timeout;
    return t.was_cancelled || t.stalled ? 1 : 0;
  }
};

HttpClient::HttpClient(HttpOptions options, Origin hub, std::string token, std::function<bool()> cancelled)
    : options_(std::move(options)),
      hub_(std::move(hub)),
      token_(std::move(token)),
      cancelled_(std::move(cancelled)),
      handle_(std::make_unique<Handle>()) {}

HttpClient::~HttpClient() = default;

HttpResult HttpClient::get(const std::string& url, std::optional<ByteRange> range,
                           const std::function<bool(const HttpHead&)>& on_head,
                           const std::function<bool(std::span<const char>)>& on_body) {
  Url at;
  if (!at.set(url)) return {HttpEnd::kRefused, {}, "not an address: " + printable(url)};
  for (int hop = 0;; ++hop) {
    const auto origin = read_origin(at);
    if (!origin)
      return {
          HttpEnd::kRefused, {}, "a redirect leads to what is no http or https address, or holds a password"};
    Transfer transfer(on_head, on_body, cancelled_, options_.stall_timeout);
    HttpResult result = one(at.part(CURLUPART_URL), range, transfer);
    if (transfer.thrown) std::rethrow_exception(transfer.thrown);
    if (result.end != HttpEnd::kComplete || !is_redirect(result.head.status)) return result;
    if (hop == options_.redirects)
      return {HttpEnd::kRefused, result.head, fmt::format("more than {} redirects", options_.redirects)};
    const auto location = result.head.field("location");
    if (!location || !at.set(*location))
      return {HttpEnd::kRefused, result.head, "a redirect without an address to go to"};
    const auto next = read_origin(at);
    const std::string refused = next ? refused_redirect(*origin, *next) : std::string();
    if (!refused.empty()) return {HttpEnd::kRefused, result.head, refused};
  }
}

HttpResult HttpClient::one(const std::string& url, std::optional<ByteRange> range, Transfer& t) {
  CURL* c = handle_->curl;
  ::curl_easy_reset(c);  // of options; connections stay
  handle_->error[0] = '\0';
  std::unique_ptr<curl_slist, decltype(&::curl_slist_free_all)> fields(nullptr, ::curl_slist_free_all);
  if (!token_.empty() && origin_of(url) == hub_)
    fields.reset(::curl_slist_append(nullptr, ("Authorization: Bearer " + token_).c_str()));
  std::string span;
  if (range) {
    span = fmt::format("{}-{}", range->first, range->last);
    ::curl_easy_setopt(c, CURLOPT_RANGE, span.c_str());
  }
  ::curl_easy_setopt(c, CURLOPT_URL, url.c_str());
  ::curl_easy_setopt(c, CURLOPT_HTTPHEADER, fields.get());
  ::curl_easy_setopt(c, CURLOPT_USERAGENT, kUserAgent);
  ::curl_easy_setopt(c, CURLOPT_ERRORBUFFER, handle_->error);
  ::curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
  // Ranges are spread over connections: as streams of one they would share its window.
  ::curl_easy_setopt(c, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  ::curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
  ::curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, static_cast<long>(options_.connect_timeout.count()));
  ::curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L << 10);
  ::curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, &Transfer::on_header_line);
  ::curl_easy_setopt(c, CURLOPT_HEADERDATA, &t);
  ::curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, &Transfer::on_bytes);
  ::curl_easy_setopt(c, CURLOPT_WRITEDATA, &t);
  ::curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
  ::curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, &Transfer::on_progress);
  ::curl_easy_setopt(c, CURLOPT_XFERINFODATA, &t);
  if (!options_.certificates.empty()) {
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(options_.certificates, ignored);
    ::curl_easy_setopt(c, folder ? CURLOPT_CAPATH : CURLOPT_CAINFO, options_.certificates.c_str());
  }
  t.head.url = url;
  const CURLcode code = ::curl_easy_perform(c);
  HttpResult result{HttpEnd::kComplete, {}, {}};
  if (code == CURLE_OK || t.page_bytes > kLargestPage) {
    if (!is_redirect(t.head.status) && !t.give_head()) result.end = HttpEnd::kStopped;
  } else if (t.was_cancelled) {
    result.end = HttpEnd::kCancelled;
  } else if (t.stopped || t.thrown) {
    result.end = HttpEnd::kStopped;
  } else {
    result.end = is_final(code) || t.too_long ? HttpEnd::kRefused : HttpEnd::kBroken;
    if (t.too_long) {
      result.reason = "the answer's head is too long";
    } else if (t.stalled) {
      result.reason =
          fmt::format("no byte came for {:.0f} s", std::chrono::duration<double>(t.stall_timeout).count());
    } else {
      result.reason = printable(handle_->error[0] != '\0' ? handle_->error : ::curl_easy_strerror(code));
    }
  }
  result.head = std::move(t.head);
  return result;
}

}  // namespace gem::hub
