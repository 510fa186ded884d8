#include "text/vocabulary.h"

#include <bit>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"
#include "text/utf8.h"

namespace gem {

namespace {

std::uint64_t hash_of(std::string_view text) {
  return std::hash<std::string_view>{}(text);
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMostBytes = 40;
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    if (at >= kMostBytes) {
      out += "...";
      break;
    }
    const Utf8Char c = utf8_next(text, at);
    const bool plain = c.state == Utf8State::kComplete && c.code >= 0x20 && c.code != 0x7F;
    if (plain) {
      out += text.substr(at, c.bytes);
      at += c.bytes;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<std::uint8_t>(text[at])));
      ++at;
    }
  }
  return out + "\"";
}

std::optional<std::uint8_t> byte_of_piece(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char digit : text.substr(3, 2)) {
    if (digit >= '0' && digit <= '9') {
      value = value * 16 + static_cast<unsigned>(digit - '0');
    } else if (digit >= 'A' && digit <= 'F') {
      value = value * 16 + static_cast<unsigned>(digit - 'A') + 10;
    } else {
      return std::nullopt;
    }
  }
  return static_cast<std::uint8_t>(value);
}

Vocabulary::Vocabulary(TextList pieces, std::vector<PieceKind> kinds)
    : pieces_(std::move(pieces)), kinds_(std::move(kinds)) {
  // Far above 262,144 and far below what an int32 id or the packed merge keys can hold.
  constexpr std::size_t kMostPieces = std::size_t{1} << 24;
  if (pieces_.size() == 0) fail(ErrorCode::kBadFile, "the vocabulary is empty");
  if (pieces_.size() > kMostPieces) {
    fail(ErrorCode::kBadFile, "the vocabulary has {} pieces, at most {} are possible", pieces_.size(),
         kMostPieces);
  }
  if (pieces_.size() != kinds_.size()) {
    fail(ErrorCode::kBadFile, "the vocabulary has {} pieces but {} token types", pieces_.size(),
         kinds_.size());
  }
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    if (pieces_[id].empty()) fail(ErrorCode::kBadFile, "piece {} of the vocabulary is empty", id);
    if (!utf8_valid(pieces_[id])) {
      fail(ErrorCode::kBadFile, "piece {} of the vocabulary, {}, is not valid UTF-8", id,
           in_quotes(pieces_[id]));
    }
  }
  build_index();
  build_decoded();
}

void Vocabulary::build_index() {
  index_.resize(std::bit_ceil(pieces_.size() * 2));
  const std::size_t mask = index_.size() - 1;
  for (std::int32_t id = 0; id < size(); ++id) {
    const std::uint64_t hash = hash_of(text(id));
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    std::size_t slot = hash & mask;
    for (; index_[slot].id >= 0; slot = (slot + 1) & mask) {
      if (index_[slot].hash == tag && text(index_[slot].id) == text(id)) {
        fail(ErrorCode::kBadFile, "pieces {} and {} of the vocabulary are both {}", index_[slot].id, id,
             in_quotes(text(id)));
      }
    }
    index_[slot] = {tag, id};
  }
}

std::optional<std::int32_t> Vocabulary::find(std::string_view wanted) const {
  const std::uint64_t hash = hash_of(wanted);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  const std::size_t mask = index_.size() - 1;
  for (std::size_t slot = hash & mask; index_[slot].id >= 0; slot = (slot + 1) & mask) {
    if (index_[slot].hash == tag && text(index_[slot].id) == wanted) return index_[slot].id;
  }
  return std::nullopt;
}

void Vocabulary::build_decoded() {
  byte_pieces_.fill(-1);
  std::string spaced;
  for (std::int32_t id = 0; id < size(); ++id) {
    const std::string_view piece = text(id);
    if (kind(id) == PieceKind::kControl) {
      decoded_.add(piece);
      continue;
    }
    if (kind(id) == PieceKind::kByte) {
      const std::optional<std::uint8_t> byte = byte_of_piece(piece);
      if (!byte) {
        fail(ErrorCode::kBadFile, "piece {} of the vocabulary is {}; a byte piece is spelt <0xHH>", id,
             in_quotes(piece));
      }
      byte_pieces_[*byte] = id;
      const char value = static_cast<char>(*byte);
      decoded_.add({&value, 1});
      continue;
    }
    spaced.clear();
    for (std::size_t at = 0; at < piece.size();) {
      if (piece.substr(at).starts_with(kSpacePiece)) {
        spaced += ' ';
        at += kSpacePiece.size();
      } else {
        spaced += piece[at++];
      }
    }
    decoded_.add(spaced);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (byte_pieces_[byte] < 0) {
      fail(ErrorCode::kBadFile, "the vocabulary has no byte piece <0x{:02X}>; all 256 are needed", byte);
    }
  }
}

}  // namespace gem
