// Finds stop strings in text that arrives in pieces, without letting any part of one out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gem {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);

  // The text that is safe to send: everything up to what might be the start of a stop string. Once a stop
  // string is complete, stopped() is true and nothing more comes out; the earliest one in the text counts.
  std::string push(std::string_view text);
  // What was held back, when the reply ended without a stop string.
  std::string flush();

  bool stopped() const { return !matched_.empty(); }
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string matched_;
  std::size_t longest_ = 0;
};

}  // namespace gem
