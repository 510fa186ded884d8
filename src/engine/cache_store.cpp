#include "engine/cache_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <string_view>
#include <utility>

#include "base/digest.h"
#include "base/error.h"
#include "base/output_file.h"

namespace gem {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHexDigits = 64;
constexpr std::string_view kSuffix = ".gemstate";
constexpr const char* kLock = "lock";
constexpr std::size_t kPiece = 4u << 20;  // bytes between two looks at the time

struct Head {
  std::array<char, 8> magic = {'g', 'e', 'm', 's', 't', 'a', 't', 'e'};
  std::uint32_t version = kVersion;
  std::uint32_t positions = 0;
  std::array<char, kHexDigits> identity{};
  std::uint32_t first_ring = 0;
  std::uint32_t zero = 0;
  std::uint64_t fixed_row = 0, ring_row = 0;
};
static_assert(sizeof(Head) == 104);

// Bytes of the rows, and of the whole file; nothing when that cannot be.
struct Sizes {
  std::uint64_t rows = 0, file = 0;
};
std::optional<Sizes> sizes_of(const Head& head) {
  std::uint64_t fixed = 0;
  std::uint64_t rings = 0;
  Sizes sizes;
  if (head.first_ring > head.positions ||
      __builtin_mul_overflow(std::uint64_t{head.positions}, head.fixed_row, &fixed) ||
      __builtin_mul_overflow(std::uint64_t{head.positions - head.first_ring}, head.ring_row, &rings) ||
      __builtin_add_overflow(fixed, rings, &sizes.rows) ||
      __builtin_add_overflow(
          sizes.rows, sizeof(Head) + std::uint64_t{head.positions} * sizeof(std::int32_t) + 2 * kHexDigits,
          &sizes.file))
    return std::nullopt;
  return sizes;
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}
// <16 hex digits>-<32 hex digits>.gemstate
bool is_state_name(std::string_view name) {
  return name.size() == 16 + 1 + 32 + kSuffix.size() && is_hex(name.substr(0, 16)) && name[16] == '-' &&
         is_hex(name.substr(17, 32)) && name.ends_with(kSuffix);
}
// What a process that ended while it wrote has left.
bool is_leftover(std::string_view name) {
  const std::size_t end = name.find(".part-");
  return end != std::string_view::npos && is_state_name(name.substr(0, end));
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

// A state's file being read. Its functions return what is wrong, or null.
class CacheStore::Reader {
 public:
  explicit Reader(const std::string& path)
      // A link is not followed, a pipe not waited for.
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {}
  ~Reader() {
    if (fd_ >= 0) ::close(fd_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Head and tokens, which are this identity's and as long as the file; `tokens` stay empty where the state
  // is good but longer than the caches of `plan`.
  const char* begin(const std::string& identity, const KvPlan& plan) {
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return "cannot be read";
    if (!read(std::as_writable_bytes(std::span(&head, 1)))) return "is cut off";
    const Head good;
    if (head.magic != good.magic || head.version != good.version || head.zero != 0 ||
        std::string_view(head.identity.data(), kHexDigits) != identity)
      return "is not what its name says";
    const std::optional<Sizes> sizes = sizes_of(head);
    if (!sizes || sizes->file != static_cast<std::uint64_t>(status.st_size))
      return "has another length than it says";
    row_bytes = sizes->rows;
    if (head.positions > plan.context) return nullptr;
    // What KvCache::finish_restore() and the next row ask for.
    const std::uint32_t ring = plan.ring();
    const std::uint32_t in_rings = head.positions - head.first_ring;
    const bool fits = ring == 0 ? in_rings == 0
                                : in_rings > 0 && in_rings <= ring &&
                                      reaches(plan.window, head.positions, head.first_ring, head.positions);
    if (head.positions == 0 || !fits) return "has rows that no cache has";
    tokens.resize(head.positions);
    if (!read(std::as_writable_bytes(std::span(tokens)))) return "is cut off";
    const std::string computed = of_head_.hex();
    past_head_ = true;
    Hex stored{};
    if (!read(std::as_writable_bytes(std::span(stored)))) return "is cut off";
    return computed == std::string_view(stored.data(), stored.size()) ? nullptr : "is damaged";
  }
  bool read(std::span<std::byte> out) {
    if (!read_all(out)) return false;
    if (!past_head_) of_head_.update(std::span<const std::byte>(out));
    of_file_.update(std::span<const std::byte>(out));
    return true;
  }
  const char* end() {
    Hex stored{};
    if (!read_all(std::as_writable_bytes(std::span(stored)))) return "is cut off";
    return of_file_.hex() == std::string_view(stored.data(), stored.size()) ? nullptr : "is damaged";
  }

  Head head;
  std::uint64_t row_bytes = 0;
  std::vector<std::int32_t> tokens;

 private:
  using Hex = std::array<char, kHexDigits>;
  bool read_all(std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t n = ::read(fd_, out.data(), std::min(out.size(), kPiece));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      out = out.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }

  int fd_;
  Digest of_head_{DigestKind::kSha256, 0}, of_file_{DigestKind::kSha256, 0};
  bool past_head_ = false;
};

CacheStore::CacheStore(CacheStoreOptions options) : options_(std::move(options)) {
  if (options_.identity.size() != kHexDigits || !is_hex(options_.identity))
    fail(ErrorCode::kFailed, "a prompt cache's identity has {} hex digits, not '{}'", kHexDigits,
         options_.identity);
  open_folder();
  try {
    scan();
    const std::lock_guard lock(mutex_);
    struct statvfs disk {};
    constexpr std::uint64_t kMost = std::uint64_t{16} << 30;
    if (options_.budget) {
      budget_ = *options_.budget;
    } else if (::statvfs(options_.folder.c_str(), &disk) == 0) {
      budget_ = std::min(kMost, bytes_ + std::uint64_t{disk.f_bavail} * disk.f_frsize / 2);
    }
    make_room(0);
    writer_ = std::thread([this] { serve_writes(); });
    reader_ = std::thread([this] { serve_reads(); });
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

CacheStore::~CacheStore() {
  {
    const std::lock_guard lock(mutex_);
    if (!stop_by_) stop_by_ = Clock::now() + options_.flush;
    ending_ = true;
    changed_.notify_all();
    more_to_read_.notify_all();
  }
  reader_.join();
  writer_.join();
  ::close(lock_);
}

void CacheStore::open_folder() {
  const std::string& folder = options_.folder;
  std::error_code error;
  if (const fs::path above = fs::path(folder).lexically_normal().parent_path(); !above.empty())
    fs::create_directories(above, error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    fail(ErrorCode::kUsage, "cannot make the folder {} for kept prompts: {}", folder, std::strerror(errno));
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0)
    fail(ErrorCode::kUsage, "cannot use {} for kept prompts: {}", folder, std::strerror(errno));
  if (!S_ISDIR(status.st_mode))
    fail(ErrorCode::kUsage, "cannot use {} for kept prompts: it is not a folder", folder);
  if ((status.st_mode & 077) != 0) {
    // What was made for this may be closed to others; what holds other things is not ours to close.
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (name != kLock && !is_state_name(name) && !is_leftover(name))
        fail(ErrorCode::kUsage,
             "{} is open to others and holds other files; kept prompts need a folder of their own, or one "
             "that is the user's alone (chmod 700)",
             folder);
    }
    if (::chmod(folder.c_str(), 0700) != 0)
      fail(ErrorCode::kUsage, "{} is open to others, and cannot be closed to them: {}", folder,
           std::strerror(errno));
  }
  lock_ = ::open(path(kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0)
    fail(ErrorCode::kUsage, "cannot write to {} for kept prompts: {}", folder, std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(lock_);
    if (reason == EWOULDBLOCK)
      fail(ErrorCode::kUsage, "{} is in use by another process; each needs a folder of its own", folder);
    fail(ErrorCode::kUsage, "cannot lock {}: {}", path(kLock), std::strerror(reason));
  }
}

void CacheStore::scan() {
  struct Found {
    std::string name;
    timespec used{};
    std::uint64_t size = 0;
  };
  std::vector<Found> found;
  std::uint64_t others = 0;
  std::uint64_t foreign_bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(options_.folder, error)) {
    const std::string name = entry.path().filename().string();
    struct stat status {};
    if (name == kLock) continue;
    if (::lstat(path(name).c_str(), &status) != 0) continue;
    const bool file = S_ISREG(status.st_mode);
    if (file && is_leftover(name)) {
      ::unlink(path(name).c_str());
    } else if (file && is_state_name(name)) {
      found.push_back({name, status.st_mtim, static_cast<std::uint64_t>(status.st_size)});
    } else {
      ++others;
    }
  }
  if (error)
    fail(ErrorCode::kUsage, "cannot look into {} for kept prompts: {}", options_.folder, error.message());
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const Found& file : found) {
    Entry entry;
    entry.bytes = file.size;
    entry.used = ++uses_;
    if (file.name.starts_with(options_.identity.substr(0, 16))) {
      Reader reader(path(file.name));
      if (const char* const wrong = reader.begin(options_.identity, options_.plan)) {
        reject(file.name, wrong);
        continue;
      }
      entry.tokens = std::move(reader.tokens);
      entry.first_ring = reader.head.first_ring;
      entry.rows = reader.row_bytes;
    }
    const std::lock_guard lock(mutex_);
    bytes_ += entry.bytes;
    if (entry.tokens.empty()) {
      ++counts_.foreign;
      foreign_bytes += entry.bytes;
    }
    files_.emplace(file.name, std::move(entry));
  }
  if (counts_.foreign > 0)
    log(
        fmt::format("{}: {} kept prompts ({} bytes) are of other models, programs or options; they are not "
                    "used and leave when their room is needed",
                    options_.folder, counts_.foreign, foreign_bytes));
  if (others > 0)
    log(fmt::format("{}: {} files are no kept prompts and are left alone", options_.folder, others));
}

std::string CacheStore::name_of(std::span<const std::int32_t> tokens) const {
  Digest digest(DigestKind::kSha256, 0);
  digest.update(std::as_bytes(tokens));
  return options_.identity.substr(0, 16) + "-" + digest.hex().substr(0, 32) + std::string(kSuffix);
}

void CacheStore::touch(const std::string& name, Entry& entry) {
  entry.used = ++uses_;
  ::utimensat(AT_FDCWD, path(name).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);  // for the order after a restart
}

void CacheStore::forget(const std::string& name) {
  const auto file = files_.find(name);
  if (file == files_.end()) return;
  ::unlink(path(name).c_str());
  bytes_ -= file->second.bytes;
  if (file->second.tokens.empty()) --counts_.foreign;
  files_.erase(file);
}

bool CacheStore::make_room(std::uint64_t bytes) {
  if (bytes > budget_) return false;
  while (bytes_ > budget_ - bytes || files_.size() + (bytes > 0 ? 1 : 0) > kMostFiles) {
    const auto oldest = std::min_element(files_.begin(), files_.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    });
    forget(std::string(oldest->first));
    ++counts_.evicted;
  }
  return true;
}

void CacheStore::reject(const std::string& name, const char* why) {
  {
    const std::lock_guard lock(mutex_);
    forget(name);
    ++counts_.rejected;
  }
  ::unlink(path(name).c_str());
  log(fmt::format("kept prompt {} {}: removed", path(name), why));
}

void CacheStore::put(std::shared_ptr<const KeptPrompt> state, bool at_once) {
  const std::string name = name_of(state->tokens);
  const std::lock_guard lock(mutex_);
  if (stop_by_) return;
  if (const auto file = files_.find(name); file != files_.end()) return touch(name, file->second);
  // The conversation has grown: what it was goes, as far as it has not been written.
  std::erase_if(waiting_, [&](const Waiting& w) {
    return common_tokens(w.state->tokens, state->tokens) == w.state->length();
  });
  if (waiting_.size() == kMostWaiting) {
    waiting_.erase(waiting_.begin());
    ++counts_.skipped;
  }
  waiting_.push_back({std::move(state), Clock::now() + (at_once ? 0ms : options_.settle)});
  changed_.notify_all();
}

void CacheStore::withdraw(const KeptPrompt& state) {
  const std::lock_guard lock(mutex_);
  counts_.skipped += std::erase_if(waiting_, [&](const Waiting& w) { return w.state.get() == &state; });
}

std::uint64_t CacheStore::writing() const {
  const std::lock_guard lock(mutex_);
  if (writing_ == nullptr) return 0;
  std::uint64_t bytes = writing_->rings != nullptr ? writing_->rings->size() : 0;
  for (const auto& page : writing_->fixed) bytes += page->size();
  return bytes;
}

void CacheStore::flush() {
  std::unique_lock lock(mutex_);
  flushing_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return (waiting_.empty() && writing_ == nullptr) || stop_by_; });
}

void CacheStore::abandon() {
  const std::lock_guard lock(mutex_);
  stop_by_ = Clock::now();
  changed_.notify_all();
}

bool CacheStore::hurried() const {
  const std::lock_guard lock(mutex_);
  return stop_by_ && Clock::now() >= *stop_by_;
}

void CacheStore::serve_writes() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto now = Clock::now();
    if (stop_by_ && now >= *stop_by_) {
      counts_.skipped += waiting_.size();
      waiting_.clear();
    }
    if (waiting_.empty()) {
      flushing_ = false;
      changed_.notify_all();
      if (stop_by_) return;
      changed_.wait(lock);
      continue;
    }
    const auto first = std::min_element(waiting_.begin(), waiting_.end(),
                                        [](const Waiting& x, const Waiting& y) { return x.due < y.due; });
    if (!flushing_ && !stop_by_ && now < first->due) {
      const auto due = first->due;
      changed_.wait_until(lock, due);
      continue;
    }
    writing_ = std::move(first->state);
    waiting_.erase(first);
    const std::shared_ptr<const KeptPrompt> state = writing_;
    lock.unlock();
    std::string wrong;
    try {
      write(*state);
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    lock.lock();
    writing_.reset();
    if (!wrong.empty()) {
      ++counts_.skipped;
      // Once until it goes well again: a full disk would fill the log as well.
      if (!std::exchange(warned_, true)) {
        lock.unlock();
        log(fmt::format("a prompt could not be kept on disk: {}", wrong));
        lock.lock();
      }
    }
  }
}

void CacheStore::write(const KeptPrompt& state) {
  Head head;
  head.positions = state.length();
  std::copy(options_.identity.begin(), options_.identity.end(), head.identity.begin());
  head.first_ring = state.first_ring;
  head.fixed_row =
      state.fixed.empty() ? 0 : state.fixed.front()->size() / std::min(KeptPrompt::kPage, state.length());
  head.ring_row = state.rings != nullptr ? state.rings->size() / (state.length() - state.first_ring) : 0;
  const std::optional<Sizes> sizes = sizes_of(head);
  if (!sizes) fail(ErrorCode::kFailed, "a state of {} positions has no size", head.positions);
  const std::string name = name_of(state.tokens);
  {
    const std::lock_guard lock(mutex_);
    if (const auto file = files_.find(name); file != files_.end()) return touch(name, file->second);
    if (!make_room(sizes->file))
      fail(ErrorCode::kTooLarge, "it takes {} bytes, {} are allowed in all", sizes->file, budget_);
  }
  OutputFile out(path(name), 0600);
  Digest of_head(DigestKind::kSha256, 0);
  Digest of_file(DigestKind::kSha256, 0);
  bool given_up = false;
  const auto put_bytes = [&](std::span<const std::byte> bytes) {
    while (!bytes.empty() && !given_up) {
      const std::span<const std::byte> piece = bytes.first(std::min(bytes.size(), kPiece));
      bytes = bytes.subspan(piece.size());
      of_file.update(piece);
      out.write(piece);
      given_up = hurried();
    }
  };
  const auto put_text = [&](const std::string& text) { put_bytes(std::as_bytes(std::span(text))); };
  of_head.update(bytes_of(head));
  of_head.update(std::as_bytes(std::span(state.tokens)));
  put_bytes(bytes_of(head));
  put_bytes(std::as_bytes(std::span(state.tokens)));
  put_text(of_head.hex());
  for (const auto& page : state.fixed) put_bytes(page->bytes());
  if (state.rings != nullptr) put_bytes(state.rings->bytes());
  if (given_up) {
    const std::lock_guard lock(mutex_);
    ++counts_.skipped;
    return;
  }
  out.write(of_file.hex());
  out.commit();

  const std::lock_guard lock(mutex_);
  warned_ = false;
  ++counts_.written;
  bytes_ += out.written();
  files_[name] = Entry{.tokens = state.tokens,
                       .first_ring = state.first_ring,
                       .rows = sizes->rows,
                       .bytes = out.written(),
                       .used = ++uses_};
}

std::optional<CacheStore::Match> CacheStore::find(std::span<const std::int32_t> prompt, std::uint32_t have,
                                                  std::uint64_t room) const {
  std::optional<Match> best;
  if (prompt.empty()) return best;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : files_) {
    const std::uint32_t length = common_tokens(entry.tokens, prompt.first(prompt.size() - 1));
    const auto positions = static_cast<std::uint32_t>(entry.tokens.size());
    if (length <= have || length - have < std::max(kLeastGain, positions / 8)) continue;
    if (entry.rows > room || (best && length <= best->length)) continue;
    if (reaches(options_.plan.window, positions, entry.first_ring, length))
      best = Match{name, length, entry.rows};
  }
  return best;
}

std::shared_ptr<const CacheStore::Load> CacheStore::load(const Match& match, std::size_t fixed_row,
                                                         std::size_t ring_row, const KeptRows::Sum& sum) {
  auto state = std::make_shared<KeptPrompt>();
  state->plan = options_.plan;
  {
    const std::lock_guard lock(mutex_);
    for (const Reading& r : reading_)
      if (r.file == match.file) return r.load;
    const auto file = files_.find(match.file);
    if (file == files_.end()) return nullptr;
    state->tokens = file->second.tokens;
    state->first_ring = file->second.first_ring;
  }
  Reading next{match.file, state, {}, fixed_row, ring_row, std::make_shared<Load>()};
  const auto rows = [&](std::size_t bytes) {
    auto memory = std::make_shared<KeptRows>(bytes, sum);
    next.rows.emplace_back(memory->data(), bytes);
    return memory;
  };
  const std::uint32_t length = state->length();
  for (std::uint32_t first = 0; first < length; first += KeptPrompt::kPage)
    state->fixed.push_back(rows(std::min(KeptPrompt::kPage, length - first) * fixed_row));
  if (state->first_ring < length) state->rings = rows((length - state->first_ring) * ring_row);
  const std::lock_guard lock(mutex_);
  more_to_read_.notify_all();
  return reading_.emplace_back(std::move(next)).load;
}

void CacheStore::on_loaded(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  on_loaded_ = std::move(call);
}

void CacheStore::serve_reads() {
  std::unique_lock lock(mutex_);
  for (;;) {
    more_to_read_.wait(lock, [&] { return ending_ || !reading_.empty(); });
    if (reading_.empty()) return;
    const Reading& first = reading_.front();  // others are only added behind it
    lock.unlock();
    if (options_.before_load) options_.before_load();
    const bool good = read(first);
    lock.lock();
    Reading done = std::move(reading_.front());
    reading_.pop_front();
    if (good) {
      ++counts_.loaded;
      if (const auto file = files_.find(done.file); file != files_.end()) touch(done.file, file->second);
      done.load->state_ = done.state;
    }
    const std::function<void()> call = on_loaded_;
    lock.unlock();
    const std::shared_ptr<Load> load = std::move(done.load);
    done = {};  // what could not be read is not in memory any more when that is known
    load->done_ = true;
    load->done_.notify_all();
    if (call) call();
    lock.lock();
  }
}

// False also at the end, when nobody wants it any more.
bool CacheStore::read(const Reading& what) {
  Reader reader(path(what.file));
  const char* wrong = nullptr;
  try {
    wrong = reader.begin(options_.identity, options_.plan);
  } catch (const std::bad_alloc&) {
    wrong = "cannot be read";
  }
  if (wrong == nullptr &&
      (reader.tokens != what.state->tokens || reader.head.first_ring != what.state->first_ring ||
       reader.head.fixed_row != what.fixed_row || reader.head.ring_row != what.ring_row))
    wrong = "is another than it was";
  for (const std::span<std::byte> rows : what.rows) {
    if (wrong == nullptr && ending_) return false;
    if (wrong == nullptr && !reader.read(rows)) wrong = "is cut off";
  }
  if (wrong == nullptr) wrong = reader.end();
  if (wrong != nullptr) reject(what.file, wrong);
  return wrong == nullptr;
}

CacheStore::Status CacheStore::status() const {
  const std::lock_guard lock(mutex_);
  Status status = counts_;
  status.budget = budget_;
  status.bytes = bytes_;
  status.states = files_.size() - counts_.foreign;
  status.waiting = waiting_.size() + (writing_ != nullptr ? 1 : 0);
  return status;
}

}  // namespace gem
