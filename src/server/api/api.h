// What the endpoints share: the served model's card, and the context they are given.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/session.h"
#include "server/api/chat_request.h"
#include "server/api/running_replies.h"
#include "server/http/exchange.h"
#include "server/service.h"

namespace gem::server {

// The one model that is served, as the metadata endpoints describe it.
struct ModelCard {
  std::string id;            // --alias, or the file's name without its folder and extension
  std::int64_t created = 0;  // Unix seconds
  std::string fingerprint;   // "gem-0.1.0"
};

struct ApiContext {
  Session& session;
  Service& service;
  ModelCard card;
  RequestDefaults defaults;
  // Replaceable in tests; ids are prefix + 32 letters and digits, time is Unix seconds.
  std::function<std::string(const char* prefix)> new_id;
  std::function<std::int64_t()> now;
  // Replies that set reasoning_control, by id; for chat_control.
  std::shared_ptr<RunningReplies> running = std::make_shared<RunningReplies>();
};

// The endpoints that generate. Each parses, validates and submits before it returns: everything that can be
// refused is refused as a plain response. They throw ApiError, which the router writes in the API's shape.
Reply chat_completions(const ApiContext& context, const HttpRequest& request);   // api/openai_chat.cpp
Reply completions(const ApiContext& context, const HttpRequest& request);        // api/completions.cpp
Reply native_completion(const ApiContext& context, const HttpRequest& request);  // api/native.cpp
Reply responses(const ApiContext& context, const HttpRequest& request);          // api/responses.cpp
Reply responses_input_tokens(const ApiContext& context, const HttpRequest& request);
Reply messages(const ApiContext& context, const HttpRequest& request);  // api/anthropic.cpp
Reply count_tokens(const ApiContext& context, const HttpRequest& request);
// Metadata and tokens: api/tokens.cpp, api/models.cpp
Reply chat_input_tokens(const ApiContext& context, const HttpRequest& request);
Reply apply_template(const ApiContext& context, const HttpRequest& request);
Reply tokenize(const ApiContext& context, const HttpRequest& request);
Reply detokenize(const ApiContext& context, const HttpRequest& request);
Reply list_models(const ApiContext& context, const HttpRequest& request);
Reply get_model(const ApiContext& context, const HttpRequest& request, const std::string& id);
Reply props(const ApiContext& context, const HttpRequest& request);
Reply slots(const ApiContext& context, const HttpRequest& request);
// POST /v1/chat/completions/control: closes the thought of a running request.
Reply chat_control(const ApiContext& context, const HttpRequest& request);

// The body as a JSON object. Throws ApiError with the position of the fault.
JsonValue parse_body(const HttpRequest& request);

}  // namespace gem::server
