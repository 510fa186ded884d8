// The body of POST /v1/responses and /v1/responses/input_tokens.
#pragma once

#include <nlohmann/json.hpp>

#include "server/api/chat_request.h"

namespace gem::server {

struct ResponsesRequest {
  ChatRequest chat;
  // What the response object repeats of the request, and the official fields that never change here.
  // `id`, `created_at`, `model` and `status` are the caller's to fill in.
  nlohmann::ordered_json response;
};

// Throws ApiError naming the field. Tools that are not functions are left out, with a line in the log. What
// would need a state on the server (previous_response_id, conversation, background, item references) is
// refused by name.
ResponsesRequest parse_responses_request(const JsonValue& body, const RequestDefaults& defaults,
                                         const Tokenizer& tokenizer);

}  // namespace gem::server
