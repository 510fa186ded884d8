// Finds control tokens and added tokens in raw text: the leftmost match, and of those the longest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace gem {

class MarkerMatcher {
 public:
  // All pieces of kind kControl and kAdded.
  explicit MarkerMatcher(const Vocabulary& vocabulary);

  struct Match {
    std::size_t begin = 0;
    std::size_t length = 0;
    std::int32_t id = -1;
  };
  std::optional<Match> find(const Vocabulary& vocabulary, std::string_view text, std::size_t from) const;

 private:
  struct Range {  // of ids_
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };
  Match longest_at(const Vocabulary& vocabulary, std::string_view text, std::size_t at) const;

  std::vector<std::int32_t> ids_;      // sorted by text
  std::array<Range, 256> by_first_{};  // those whose text starts with the byte
};

}  // namespace gem
