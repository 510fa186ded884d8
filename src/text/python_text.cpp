#include "text/python_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <utility>

#include "text/utf8.h"

namespace gem {
namespace {

// Upper-case ranges whose lower case lies at a fixed distance; `step` 2 where the two cases alternate.
struct CaseRange {
  char32_t first;
  char32_t last;
  int distance;
  char32_t step;
};

constexpr std::array kCaseRanges = std::to_array<CaseRange>({
    {U'A', U'Z', 32, 1},       {0xC0, 0xD6, 32, 1},       {0xD8, 0xDE, 32, 1},     {0x100, 0x12E, 1, 2},
    {0x132, 0x136, 1, 2},      {0x139, 0x147, 1, 2},      {0x14A, 0x176, 1, 2},    {0x178, 0x178, -121, 1},
    {0x179, 0x17D, 1, 2},      {0x1CD, 0x1DB, 1, 2},      {0x1DE, 0x1EE, 1, 2},    {0x1F8, 0x21E, 1, 2},
    {0x222, 0x232, 1, 2},      {0x246, 0x24E, 1, 2},      {0x370, 0x372, 1, 2},    {0x376, 0x376, 1, 1},
    {0x37F, 0x37F, 116, 1},    {0x386, 0x386, 38, 1},     {0x388, 0x38A, 37, 1},   {0x38C, 0x38C, 64, 1},
    {0x38E, 0x38F, 63, 1},     {0x391, 0x3A1, 32, 1},     {0x3A3, 0x3AB, 32, 1},   {0x3CF, 0x3CF, 8, 1},
    {0x3D8, 0x3EE, 1, 2},      {0x400, 0x40F, 80, 1},     {0x410, 0x42F, 32, 1},   {0x460, 0x480, 1, 2},
    {0x48A, 0x4BE, 1, 2},      {0x4C0, 0x4C0, 15, 1},     {0x4C1, 0x4CD, 1, 2},    {0x4D0, 0x52E, 1, 2},
    {0x531, 0x556, 48, 1},     {0x10A0, 0x10C5, 7264, 1}, {0x1E00, 0x1E94, 1, 2},  {0x1E9E, 0x1E9E, -7615, 1},
    {0x1EA0, 0x1EFE, 1, 2},    {0x2160, 0x216F, 16, 1},   {0x24B6, 0x24CF, 26, 1}, {0xFF21, 0xFF3A, 32, 1},
    {0x10400, 0x10427, 40, 1},
});

char32_t lower(char32_t code) {
  for (const CaseRange& range : kCaseRanges) {
    if (code < range.first) return code;  // ranges are in ascending order
    if (code <= range.last) {
      if ((code - range.first) % range.step != 0) return code;
      return static_cast<char32_t>(static_cast<std::int64_t>(code) + range.distance);
    }
  }
  return code;
}

// Whether a decimal number is beyond the doubles on the large side; asked only of numbers that are out of
// range.
bool is_huge(std::string_view number) {
  if (number.starts_with('-')) number.remove_prefix(1);
  const std::size_t mark = std::min(number.find_first_of("eE"), number.size());
  const std::string_view mantissa = number.substr(0, mark);
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  const std::size_t leading = mantissa.find_first_of("123456789");
  if (leading == std::string_view::npos) return false;
  // Decimal exponent of the leading digit, without the written exponent.
  const auto place = leading < point ? static_cast<std::int64_t>(point - leading) - 1
                                     : static_cast<std::int64_t>(point) - static_cast<std::int64_t>(leading);
  std::int64_t exponent = 0;
  std::string_view digits = mark < number.size() ? number.substr(mark + 1) : std::string_view{};
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  for (const char c : digits) exponent = std::min<std::int64_t>(exponent * 10 + (c - '0'), 1'000'000'000'000);
  return place + (negative ? -exponent : exponent) > 0;
}

}  // namespace

bool is_python_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

std::string_view python_lstrip(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = utf8_next(text, 0);
    if (c.state != Utf8State::kComplete || !is_python_space(c.code)) break;
    text.remove_prefix(c.bytes);
  }
  return text;
}

std::string_view python_rstrip(std::string_view text) {
  while (!text.empty()) {
    std::size_t at = text.size() - 1;  // blanks take one to three bytes
    while (at > 0 && text.size() - at < 3 && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u) --at;
    const Utf8Char c = utf8_next(text, at);
    if (c.state != Utf8State::kComplete || at + c.bytes != text.size() || !is_python_space(c.code)) break;
    text.remove_suffix(c.bytes);
  }
  return text;
}

std::string_view python_strip(std::string_view text) {
  return python_lstrip(python_rstrip(text));
}

std::string python_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_next(text, at);
    if (c.state == Utf8State::kComplete) {
      append_utf8(out, lower(c.code));
    } else {
      out.append(text, at, c.bytes);
    }
    at += c.bytes;
  }
  return out;
}

std::vector<const JsonMember*> dictsort(const JsonValue& object) {
  std::vector<std::pair<std::string, const JsonMember*>> keyed;
  keyed.reserve(object.members.size());
  for (const JsonMember& member : object.members) keyed.emplace_back(python_lower(member.key), &member);
  // UTF-8 sorts by bytes as it does by code points.
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<const JsonMember*> sorted;
  sorted.reserve(keyed.size());
  for (const auto& [key, member] : keyed) sorted.push_back(member);
  return sorted;
}

std::string python_float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // Shortest digits, as d[.ddd]e±xx; taken apart and laid out anew.
  std::array<char, 32> buffer{};
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  std::string_view shortest(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  std::string out;
  if (shortest.starts_with('-')) {
    out = "-";
    shortest.remove_prefix(1);
  }
  const std::size_t mark = shortest.find('e');
  std::string digits(1, shortest[0]);
  if (mark > 2) digits.append(shortest, 2, mark - 2);
  const int exponent = std::atoi(std::string(shortest.substr(mark + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out.append(1, '.').append(digits, 1);
    out += exponent < 0 ? "e-" : "e+";
    const std::string power = std::to_string(std::abs(exponent));
    return out.append(power.size() < 2 ? 1 : 0, '0').append(power);
  }
  if (exponent < 0) {
    return out.append("0.").append(static_cast<std::size_t>(-exponent - 1), '0').append(digits);
  }
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return out.append(digits).append(whole - digits.size(), '0').append(".0");
  return out.append(digits, 0, whole).append(1, '.').append(digits, whole);
}

std::string python_number(std::string_view json_number) {
  if (json_number.find_first_of(".eE") == std::string_view::npos) {
    return json_number == "-0" ? "0" : std::string(json_number);
  }
  double value = 0;
  const auto [end, error] =
      std::from_chars(json_number.data(), json_number.data() + json_number.size(), value);
  if (error == std::errc::result_out_of_range) {
    value = is_huge(json_number) ? std::numeric_limits<double>::infinity() : 0.0;
    if (json_number.starts_with('-')) value = -value;
  }
  return python_float_repr(value);
}

}  // namespace gem
