// A conversation as clients send it (OpenAI's wire form), checked and typed.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_value.h"

namespace gem {

struct ContentPart {
  enum class Kind { kText, kImage, kAudio, kVideo, kOther };
  Kind kind = Kind::kText;
  std::string text;  // kText
  std::string
      source;  // media: the URL (data:…;base64,… included) or the base64 data; empty if none was given
};

struct Content {
  enum class Form { kNone, kText, kParts };  // kNone: null or absent
  Form form = Form::kNone;
  std::string text;                // kText
  std::vector<ContentPart> parts;  // kParts
};

struct ToolCall {
  std::optional<std::string> id;
  std::string name;
  JsonValue arguments;  // always an object
};

// Google's own shape: results on the assistant message itself.
struct ToolResponse {
  std::string name;  // empty: unknown
  JsonValue response;
};

struct Message {
  std::string role;  // as on the wire; "function" has become "tool"
  Content content;
  std::string reasoning;  // `reasoning`, or `reasoning_content` where that is absent or empty
  std::vector<ToolCall> tool_calls;
  std::vector<ToolResponse> tool_responses;
  std::optional<std::string> tool_call_id;
  std::string name;
};

struct Tool {
  std::string name;
  std::string description;
  JsonValue parameters;               // an object, or null
  std::optional<JsonValue> response;  // an object
};

struct MessageRules {
  // What the template itself takes beyond the API: roles of any name, parts of unknown type (they vanish),
  // messages without content. For the diagnostic verbs.
  bool lenient = false;
};

// Both throw Error(kUsage) naming the place ("messages[2].tool_calls[0].function.arguments: …") and what was
// expected. Unknown fields are ignored and null counts as absent.
//
// messages: an array; `arguments` may be JSON text of an object, an object, empty text or null (both mean
// {}). An object as content of a tool message is taken as its JSON text.
std::vector<Message> parse_messages(const JsonValue& messages, const MessageRules& rules = {});
std::vector<Message> parse_messages(const nlohmann::ordered_json& messages, const MessageRules& rules = {});

// tools: an array of {type: "function", function: {name, description, parameters, response}}, or null.
std::vector<Tool> parse_tools(const JsonValue& tools);
std::vector<Tool> parse_tools(const nlohmann::ordered_json& tools);

// Whether the last message is an assistant's text that the model should go on with (a prefill).
bool ends_in_prefill(const std::vector<Message>& messages);

}  // namespace gem
