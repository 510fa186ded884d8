#include "base/system_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace gem {
namespace {

// "Name:   123 kB" lines of the kernel's status files.
std::optional<std::uint64_t> kilobytes(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word == name) {
      std::uint64_t value = 0;
      if (file >> value) return value * 1024;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number_in(const char* path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> available_memory() {
  std::optional<std::uint64_t> room = kilobytes("/proc/meminfo", "MemAvailable:");
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) {
    const std::uint64_t left = *limit > *used ? *limit - *used : 0;
    room = room ? std::min(*room, left) : left;
  }
  return room;
}

std::uint64_t resident_memory() {
  return kilobytes("/proc/self/status", "VmRSS:").value_or(0);
}
std::uint64_t peak_resident_memory() {
  return kilobytes("/proc/self/status", "VmHWM:").value_or(0);
}

}  // namespace gem
