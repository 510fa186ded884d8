// Byte-pair encoding by ranked merges over raw UTF-8: spaces spelt U+2581, characters outside the vocabulary
// as byte pieces, no normalisation, no word splitting.
//
// Exactness of the fast path: a merge joins two symbols that touch, so a character pair (a, b) can end up
// inside one symbol only if some merge has a left side ending in a and a right side starting with b. Wherever
// the text has a pair that no merge has, both sides are encoded on their own and give the same ids. In
// Gemma's vocabulary this cuts before nearly every space, around line breaks and tabs, and around digits,
// which leaves words of a few characters.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/vocabulary.h"

namespace gem {

// What an encoding did; lets tests state that the work grows with the length of the text.
struct BpeWork {
  std::size_t lookups = 0;  // in the merge table
  std::size_t segments = 0;
  std::size_t cached_segments = 0;  // taken from an earlier equal segment of the same text
  std::size_t longest_segment = 0;  // characters
};

class Bpe {
 public:
  // Error(kBadFile) for merges naming unknown pieces, merges that would make or use control or byte pieces,
  // and a merge given twice.
  Bpe(const Vocabulary& vocabulary, const TextList& merges, const std::vector<std::uint32_t>& merge_left);

  // Appends the ids of `text`, any bytes: a byte that belongs to no valid character becomes its byte piece.
  // O(n log n) at worst, nearly linear for text with words. Texts of 2 GiB and more: Error(kTooLarge).
  void encode(const Vocabulary& vocabulary, std::string_view text, std::vector<std::int32_t>& ids,
              BpeWork* work = nullptr) const;

 private:
  friend class BpeRun;

  struct Merge {
    std::uint32_t rank = kNever;
    std::int32_t result = -1;
  };
  struct Slot {
    std::uint64_t pair = kFree;  // left id << 32 | right id
    Merge merge;
  };
  static constexpr std::uint32_t kNever = 0xFFFFFFFFu;
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  Merge find(std::int32_t left, std::int32_t right) const;
  void add_merge(std::int32_t left, std::int32_t right, Merge merge);
  void add_touching(char32_t left, char32_t right);
  bool may_touch(char32_t left, char32_t right) const;
  std::int32_t piece_of(char32_t code) const;

  std::vector<Slot> merges_;  // open addressing, at most half full
  // Characters with a piece, space standing for U+2581: a table for the basic plane, the rest sorted.
  std::vector<std::int32_t> basic_pieces_;
  std::vector<std::pair<char32_t, std::int32_t>> other_pieces_;
  // Character pairs that some merge joins: a table for ASCII, a hash set for the rest.
  std::bitset<128 * 128> ascii_touching_;
  std::vector<std::uint64_t> touching_;
  std::size_t touching_count_ = 0;
};

}  // namespace gem
