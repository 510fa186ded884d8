// Names taken from files: whether they are proper text, and how to show them in a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace gem {

// Well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// At most some 80 bytes of `name`, control characters and malformed bytes written as \xNN.
std::string shown(std::string_view name);

}  // namespace gem
