#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/options.h"

namespace gem::cli {

std::string bar(std::uint64_t done, std::uint64_t total) {
  constexpr std::uint64_t kCells = 30;
  const std::uint64_t cells = total == 0 ? kCells : kCells * done / total;
  std::string out;
  for (std::uint64_t i = 0; i < kCells; ++i) out += i < cells ? "━" : "─";
  return out;
}

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) != 0) {}

void ProgressBar::show_bytes(std::uint64_t done, std::uint64_t total) {
  using std::chrono::milliseconds;
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now - start_ < milliseconds(500) || now - last_ < milliseconds(100)) return;
  last_ = now;
  const double rate = static_cast<double>(done) / std::chrono::duration<double>(now - start_).count();
  const double left = rate > 0 ? static_cast<double>(total - std::min(done, total)) / rate : 0;
  fmt::print(stderr, "\r\033[K{} {} {} of {}, {}/s, {:.0f} s left", what_, bar(done, total),
             human_bytes(done), human_bytes(total), human_bytes(static_cast<std::uint64_t>(rate)), left);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressBar::clear() {
  if (shown_) {
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }
  shown_ = false;
}

}  // namespace gem::cli
