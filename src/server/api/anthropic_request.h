// The body of POST /v1/messages and /v1/messages/count_tokens.
#pragma once

#include <string>

#include "server/api/chat_request.h"

namespace gem::server {

struct AnthropicRequest {
  ChatRequest chat;
  bool omit_thinking = false;  // thinking.display "omitted"
};

// Throws ApiError naming the field. Thinking is off unless `thinking` asks for it, as in the official API,
// whatever the server's default is. Without max_tokens (official: required) the reply may fill the context.
// Tools that only Anthropic's servers can run are left out, with a line in the log.
AnthropicRequest parse_anthropic_request(const JsonValue& body, const RequestDefaults& defaults,
                                         const Tokenizer& tokenizer);

// Claude Code begins its system prompt with a billing header whose "cch=XXXXX;" differs in every request, by
// which no prompt would ever extend an earlier one. Puts a constant in its place; other texts are left alone.
void normalise_billing_header(std::string& system);

}  // namespace gem::server
