// POST /v1/responses and /v1/responses/input_tokens.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/api.h"
#include "server/api/json_echo.h"
#include "server/api/responses_request.h"
#include "server/api/responses_writer.h"

namespace gem::server {
namespace {

// A stream whose text is there from the beginning.
class ReadyEvents final : public EventSource {
 public:
  explicit ReadyEvents(std::string text) : text_(std::move(text)) {}
  void on_ready(std::function<void()> /*wake*/) override {}
  State pull(std::string& out) override {
    out += text_;
    return State::kDone;
  }

 private:
  std::string text_;
};

Reply event_stream(std::string text) {
  HttpResponse head;
  head.content_type = "text/event-stream";
  return EventReply{std::move(head), std::make_unique<ReadyEvents>(std::move(text))};
}

}  // namespace

Reply responses(const ApiContext& context, const HttpRequest& request) {
  ResponsesRequest parsed =
      parse_responses_request(parse_body(request), context.defaults, context.session.tokenizer());
  const bool stream = parsed.chat.stream.stream;
  const std::string id = context.new_id("resp_");
  parsed.response["id"] = id;
  parsed.response["created_at"] = context.now();
  parsed.response["model"] = context.card.id;
  auto writer = std::make_unique<ResponsesWriter>(std::move(parsed.response), context.new_id, context.now);
  try {
    PreparedChat prepared = prepare_chat(parsed.chat, context.session);
    name_jobs(prepared.jobs, id);
    std::vector<std::unique_ptr<Generation>> generations = context.service.submit(std::move(prepared.jobs));
    return stream ? stream_reply(std::move(generations), std::move(writer))
                  : plain_reply(std::move(generations), std::move(writer));
  } catch (const ApiError& error) {
    // The official server tells a stream of this in response.failed, and Codex shortens its history only
    // then; any HTTP status ends its turn.
    if (!stream || error.code != "context_length_exceeded") throw;
    std::string events;
    writer->begin(events);
    writer->fail(error.code, error.message, events);
    return event_stream(std::move(events));
  }
}

Reply responses_input_tokens(const ApiContext& context, const HttpRequest& request) {
  const ResponsesRequest parsed =
      parse_responses_request(parse_body(request), context.defaults, context.session.tokenizer());
  return json_response({{"object", "response.input_tokens"},
                        {"input_tokens", encode_chat(parsed.chat, context.session).size()}});
}

}  // namespace gem::server
