// POST /v1/messages and /v1/messages/count_tokens.
#include <memory>
#include <utility>
#include <vector>

#include "server/api/anthropic_request.h"
#include "server/api/anthropic_writer.h"
#include "server/api/api.h"
#include "server/api/json_echo.h"

namespace gem::server {

Reply messages(const ApiContext& context, const HttpRequest& request) {
  const AnthropicRequest parsed =
      parse_anthropic_request(parse_body(request), context.defaults, context.session.tokenizer());
  PreparedChat prepared = prepare_chat(parsed.chat, context.session);
  AnthropicReplyOptions options;
  options.id = context.new_id("msg_");
  name_jobs(prepared.jobs, options.id);
  options.model = context.card.id;
  options.prompt_tokens = prepared.prompt_tokens;
  options.omit_thinking = parsed.omit_thinking;
  auto writer = std::make_unique<AnthropicWriter>(std::move(options), context.new_id);
  std::vector<std::unique_ptr<Generation>> generations = context.service.submit(std::move(prepared.jobs));
  return parsed.chat.stream.stream ? stream_reply(std::move(generations), std::move(writer))
                                   : plain_reply(std::move(generations), std::move(writer));
}

Reply count_tokens(const ApiContext& context, const HttpRequest& request) {
  const AnthropicRequest parsed =
      parse_anthropic_request(parse_body(request), context.defaults, context.session.tokenizer());
  return json_response({{"input_tokens", encode_chat(parsed.chat, context.session).size()}});
}

}  // namespace gem::server
