#include "hub/repository.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"

namespace gem::hub {
namespace {

constexpr std::size_t kLargestInfo = 64u << 20;  // a repository of 100,000 files has 30 MB
constexpr std::size_t kMostFiles = 200'000;
constexpr int kDeepest = 32;
constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 50;
constexpr std::chrono::seconds kLongestRetryAfter{120};

using nlohmann::json;

[[noreturn]] void not_an_answer(const std::string& finding) {
  fail(ErrorCode::kFailed, "the hub's answer is not a model's description: {}", finding);
}

json parse_bounded(std::string_view text) {
  try {
    return json::parse(text, [](int depth, json::parse_event_t, json&) {
      if (depth > kDeepest) not_an_answer(fmt::format("it is nested deeper than {}", kDeepest));
      return true;
    });
  } catch (const json::exception&) {
    not_an_answer("it is not JSON");
  }
}

const json* member(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::uint64_t> size_in(const json& object, const std::string& path) {
  const json* size = member(object, "size");
  if (size == nullptr) return std::nullopt;
  if (!size->is_number_unsigned() || size->get<std::uint64_t>() > kLargestFile)
    not_an_answer(fmt::format("the size of {} is no number of bytes", path));
  return size->get<std::uint64_t>();
}

std::string digest_in(const json& object, const char* name, std::size_t digits, const std::string& path) {
  const json* text = member(object, name);
  if (text == nullptr) return {};
  if (!text->is_string() || !is_hex(text->get_ref<const std::string&>(), digits))
    not_an_answer(fmt::format("{} of {} is not {} hexadecimal digits", name, path, digits));
  return text->get<std::string>();
}

RepoFile read_file(const json& entry) {
  if (!entry.is_object()) not_an_answer("an entry of siblings is not an object");
  const json* name = member(entry, "rfilename");
  if (name == nullptr || !name->is_string()) not_an_answer("a file has no name");
  RepoFile file;
  file.path = name->get<std::string>();
  if (!is_safe_path(file.path))
    fail(ErrorCode::kFailed, "refused: the repository names a file {:?}, which does not stay inside a folder",
         printable(file.path));
  file.size = size_in(entry, file.path);
  const json* lfs = member(entry, "lfs");
  if (lfs == nullptr) {
    file.git_sha1 = digest_in(entry, "blobId", 40, file.path);
    return file;
  }
  if (!lfs->is_object()) not_an_answer(fmt::format("lfs of {} is not an object", file.path));
  file.sha256 = digest_in(*lfs, "sha256", 64, file.path);
  const auto size = size_in(*lfs, file.path);
  if (size && file.size && *size != *file.size)
    not_an_answer(fmt::format("{} has two sizes, {} and {}", file.path, *file.size, *size));
  if (size) file.size = size;
  return file;
}

std::string one_line(const HttpResult& r) {
  return r.head.status == 0 || r.end != HttpEnd::kComplete ? r.reason
                                                           : fmt::format("status {}", r.head.status);
}

bool is_loopback(const Origin& o) {
  const bool numbers = o.host.find_first_not_of("0123456789.") == std::string::npos;  // not 127.evil.example
  return o.host == "localhost" || o.host == "[::1]" || (numbers && o.host.starts_with("127."));
}

}  // namespace

RepoInfo parse_repo_info(std::string_view text) {
  const json root = parse_bounded(text);
  if (!root.is_object()) not_an_answer("it is not an object");
  RepoInfo info;
  const json* sha = member(root, "sha");
  if (sha == nullptr || !sha->is_string() || !is_hex(sha->get_ref<const std::string&>(), 40))
    not_an_answer("sha is no commit");
  info.commit = sha->get<std::string>();
  const json* siblings = member(root, "siblings");
  if (siblings == nullptr || !siblings->is_array()) not_an_answer("siblings is not an array");
  if (siblings->size() > kMostFiles) not_an_answer(fmt::format("it names more than {} files", kMostFiles));
  std::set<std::string> seen;
  for (const json& entry : *siblings) {
    info.files.push_back(read_file(entry));
    if (!seen.insert(info.files.back().path).second)
      not_an_answer(fmt::format("it names {} twice", info.files.back().path));
  }
  return info;
}

std::string token_for(const Settings& settings) {
  const Origin origin = origin_of(settings.endpoint);
  return origin.scheme == "https" || is_loopback(origin) ? settings.token : std::string();
}

Hub::Hub(const Settings& settings, HttpOptions http, RetryOptions retry, std::function<bool()> cancelled,
         Note note)
    : origin_(origin_of(settings.endpoint)),
      endpoint_(settings.endpoint),
      has_token_(!token_for(settings).empty()),
      retry_(retry),
      cancelled_(std::move(cancelled)),
      note_(std::move(note)),
      http_(std::move(http), origin_, token_for(settings), cancelled_) {}

bool Hub::worth_another_try(long status) {
  return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504;
}

void Hub::wait(int tried, const HttpHead& head, const std::string& reason) const {
  if (cancelled_()) fail(ErrorCode::kCancelled, "interrupted");
  if (tried >= retry_.tries) fail(ErrorCode::kFailed, "{} ({} tries)", reason, tried);
  auto pause = std::min(retry_.longest_wait, retry_.first_wait * (1 << std::min(tried - 1, 20)));
  if (const auto asked = head.retry_after()) {
    if (*asked > kLongestRetryAfter)
      fail(ErrorCode::kFailed, "{}; it asks to come back in {} s", reason, asked->count());
    pause = std::max(pause, std::chrono::duration_cast<std::chrono::milliseconds>(*asked));
  }
  note_(fmt::format("{}; trying again in {:.1f} s", reason, std::chrono::duration<double>(pause).count()));
  const auto until = std::chrono::steady_clock::now() + pause;
  while (std::chrono::steady_clock::now() < until) {
    if (cancelled_()) fail(ErrorCode::kCancelled, "interrupted");
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(std::chrono::milliseconds(50),
                                                                   until - std::chrono::steady_clock::now()));
  }
}

void Hub::refuse(const HttpHead& head, const std::string& what) const {
  const std::string code = head.field("x-error-code").value_or("");
  const std::string token =
      has_token_ ? "the token was not accepted for it" : "no token was sent: set HF_TOKEN";
  if (code == "GatedRepo")
    fail(ErrorCode::kFailed,
         "{} is gated: accept its terms on its page at {}, then use a token of that account ({})", what,
         origin_.text(), token);
  if (code == "RevisionNotFound") fail(ErrorCode::kFailed, "{}: there is no such revision", what);
  if (code == "EntryNotFound") fail(ErrorCode::kFailed, "{}: there is no such file", what);
  if (head.status == 401 || head.status == 403)
    fail(ErrorCode::kFailed, "{}: there is no such repository at {}, or it is private or gated ({})", what,
         origin_.text(), token);
  if (head.status == 404) fail(ErrorCode::kFailed, "{}: there is no such thing at {}", what, origin_.text());
  fail(ErrorCode::kFailed, "{}: {} answers with status {}", what, origin_of(head.url).text(), head.status);
}

RepoInfo Hub::info(const RepoRef& ref) {
  const std::string url = fmt::format("{}/api/models/{}/{}/revision/{}?blobs=true", endpoint_, ref.org,
                                      ref.name, encode_component(ref.revision));
  const std::string what = ref.id() + (ref.revision == "main" ? "" : "@" + ref.revision);
  for (int tried = 1;; ++tried) {
    std::string text;
    bool too_long = false;
    const HttpResult r = http_.get(
        url, std::nullopt, [](const HttpHead&) { return true; },
        [&](std::span<const char> bytes) {
          too_long = text.size() + bytes.size() > kLargestInfo;
          if (!too_long) text.append(bytes.data(), bytes.size());
          return !too_long;
        });
    if (r.end == HttpEnd::kCancelled) fail(ErrorCode::kCancelled, "interrupted");
    if (too_long) not_an_answer(fmt::format("it is longer than {} MB", kLargestInfo >> 20));
    const std::string reason = fmt::format("cannot ask {} about {}: {}", origin_.text(), what, one_line(r));
    if (r.end == HttpEnd::kRefused) fail(ErrorCode::kFailed, "{}", reason);
    if (r.end == HttpEnd::kComplete && r.head.status >= 200 && r.head.status <= 299)
      return parse_repo_info(text);
    if (r.end == HttpEnd::kComplete && !worth_another_try(r.head.status)) refuse(r.head, what);
    wait(tried, r.head, reason);
  }
}

std::string Hub::file_url(const RepoRef& ref, const std::string& commit, const std::string& path) const {
  std::string url = fmt::format("{}/{}/{}/resolve/{}", endpoint_, ref.org, ref.name, commit);
  for (const std::string_view part : split_path(path)) url += "/" + encode_component(part);
  return url;
}

}  // namespace gem::hub
