// The one error type of gem: what went wrong, where, and what was expected.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace gem {

// The kind of failure; the command maps it to an exit status, the server to an HTTP status.
enum class ErrorCode {
  kUsage,      // the caller asked for something impossible (bad option, bad request field)
  kBadFile,    // a file is malformed, truncated or unreadable
  kRefused,    // a well-formed checkpoint that gem does not admit, or that does not fit
  kTooLarge,   // a request exceeds a limit (context, memory)
  kFailed,     // the work itself failed
  kLost,       // the device failed, and this process cannot use it again
  kCancelled,  // the caller asked to stop
};

// Thrown at load and request borders, never inside the token loop.
// `what()` is one line for people: the finding, the place, the expectation.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace gem
