#include "hub/pull.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace gem::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLargestSmallFile = 64u << 20;  // read as text

std::string read_text(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) fail(ErrorCode::kFailed, "cannot read {}", path.string());
  if (size > kLargestSmallFile) fail(ErrorCode::kFailed, "{} is too large for what it is", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<ListedFile> listed(const RepoInfo& info) {
  std::vector<ListedFile> files;
  for (const RepoFile& file : info.files) files.push_back({file.path, file.size});
  return files;
}

SelectionOptions selection_options(const RepoRef& ref, const PullOptions& o) {
  return {.pattern = ref.pattern, .assistant = o.assistant, .mmproj = o.mmproj, .repository = ref.id()};
}

std::vector<std::string> all_files(const Selection& s) {
  std::vector<std::string> files = s.files;
  for (const std::string& path : {s.assistant, s.mmproj})
    if (!path.empty()) files.push_back(path);
  return files;
}

PulledModel model_of(const RepoRef& ref, const Cache& cache, const std::string& commit, const Selection& s) {
  const fs::path folder = cache.snapshot(commit);
  const auto path = [&](const std::string& name) { return name.empty() ? fs::path() : folder / name; };
  PulledModel m;
  m.repository = ref.id();
  m.commit = commit;
  m.assistant = path(s.assistant);
  m.mmproj = path(s.mmproj);
  m.main = s.folder && s.main.empty() ? folder : path(s.main);
  for (const std::string& name : all_files(s)) m.files.push_back(folder / name);
  return m;
}

// One pull, and what its files share.
class Puller {
 public:
  Puller(const RepoRef& ref, const Settings& settings, const PullOptions& options, const PullEvents& events)
      : ref_(ref), settings_(settings), options_(options), events_(events), cache_(settings.cache, ref) {
    if (!settings.token.empty() && token_for(settings).empty())
      note(fmt::format("the token is not sent: {} is not encrypted", origin_of(settings.endpoint).text()));
    hub_ = make_hub([] { return false; });
  }

  RepoInfo info() { return hub_->info(ref_); }

  PulledModel run() {
    const RepoInfo info = this->info();
    commit_ = info.commit;
    for (const RepoFile& file : info.files) files_.emplace(file.path, file);
    cache_.prepare();
    // The list of shards comes first: it says which files there are.
    const Selection s =
        select_files(listed(info), selection_options(ref_, options_), [&](const std::string& path) {
          now_.file = path;
          now_.total = size_of(path);
          now_.index = now_.files = 1;
          get(path);
          return read_text(cache_.snapshot(commit_) / path);
        });
    const std::vector<std::string> wanted = all_files(s);
    announce(s, wanted);
    done_before_ = 0;
    now_ = PullProgress();
    now_.files = wanted.size();
    for (const std::string& path : wanted) now_.total += size_of(path);
    for (const std::string& path : wanted) {
      now_.file = path;
      ++now_.index;
      get(path);
      done_before_ += size_of(path);
    }
    cache_.write_ref(ref_.revision, commit_);  // last: it never names a commit that is not here
    PulledModel m = model_of(ref_, cache_, commit_, s);
    m.bytes = now_.total;
    m.received = received_;
    return m;
  }

 private:
  std::unique_ptr<Hub> make_hub(const std::function<bool()>& stopped) {
    return std::make_unique<Hub>(
        settings_, options_.http, options_.retry,
        [this, stopped] { return stopped() || events_.cancelled(); },
        [this](const std::string& text) { note(text); });
  }

  // From any thread; connections that meet the same trouble tell it once.
  void note(const std::string& text) {
    const std::scoped_lock lock(note_mutex_);
    if (text != last_note_) events_.note(text);
    last_note_ = text;
  }

  const RepoFile& file(const std::string& path) const {
    const RepoFile& f = files_.at(path);
    if (!f.size || f.digest().empty())
      fail(ErrorCode::kFailed, "{} does not say the size and digest of {}: it cannot be checked",
           origin_of(settings_.endpoint).text(), path);
    return f;
  }
  std::uint64_t size_of(const std::string& path) const { return file(path).size.value_or(0); }

  void announce(const Selection& s, const std::vector<std::string>& wanted) {
    const auto gigabytes = [](std::uint64_t bytes) {
      return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
    };
    std::uint64_t model = 0;
    for (const std::string& path : s.files) model += size_of(path);
    note(fmt::format("{}, commit {:.8}: {} ({})", ref_.id(), commit_, s.main.empty() ? "safetensors" : s.main,
                     gigabytes(model)));
    if (!s.assistant.empty())
      note(fmt::format("with the assistant {} ({})", s.assistant, gigabytes(size_of(s.assistant))));
    if (!s.mmproj.empty())
      note(fmt::format("with the image projector {} ({})", s.mmproj, gigabytes(size_of(s.mmproj))));
    for (const std::string& path : wanted) file(path);  // all can be checked, before the first is got
  }

  // Whether the cache has the contents. What is damaged is taken out of the way.
  bool has(const RepoFile& f) {
    const fs::path blob = cache_.blob(f.digest());
    std::error_code none;
    const std::uintmax_t size = fs::file_size(blob, none);
    if (none) return false;
    bool sound = size == f.size;
    if (sound && options_.verify)
      sound = digest_of_file(blob, f.digest_kind(), size, events_.cancelled, [&](std::uint64_t done) {
                report({DownloadState::Phase::kChecking, done}, 0);
              }) == f.digest();
    if (!sound) {
      note(fmt::format("{} in the cache is damaged; getting it again", f.path));
      fs::remove(blob, none);
    }
    return sound;
  }

  void report(const DownloadState& state, std::uint64_t fresh) {
    now_.checking = state.phase == DownloadState::Phase::kChecking;
    now_.done = done_before_ + state.done;
    now_.fresh = received_ + fresh;
    events_.progress(now_);
  }

  void get(const std::string& path) {
    const RepoFile& f = file(path);
    if (!has(f)) {
      const BlobLock lock(cache_, f.digest(), events_.cancelled,
                          [&] { note(fmt::format("another program is getting {}; waiting for it", path)); });
      if (!has(f)) fetch(f);
    }
    cache_.link(commit_, path, f.digest());
    report({DownloadState::Phase::kReceiving, *f.size}, 0);
  }

  void fetch(const RepoFile& f) {
    const Download what{.url = hub_->file_url(ref_, commit_, f.path),
                        .name = f.path,
                        .size = f.size.value_or(0),
                        .digest_kind = f.digest_kind(),
                        .digest = f.digest(),
                        .incomplete = cache_.incomplete(f.digest())};
    std::uint64_t here = 0, last = 0;
    download(
        what, options_.download, [this](const std::function<bool()>& stopped) { return make_hub(stopped); },
        [&](const DownloadState& state) {
          if (state.phase == DownloadState::Phase::kChecking) here = state.done;
          here = std::min(here, state.done);  // a file that is started again
          last = state.done - here;
          report(state, last);
        });
    received_ += last;
    const fs::path blob = cache_.blob(f.digest());
    if (::rename(what.incomplete.c_str(), blob.c_str()) != 0)
      fail(ErrorCode::kFailed, "cannot rename {} to {}: {}", what.incomplete.string(), blob.string(),
           std::strerror(errno));
  }

  const RepoRef& ref_;
  const Settings& settings_;
  const PullOptions& options_;
  const PullEvents& events_;
  Cache cache_;
  std::unique_ptr<Hub> hub_;
  std::string commit_;
  std::map<std::string, RepoFile> files_;
  PullProgress now_;
  std::uint64_t done_before_ = 0, received_ = 0;
  std::mutex note_mutex_;
  std::string last_note_;
};

}  // namespace

PulledModel pull(const RepoRef& ref, const Settings& settings, const PullOptions& options,
                 const PullEvents& events) {
  return Puller(ref, settings, options, events).run();
}

PulledModel find_in_cache(const RepoRef& ref, const Settings& settings, const PullOptions& options) {
  const Cache cache(settings.cache, ref);
  const auto missing = [&](const std::string& finding) {
    fail(ErrorCode::kUsage, "{}: {}; 'gem pull {}' gets it", ref.text(), finding, ref.text());
  };
  const auto commit = cache.commit_of(ref.revision);
  const std::vector<ListedFile> files = commit ? cache.files(*commit) : std::vector<ListedFile>();
  if (files.empty())
    missing(cache.has_incomplete()
                ? fmt::format("only a part of it is in the cache {}", settings.cache.string())
                : fmt::format("it is neither a file nor in the cache {}", settings.cache.string()));
  Selection s;
  try {
    s = select_files(files, selection_options(ref, options),
                     [&](const std::string& path) { return read_text(cache.snapshot(*commit) / path); });
  } catch (const Error& e) {
    missing(fmt::format("in the cache: {}", e.what()));
  }
  PulledModel m = model_of(ref, cache, *commit, s);
  for (const ListedFile& file : files)
    if (std::ranges::find(m.files, cache.snapshot(*commit) / file.path) != m.files.end())
      m.bytes += file.size.value_or(0);
  return m;
}

std::vector<std::string> list_models(const RepoRef& ref, const Settings& settings, const PullOptions& options,
                                     const PullEvents& events) {
  return describe_models(listed(Puller(ref, settings, options, events).info()));
}

}  // namespace gem::hub
