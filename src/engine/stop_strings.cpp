#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace gem {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
  for (const std::string& s : stops_) longest_ = std::max(longest_, s.size());
}

std::string StopStrings::push(std::string_view text) {
  if (stopped()) return {};
  if (stops_.empty()) return std::string(text);
  held_ += text;
  std::size_t at = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t found = held_.find(stop);
    if (found < at || (found == at && found != std::string::npos && stop.size() > matched_.size())) {
      at = found;
      matched_ = stop;
    }
  }
  if (at != std::string::npos) {
    held_.resize(at);
    return std::exchange(held_, {});
  }
  // Hold back the longest end that some stop string starts with.
  std::size_t keep = std::min(longest_ - 1, held_.size());
  for (; keep > 0; --keep) {
    const std::string_view end = std::string_view(held_).substr(held_.size() - keep);
    if (std::any_of(stops_.begin(), stops_.end(), [&](const std::string& s) {
          return s.size() > keep && std::string_view(s).substr(0, keep) == end;
        }))
      break;
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopStrings::flush() {
  return std::exchange(held_, {});
}

}  // namespace gem
