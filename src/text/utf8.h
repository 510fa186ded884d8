// Strict UTF-8, one character at a time (Unicode 15, table 3-7: no surrogates, no overlong forms).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gem {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8State : std::uint8_t {
  kComplete,    // a character
  kInvalid,     // the first byte can belong to no character here
  kIncomplete,  // the text ends inside what may still become a character
};

struct Utf8Char {
  char32_t code = 0;      // meaningful when complete
  std::size_t bytes = 1;  // length when complete; 1 when invalid; what is left of the text when incomplete
  Utf8State state = Utf8State::kInvalid;
};

// The character that starts at `at`, which must lie inside `text`.
inline Utf8Char utf8_next(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[at + i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, Utf8State::kComplete};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const std::size_t left = text.size() - at;
  char32_t code = lead & (0xFFu >> (length + 1));
  // The second byte excludes overlong forms (E0, F0), surrogates (ED) and what lies above U+10FFFF (F4).
  std::uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  std::uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == left) return {0, left, Utf8State::kIncomplete};
    if (byte(i) < low || byte(i) > high) return {};
    code = (code << 6) | (byte(i) & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {code, length, Utf8State::kComplete};
}

inline bool utf8_valid(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_next(text, at);
    if (c.state != Utf8State::kComplete) return false;
    at += c.bytes;
  }
  return true;
}

// The last character of a valid, non-empty text.
inline char32_t utf8_last(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<std::uint8_t>(text[at]) & 0xC0u) == 0x80u) --at;
  return utf8_next(text, at).code;
}

}  // namespace gem
