// Times of a benchmark's runs.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace gem::cli {

// Seconds, from some moment on.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of at least one value.
inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 == 1 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

}  // namespace gem::cli
