// The chat template was written for Python: trimming, key order and numbers follow Python's rules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/json_value.h"

namespace gem {

// str.isspace of one character: Unicode blanks, line breaks and the separators U+001C..U+001F.
bool is_python_space(char32_t code);

// str.strip / str.rstrip / str.lstrip of UTF-8 text; bytes that are no UTF-8 are never blank.
std::string_view python_strip(std::string_view text);
std::string_view python_rstrip(std::string_view text);
std::string_view python_lstrip(std::string_view text);

// str.lower for the bicameral scripts (Latin, Greek, Cyrillic, Armenian, Georgian), character by
// character; used for ordering only.
std::string python_lower(std::string_view text);

// The members of an object as Jinja's dictsort orders them: by lower-cased key, by code point, stable.
std::vector<const JsonMember*> dictsort(const JsonValue& object);

// repr(float): the shortest digits that read back as the same double, with ".0" when integral, exponent form
// (at least two digits) below 1e-4 and from 1e16 on; "inf", "-inf", "nan".
std::string python_float_repr(double value);

// str(json.loads(number)): an integer's digits, or the repr of the double nearest to anything with '.' or
// exponent.
std::string python_number(std::string_view json_number);

}  // namespace gem
