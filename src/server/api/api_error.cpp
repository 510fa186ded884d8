#include "server/api/api_error.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace gem::server {
namespace {

std::string anthropic_type(const ApiError& error) {
  switch (error.status) {
    case 400:
    case 405:
      return "invalid_request_error";
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return error.status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

ApiError ApiError::of(int status, std::string type, std::string message) {
  ApiError e;
  e.status = status;
  e.type = std::move(type);
  e.message = std::move(message);
  return e;
}

ApiError ApiError::bad_field(std::string param, std::string message) {
  ApiError e = of(400, "invalid_request_error", std::move(message));
  e.param = std::move(param);
  return e;
}

ApiError ApiError::context_exceeded(std::uint64_t prompt_tokens, std::uint64_t context) {
  // Clients look for these words.
  ApiError e = of(400, "exceed_context_size_error",
                  fmt::format("request ({} tokens) exceeds the available context size ({} tokens), try "
                              "increasing it",
                              prompt_tokens, context));
  e.code = "context_length_exceeded";
  e.prompt_tokens = prompt_tokens;
  e.context = context;
  return e;
}

ApiError ApiError::queue_full(unsigned retry_after) {
  ApiError e = of(429, "rate_limit_error", "the queue of requests is full, try again later");
  e.retry_after = retry_after;
  return e;
}

ApiError ApiError::unavailable(std::string message) {
  return of(503, "unavailable_error", std::move(message));
}

ApiError ApiError::not_found(std::string message) {
  return of(404, "not_found_error", std::move(message));
}

ApiError ApiError::internal(std::string message) {
  return of(500, "server_error", std::move(message));
}

ApiError ApiError::from(const Error& error) {
  const bool ours = error.code() != ErrorCode::kUsage && error.code() != ErrorCode::kTooLarge;
  return ours ? internal(error.what()) : of(400, "invalid_request_error", error.what());
}

std::string error_body(const ApiError& error, ErrorShape shape) {
  nlohmann::ordered_json body;
  if (shape == ErrorShape::kAnthropic) {
    // The official wording for a prompt that does not fit, beside the one that other clients look for.
    const std::string message = error.prompt_tokens ? "prompt is too long: " + error.message : error.message;
    body = {{"type", "error"}, {"error", {{"type", anthropic_type(error)}, {"message", message}}}};
    if (!error.code.empty() && !error.prompt_tokens) body["error"]["details"] = {{"error_code", error.code}};
  } else {
    nlohmann::ordered_json e = {{"code", error.status}, {"message", error.message}, {"type", error.type}};
    e["param"] = error.param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.param);
    if (error.prompt_tokens) e["n_prompt_tokens"] = *error.prompt_tokens;
    if (error.context) e["n_ctx"] = *error.context;
    body["error"] = std::move(e);
  }
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpResponse error_response(const ApiError& error, ErrorShape shape) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(error, shape);
  if (error.retry_after) response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after));
  return response;
}

}  // namespace gem::server
