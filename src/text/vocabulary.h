// The pieces of a vocabulary: id -> text, kind and decoded bytes; text -> id.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer_source.h"

namespace gem {

inline constexpr std::string_view kSpacePiece = "\xE2\x96\x81";  // U+2581, how pieces spell a space

class Vocabulary {
 public:
  // Error(kBadFile) for an empty vocabulary, counts that differ, a piece that is empty, no valid UTF-8 or
  // there twice, and for missing byte pieces.
  Vocabulary(TextList pieces, std::vector<PieceKind> kinds);

  std::int32_t size() const { return static_cast<std::int32_t>(kinds_.size()); }
  bool contains(std::int64_t id) const { return id >= 0 && id < size(); }

  // The following take ids of the vocabulary only.
  std::string_view text(std::int32_t id) const { return pieces_[static_cast<std::size_t>(id)]; }
  PieceKind kind(std::int32_t id) const { return kinds_[static_cast<std::size_t>(id)]; }
  // What the id stands for in the output: the byte of a byte piece, spaces for U+2581, a control token's
  // literal.
  std::string_view decoded(std::int32_t id) const { return decoded_[static_cast<std::size_t>(id)]; }

  std::optional<std::int32_t> find(std::string_view text) const;
  std::int32_t byte_piece(std::uint8_t byte) const { return byte_pieces_[byte]; }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;  // -1: free
  };
  void build_index();
  void build_decoded();

  TextList pieces_;
  std::vector<PieceKind> kinds_;
  TextList decoded_;
  std::vector<Slot> index_;  // open addressing, a power of two, at most half full
  std::array<std::int32_t, 256> byte_pieces_{};
};

// The byte that a text of the form <0xHH> (upper case) names.
std::optional<std::uint8_t> byte_of_piece(std::string_view text);

}  // namespace gem
