// How far a download is, on standard error: a line that changes on a terminal, lines now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "hub/pull.h"

namespace gem::cli {

// Bytes per second over the last few seconds.
class Rate {
 public:
  using Clock = std::chrono::steady_clock;
  void add(Clock::time_point now, std::uint64_t bytes);
  double bytes_per_second() const;  // 0: not known yet

 private:
  std::deque<std::pair<Clock::time_point, std::uint64_t>> samples_;
};

// "8 s", "2 min 05 s", "3 h 07 min"
std::string human_duration(double seconds);

// The line's text, without the file's name cut for a terminal of `columns`.
std::string progress_text(const hub::PullProgress& p, double rate, std::size_t columns);

class DownloadDisplay {
 public:
  DownloadDisplay(bool terminal, bool quiet) : terminal_(terminal), quiet_(quiet) {}
  ~DownloadDisplay();
  DownloadDisplay(const DownloadDisplay&) = delete;
  DownloadDisplay& operator=(const DownloadDisplay&) = delete;

  void note(const std::string& text);  // from any thread
  void show(const hub::PullProgress& progress);

 private:
  void clear();

  const bool terminal_, quiet_;
  std::mutex mutex_;
  bool shown_ = false;
  Rate rate_;
  Rate::Clock::time_point last_ = Rate::Clock::now();
};

}  // namespace gem::cli
