// Server-sent events taken apart, for tests of writers.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gem::server::test {

struct SseEvent {
  std::string name;  // empty: data only
  nlohmann::ordered_json data;
};

// Every event must be complete, one line of data each. Comments are left out.
inline std::vector<SseEvent> sse_events(std::string_view text) {
  std::vector<SseEvent> events;
  while (!text.empty()) {
    const std::size_t end = text.find("\n\n");
    if (end == std::string_view::npos) {
      ADD_FAILURE() << "an event without an end: " << text;
      break;
    }
    std::string_view lines = text.substr(0, end);
    text.remove_prefix(end + 2);
    if (lines.starts_with(':')) continue;
    SseEvent event;
    if (lines.starts_with("event: ")) {
      const std::size_t line = lines.find('\n');
      event.name = lines.substr(7, line - 7);
      lines.remove_prefix(line + 1);
    }
    if (!lines.starts_with("data: ") || lines.find('\n') != std::string_view::npos) {
      ADD_FAILURE() << "not one line of data: " << lines;
      break;
    }
    event.data = nlohmann::ordered_json::parse(lines.substr(6), nullptr, false);
    EXPECT_FALSE(event.data.is_discarded()) << lines;
    events.push_back(std::move(event));
  }
  return events;
}

}  // namespace gem::server::test
