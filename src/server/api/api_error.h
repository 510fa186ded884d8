// A refusal of a request: thrown by whatever finds the fault, written in the shape of the API in use.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "server/http/exchange.h"

namespace gem {
class Error;
}

namespace gem::server {

struct ApiError : std::exception {
  int status = 400;
  std::string type =
      "invalid_request_error";  // OpenAI's; the Anthropic shape derives its own from the status
  std::string message;
  std::string param;  // the field at fault, or empty
  std::string code;   // OpenAI's string code ("context_length_exceeded"), or empty
  std::optional<std::uint64_t> prompt_tokens, context;  // exceed_context_size_error
  std::optional<unsigned> retry_after;                  // seconds

  const char* what() const noexcept override { return message.c_str(); }

  static ApiError of(int status, std::string type, std::string message);
  static ApiError bad_field(std::string param, std::string message);
  static ApiError context_exceeded(std::uint64_t prompt_tokens, std::uint64_t context);
  static ApiError queue_full(unsigned retry_after);
  static ApiError unavailable(std::string message);  // 503
  static ApiError not_found(std::string message);
  static ApiError internal(std::string message);  // 500
  static ApiError from(const Error& error);       // kUsage and kTooLarge: 400; else 500
};

enum class ErrorShape { kOpenAi, kAnthropic };
// {"error":{"code","message","type","param",…}} or {"type":"error","error":{"type","message"}}.
std::string error_body(const ApiError& error, ErrorShape shape);
// The same as a response with status and Retry-After.
HttpResponse error_response(const ApiError& error, ErrorShape shape);

}  // namespace gem::server
