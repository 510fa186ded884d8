#include "cli/json_lines.h"

#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "text/json_value.h"

namespace gem::cli {

void filter_json_lines(const std::function<std::string(std::string_view)>& work) {
  std::size_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::string result;
    try {
      result = work(line);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
      std::fflush(stdout);
      const std::string message = to_json_text(JsonValue::string(error.what()));
      fmt::print(stderr, "{{\"error\":{{\"line\":{},\"message\":{}}}}}\n", number, message);
      fail(ErrorCode::kFailed, "line {}: {}", number, error.what());
    }
    result += '\n';
    std::fwrite(result.data(), 1, result.size(), stdout);
    std::fflush(stdout);
  }
}

std::string read_standard_input() {
  return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
}

}  // namespace gem::cli
