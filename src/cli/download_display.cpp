#include "cli/download_display.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/options.h"

namespace gem::cli {
namespace {

constexpr std::chrono::seconds kRateWindow{5};
constexpr std::chrono::milliseconds kTerminalPause{100};
constexpr std::chrono::seconds kLinePause{10};

std::size_t columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void Rate::add(Clock::time_point now, std::uint64_t bytes) {
  samples_.emplace_back(now, bytes);
  while (samples_.size() > 2 && now - samples_[1].first > kRateWindow) samples_.pop_front();
}

double Rate::bytes_per_second() const {
  if (samples_.size() < 2) return 0;
  const double seconds =
      std::chrono::duration<double>(samples_.back().first - samples_.front().first).count();
  const auto bytes = static_cast<double>(samples_.back().second - samples_.front().second);
  return seconds > 0.2 ? bytes / seconds : 0;
}

std::string human_duration(double seconds) {
  const auto s = static_cast<long long>(std::ceil(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
}

std::string progress_text(const hub::PullProgress& p, double rate, std::size_t columns) {
  std::string text =
      fmt::format("{:3}% of {}", p.total == 0 ? 100 : 100 * p.done / p.total, human_bytes(p.total));
  if (p.checking) {
    text += ", checking what is here";
  } else if (rate > 0) {
    text += fmt::format(", {}/s, {} left", human_bytes(static_cast<std::uint64_t>(rate)),
                        human_duration(static_cast<double>(p.total - p.done) / rate));
  }
  if (p.files > 1) text += fmt::format(", file {} of {}", p.index, p.files);
  std::string name(hub::file_name(p.file));
  // Names of models differ at their ends.
  const std::size_t room = columns > text.size() + 12 ? columns - text.size() - 3 : 0;
  if (name.size() > room) name = room == 0 ? "" : "..." + name.substr(name.size() - (room - 3));
  return name.empty() ? text : name + ": " + text;
}

DownloadDisplay::~DownloadDisplay() {
  const std::scoped_lock lock(mutex_);
  clear();
}

void DownloadDisplay::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

void DownloadDisplay::note(const std::string& text) {
  if (quiet_) return;
  const std::scoped_lock lock(mutex_);
  clear();
  fmt::print(stderr, "{}\n", text);
}

void DownloadDisplay::show(const hub::PullProgress& p) {
  if (quiet_) return;
  const std::scoped_lock lock(mutex_);
  const auto now = Rate::Clock::now();
  if (now - last_ <
      (terminal_ ? std::chrono::milliseconds(kTerminalPause) : std::chrono::milliseconds(kLinePause)))
    return;
  last_ = now;
  rate_.add(now, p.fresh);
  const std::string text = progress_text(p, rate_.bytes_per_second(), terminal_ ? columns() : 200);
  if (!terminal_) {
    fmt::print(stderr, "{}\n", text);
    return;
  }
  fmt::print(stderr, "\r\033[K{}", text);
  std::fflush(stderr);
  shown_ = true;
}

}  // namespace gem::cli
