// Filters of standard input: JSON lines, or one text as a whole.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gem::cli {

// Writes work(line) and a newline for each non-empty line of standard input, each at once, so that a caller
// may keep the program open and ask line by line. A line that fails stops it: an object {"error": {"line",
// "message"}} goes to standard error, and Error(kFailed) is thrown, as it is the input that is bad and not
// the command. Error(kCancelled) passes through.
void filter_json_lines(const std::function<std::string(std::string_view)>& work);

// All of standard input.
std::string read_standard_input();

}  // namespace gem::cli
