// Numbers, booleans and null as models spell them in tool calls, and what they are in JSON.
#pragma once

#include <string_view>

namespace gem {

// The JSON literal that a bare word stands for (true, True, null, None, nil, …); empty if it is none.
std::string_view json_literal(std::string_view word);

// The number that a text spells; empty if it is none. JSON's numbers, and those with a leading plus.
std::string_view json_number_in(std::string_view text, bool integer);

// true or false, however capitals are used; empty if it is neither.
std::string_view json_boolean_in(std::string_view text);

}  // namespace gem
