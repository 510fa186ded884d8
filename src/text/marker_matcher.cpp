#include "text/marker_matcher.h"

#include <algorithm>

namespace gem {

MarkerMatcher::MarkerMatcher(const Vocabulary& vocabulary) {
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const PieceKind kind = vocabulary.kind(id);
    if (kind == PieceKind::kControl || kind == PieceKind::kAdded) ids_.push_back(id);
  }
  std::sort(ids_.begin(), ids_.end(),
            [&](std::int32_t a, std::int32_t b) { return vocabulary.text(a) < vocabulary.text(b); });
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    Range& range = by_first_[static_cast<std::uint8_t>(vocabulary.text(ids_[i])[0])];
    if (range.begin == range.end) range.begin = static_cast<std::uint32_t>(i);
    range.end = static_cast<std::uint32_t>(i + 1);
  }
}

std::optional<MarkerMatcher::Match> MarkerMatcher::find(const Vocabulary& vocabulary, std::string_view text,
                                                        std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    const Range range = by_first_[static_cast<std::uint8_t>(text[at])];
    if (range.begin == range.end) continue;
    const Match match = longest_at(vocabulary, text, at);
    if (match.length > 0) return match;
  }
  return std::nullopt;
}

// Narrows the range of markers that agree with the text byte by byte. In sorted order a marker that ends here
// stands before those that go on.
MarkerMatcher::Match MarkerMatcher::longest_at(const Vocabulary& vocabulary, std::string_view text,
                                               std::size_t at) const {
  Match match{at, 0, -1};
  const Range first = by_first_[static_cast<std::uint8_t>(text[at])];
  auto begin = ids_.begin() + first.begin;
  auto end = ids_.begin() + first.end;
  for (std::size_t depth = 1; begin != end; ++depth) {
    if (vocabulary.text(*begin).size() == depth) {
      match.length = depth;
      match.id = *begin;
      ++begin;
    }
    if (at + depth >= text.size()) break;
    const auto byte = static_cast<std::uint8_t>(text[at + depth]);
    const auto byte_of = [&](std::int32_t id) {
      return static_cast<std::uint8_t>(vocabulary.text(id)[depth]);
    };
    begin = std::partition_point(begin, end, [&](std::int32_t id) { return byte_of(id) < byte; });
    end = std::partition_point(begin, end, [&](std::int32_t id) { return byte_of(id) == byte; });
  }
  return match;
}

}  // namespace gem
