#include "text/scalar_spelling.h"

#include <algorithm>
#include <array>

#include "text/json_value.h"

namespace gem {

std::string_view json_literal(std::string_view word) {
  struct Literal {
    std::string_view word;
    std::string_view json;
  };
  static constexpr std::array kLiterals = std::to_array<Literal>({
      {"true", "true"},
      {"True", "true"},
      {"false", "false"},
      {"False", "false"},
      {"null", "null"},
      {"None", "null"},
      {"nil", "null"},
      {"NULL", "null"},
  });
  for (const Literal& known : kLiterals) {
    if (word == known.word) return known.json;
  }
  return {};
}

std::string_view json_number_in(std::string_view text, bool integer) {
  if (text.starts_with('+')) text.remove_prefix(1);
  if (!is_json_number(text)) return {};
  return integer && text.find_first_of(".eE") != std::string_view::npos ? std::string_view{} : text;
}

std::string_view json_boolean_in(std::string_view text) {
  const auto is = [text](std::string_view word) {
    return std::equal(text.begin(), text.end(), word.begin(), word.end(),
                      [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
  };
  return is("true") ? "true" : is("false") ? "false" : "";
}

}  // namespace gem
