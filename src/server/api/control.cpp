// POST /v1/chat/completions/control
#include <nlohmann/json.hpp>

#include "server/api/api.h"
#include "server/api/json_echo.h"
#include "server/api/json_fields.h"

namespace gem::server {

Reply chat_control(const ApiContext& context, const HttpRequest& request) {
  const JsonValue body = parse_body(request);
  const FieldReader fields(body);
  const std::string id = fields.text("id").value_or("");
  if (id.empty()) fields.refuse("id", "missing: the id of a running reply is needed");
  const std::string action = fields.text("action").value_or("");
  if (action != "reasoning_end") fields.refuse("action", "must be \"reasoning_end\"");
  nlohmann::ordered_json body_out = {{"success", false}};
  switch (context.running->end_thought(id)) {
    case RunningReplies::Outcome::kClosed:
      body_out["success"] = true;
      break;
    case RunningReplies::Outcome::kNotThinking:
      body_out["message"] = "the reply is not in a thought";
      break;
    case RunningReplies::Outcome::kUnknown:
      body_out["message"] = "no running reply with reasoning_control has this id";
      break;
  }
  return json_response(body_out);
}

}  // namespace gem::server
