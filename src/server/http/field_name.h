// Names of header fields (and schemes, codings): ASCII, case does not matter, whatever the locale.
#pragma once

#include <algorithm>
#include <string_view>

namespace gem::server {

inline char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

inline bool same_field_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return ascii_lower(x) == ascii_lower(y); });
}

}  // namespace gem::server
