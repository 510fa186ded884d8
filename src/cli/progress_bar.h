// A line on stderr that shows how far something is, while it is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gem::cli {

// "━━━━━───…", 30 cells.
std::string bar(std::uint64_t done, std::uint64_t total);

class ProgressBar {
 public:
  // Shows nothing in the first half second, and nothing at all where stderr is no terminal.
  explicit ProgressBar(std::string what);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // "what ━━━── 2.10 GB of 7.20 GB, 1.95 GB/s, 3 s left"
  void show_bytes(std::uint64_t done, std::uint64_t total);
  void clear();

 private:
  std::string what_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
};

}  // namespace gem::cli
