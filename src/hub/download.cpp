#include "hub/download.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "hub/growing_file.h"

namespace gem::hub {
namespace {

using Clock = std::chrono::steady_clock;
using Progress = std::function<void(const DownloadState&)>;

constexpr std::uint64_t kEnoughProgress = 64 << 10;  // bytes for which tries are counted anew
constexpr std::uint64_t kMostWaiting = 256 << 20;    // bytes received, not yet in their turn
constexpr std::chrono::milliseconds kTick{100};      // between reports

// Joined before what they use goes away.
class Threads {
 public:
  ~Threads() { join(); }
  template <typename Work>
  void start(Work work) {
    threads_.emplace_back(std::move(work));
  }
  void join() {
    for (std::thread& t : threads_)
      if (t.joinable()) t.join();
  }

 private:
  std::vector<std::thread> threads_;
};

std::string reason_of(const HttpResult& r) {
  if (!r.reason.empty()) return r.reason;
  return fmt::format("{} answers with status {}", origin_of(r.head.url).text(), r.head.status);
}

bool is_success(long status) {
  return status >= 200 && status <= 299;
}

// The rest of a file in ranges, each on whatever connection is free, put together in order: so the file is a
// beginning at every moment, and the digest needs no second reading.
class RangedFetch {
 public:
  RangedFetch(const Download& what, const DownloadOptions& options, const HubMaker& make_hub,
              GrowingFile& file, Digest& digest)
      : what_(what),
        options_(options),
        make_hub_(make_hub),
        file_(file),
        digest_(digest),
        next_(file.size()),
        written_(file.size()),
        received_(file.size()) {}

  // Whether the hub gives ranges; what has come before it turned out not to stays in the file.
  bool run(const Progress& progress) {
    const std::uint64_t ranges = (what_.size - next_ + options_.smallest_range - 1) / options_.smallest_range;
    const auto connections = static_cast<unsigned>(std::min<std::uint64_t>(options_.connections, ranges));
    {
      Threads workers;
      // Declared after them: whatever ends this block tells them to stop first.
      struct Stop {
        RangedFetch& fetch;
        ~Stop() { fetch.stop(nullptr); }
      } stop_first{*this};
      for (unsigned i = 0; i < connections; ++i) workers.start([this] { work(); });
      while (put_next(progress)) {
      }
    }
    put_ready();  // what came before the end, of the piece in work too
    if (ignored_) return false;
    if (error_) std::rethrow_exception(error_);
    return true;
  }

 private:
  void stop(std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    if (!error_) error_ = std::move(error);
    changed_.notify_all();
  }

  // Waits for the next piece and appends it; whether there are more to wait for.
  bool put_next(const Progress& progress) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kTick, [&] { return stopped_ || ready_.contains(written_); });
    lock.unlock();
    put_ready();
    progress({DownloadState::Phase::kReceiving, std::max(written_, received_.load())});
    lock.lock();
    return !stopped_ && written_ < what_.size;
  }

  void put_ready() {
    while (true) {
      std::unique_lock lock(mutex_);
      const auto piece = ready_.find(written_);
      if (piece == ready_.end()) return;
      const std::vector<char> bytes = std::move(piece->second);
      ready_.erase(piece);
      lock.unlock();
      file_.append(bytes);
      digest_.update(bytes);
      lock.lock();
      written_ += bytes.size();
      changed_.notify_all();
    }
  }

  void work() {
    try {
      const std::unique_ptr<Hub> hub = make_hub_([this] { return stopped_.load(); });
      double rate = 0;  // bytes/s
      while (const auto range = claim(rate)) {
        const auto began = Clock::now();
        get_range(*hub, *range);
        rate = static_cast<double>(range->last - range->first + 1) /
               std::max(1e-6, std::chrono::duration<double>(Clock::now() - began).count());
      }
    } catch (...) {
      stop(std::current_exception());
    }
  }

  // The next range to get, of about a second; nothing when there are no more or the fetch ends.
  std::optional<ByteRange> claim(double rate) {
    const std::uint64_t window = std::min(kMostWaiting, 2 * options_.connections * options_.largest_range);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || next_ - written_ < window; });
    if (stopped_ || next_ == what_.size) return std::nullopt;
    const double length = std::clamp(rate, static_cast<double>(options_.smallest_range),
                                     static_cast<double>(options_.largest_range));
    const std::uint64_t first = next_;
    next_ = std::min(what_.size, first + static_cast<std::uint64_t>(length));
    return ByteRange{first, next_ - 1};
  }

  void deliver(std::uint64_t first, std::vector<char> bytes) {
    const std::scoped_lock lock(mutex_);
    if (!bytes.empty()) ready_.emplace(first, std::move(bytes));
    changed_.notify_all();
  }

  // Gets a range and delivers it; of one that ends in an error the beginning is delivered, too.
  void get_range(Hub& hub, const ByteRange& range) {
    std::vector<char> bytes;
    bytes.reserve(range.last - range.first + 1);
    try {
      fill(hub, range, bytes);
    } catch (...) {
      deliver(range.first, std::move(bytes));
      throw;
    }
    deliver(range.first, std::move(bytes));
  }

  void fill(Hub& hub, const ByteRange& range, std::vector<char>& bytes) {
    const std::uint64_t length = range.last - range.first + 1;
    std::string& direct = direct_url();
    for (int tried = 0; bytes.size() < length;) {
      const std::size_t before = bytes.size();
      const ByteRange rest{range.first + before, range.last};
      std::string wrong;
      const HttpResult r = hub.http().get(
          direct.empty() ? what_.url : direct, rest,
          [&](const HttpHead& head) { return fits(head, rest, wrong); },
          [&](std::span<const char> more) {
            if (bytes.size() + more.size() > length) {
              wrong = "sends more bytes than it was asked for";
              return false;
            }
            bytes.insert(bytes.end(), more.begin(), more.end());
            received_ += more.size();
            return true;
          });
      if (r.end == HttpEnd::kCancelled) fail(ErrorCode::kCancelled, "interrupted");
      if (ignored_) fail(ErrorCode::kFailed, "the hub ignores ranges");
      if (!wrong.empty()) {  // none of it is trusted
        received_ -= bytes.size() - before;
        bytes.resize(before);
      }
      if (bytes.size() == length) {
        if (r.end == HttpEnd::kComplete && !(origin_of(r.head.url) == hub.origin())) direct = r.head.url;
        return;
      }
      if (bytes.size() - before >= kEnoughProgress) tried = 0;
      // An address that a redirect led to is good for a while only.
      const bool stale = !direct.empty();
      direct.clear();
      std::string reason =
          wrong.empty() ? reason_of(r) : fmt::format("{} {}", origin_of(r.head.url).text(), wrong);
      if (wrong.empty() && is_success(r.head.status) && r.end == HttpEnd::kComplete)
        reason = "the connection ended early";
      reason = fmt::format("{}: {}", what_.name, reason);
      if (r.end == HttpEnd::kRefused) fail(ErrorCode::kFailed, "{}", reason);
      if (r.end == HttpEnd::kComplete && !is_success(r.head.status) &&
          !Hub::worth_another_try(r.head.status)) {
        if (stale && tried++ == 0) continue;
        if (r.head.status == 416)
          fail(ErrorCode::kFailed, "{}: the hub has less of it than the {} bytes that it lists", what_.name,
               what_.size);
        hub.refuse(r.head, what_.name);
      }
      hub.wait(++tried, r.head, reason);
    }
  }

  // Whether an answer's body is the range that was asked for.
  bool fits(const HttpHead& head, const ByteRange& asked, std::string& wrong) {
    if (!is_success(head.status)) return true;  // without a body, here
    if (head.status == 200) {
      ignored_ = true;
      return false;
    }
    const auto part = head.content_range();
    if (head.status != 206 || !part || part->range.first != asked.first || part->range.last != asked.last) {
      wrong = "answers with another range than it was asked for";
    } else if (part->whole && *part->whole != what_.size) {
      wrong = fmt::format("says that the file has {} bytes, and the hub lists {}", *part->whole, what_.size);
    }
    return wrong.empty();
  }

  // Where the hub's redirect led this thread last: most ranges need not ask the hub.
  std::string& direct_url() {
    const std::scoped_lock lock(mutex_);
    return direct_[std::this_thread::get_id()];
  }

  const Download& what_;
  const DownloadOptions& options_;
  const HubMaker& make_hub_;
  GrowingFile& file_;
  Digest& digest_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_;     // first byte that nobody gets yet
  std::uint64_t written_;  // bytes in the file
  std::map<std::uint64_t, std::vector<char>> ready_;
  std::map<std::thread::id, std::string> direct_;
  std::exception_ptr error_;
  std::atomic<bool> stopped_{false}, ignored_{false};
  std::atomic<std::uint64_t> received_;
};

// The whole file in one answer, from its first byte: small files, and hubs without ranges.
void fetch_whole(const Download& what, Hub& hub, GrowingFile& file, Digest& digest,
                 const Progress& progress) {
  for (int tried = 1;; ++tried) {
    file.truncate(0);
    digest = Digest(what.digest_kind, what.size);
    std::string wrong;
    const HttpResult r = hub.http().get(
        what.url, std::nullopt,
        [&](const HttpHead& head) {
          const auto length = head.content_length();
          if (is_success(head.status) && length && *length != what.size)
            wrong = fmt::format("the hub lists {} bytes and sends {}", what.size, *length);
          if (is_success(head.status) && head.status != 200)
            wrong = fmt::format("the hub answers with status {}", head.status);
          return wrong.empty();
        },
        [&](std::span<const char> bytes) {
          if (file.size() + bytes.size() > what.size) {
            wrong = fmt::format("the hub lists {} bytes and sends more", what.size);
            return false;
          }
          file.append(bytes);
          digest.update(bytes);
          progress({DownloadState::Phase::kReceiving, file.size()});
          return true;
        });
    if (r.end == HttpEnd::kCancelled) fail(ErrorCode::kCancelled, "interrupted");
    if (!wrong.empty()) {
      file.remove();
      fail(ErrorCode::kFailed, "{}: {}; nothing of it was kept", what.name, wrong);
    }
    std::string reason = fmt::format("{}: {}", what.name, reason_of(r));
    if (r.end == HttpEnd::kRefused) fail(ErrorCode::kFailed, "{}", reason);
    if (r.end == HttpEnd::kComplete && is_success(r.head.status)) {
      if (file.size() == what.size) return;
      reason =
          fmt::format("{}: the connection ended after {} of {} bytes", what.name, file.size(), what.size);
    } else if (r.end == HttpEnd::kComplete && !Hub::worth_another_try(r.head.status)) {
      hub.refuse(r.head, what.name);
    }
    hub.wait(tried, r.head, reason);
  }
}

}  // namespace

void download(const Download& what, const DownloadOptions& options, const HubMaker& make_hub,
              const Progress& progress) {
  GrowingFile file(what.incomplete);
  const std::unique_ptr<Hub> hub = make_hub([] { return false; });
  for (bool again = false;; again = true) {
    if (file.size() > what.size) file.truncate(0);  // not the beginning of this
    const std::uint64_t resumed = file.size();
    Digest digest(what.digest_kind, what.size);
    file.read_into(
        digest, [&] { return hub->cancelled(); },
        [&](std::uint64_t done) {
          progress({DownloadState::Phase::kChecking, done});
        });
    file.require_space(what.size - resumed);
    const bool in_ranges = resumed > 0 || what.size > options.smallest_range;
    if (resumed < what.size || what.size == 0) {
      if (!in_ranges || !RangedFetch(what, options, make_hub, file, digest).run(progress)) {
        if (in_ranges)
          hub->note(fmt::format("{}: the hub gives no ranges; getting it in one piece", what.name));
        fetch_whole(what, *hub, file, digest, progress);
      }
    }
    const std::string found = digest.hex();
    if (found == what.digest) return file.sync();
    if (resumed == 0 || again) {
      file.remove();
      fail(ErrorCode::kFailed,
           "{}: what came is not what the hub lists (digest {}, expected {}); nothing of it was kept",
           what.name, found, what.digest);
    }
    hub->note(fmt::format("{}: what was here of it is not its beginning; starting again", what.name));
    file.truncate(0);
  }
}

std::string digest_of_file(const std::filesystem::path& path, DigestKind kind, std::uint64_t size,
                           const std::function<bool()>& cancelled,
                           const std::function<void(std::uint64_t done)>& progress) {
  struct File {
    int fd;
    ~File() {
      if (fd >= 0) ::close(fd);
    }
  } file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail(ErrorCode::kFailed, "cannot read {}: {}", path.string(), std::strerror(errno));
  Digest digest(kind, size);
  read_file_into(digest, file.fd, path, cancelled, progress);
  return digest.hex();
}

}  // namespace gem::hub
