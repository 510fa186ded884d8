#include "text/chat_message.h"

#include <nlohmann/json.hpp>

#include <array>
#include <utility>

#include "base/error.h"

namespace gem {
namespace {

[[noreturn]] void refuse(const std::string& path, std::string_view message) {
  fail(ErrorCode::kUsage, "{}: {}", path, message);
}

// The member, with null counting as absent.
const JsonValue* field(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

std::string text_field(const JsonValue& object, std::string_view key, const std::string& path) {
  const JsonValue* value = field(object, key);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse(fmt::format("{}.{}", path, key), "must be a string");
  return value->text;
}

const JsonValue& object_at(const JsonValue& value, const std::string& path) {
  if (!value.is_object()) refuse(path, "must be an object");
  return value;
}

const JsonValue& array_at(const JsonValue& value, const std::string& path) {
  if (!value.is_array()) refuse(path, "must be an array");
  return value;
}

std::string element(const std::string& path, std::size_t index) {
  return fmt::format("{}[{}]", path, index);
}

// image_url: {"url": …} or the bare URL; input_audio: {"data": …}.
std::string media_source(const JsonValue& part, std::string_view type, const std::string& path) {
  const JsonValue* payload = field(part, type);
  if (payload == nullptr) return {};
  if (payload->is_string()) return payload->text;
  const std::string place = fmt::format("{}.{}", path, type);
  object_at(*payload, place);
  for (const char* key : {"url", "data"}) {
    if (field(*payload, key) != nullptr) return text_field(*payload, key, place);
  }
  return {};
}

ContentPart parse_part(const JsonValue& part, const std::string& path, const MessageRules& rules) {
  struct Known {
    std::string_view type;
    ContentPart::Kind kind;
    std::string_view text_key;
  };
  using Kind = ContentPart::Kind;
  static constexpr std::array kKnown = std::to_array<Known>({
      {"text", Kind::kText, "text"},
      {"input_text", Kind::kText, "text"},
      {"output_text", Kind::kText, "text"},
      {"refusal", Kind::kText, "refusal"},
      {"image", Kind::kImage, {}},
      {"image_url", Kind::kImage, {}},
      {"audio", Kind::kAudio, {}},
      {"input_audio", Kind::kAudio, {}},
      {"video", Kind::kVideo, {}},
      {"input_video", Kind::kVideo, {}},
  });
  object_at(part, path);
  const std::string type = text_field(part, "type", path);
  ContentPart result;
  for (const Known& known : kKnown) {
    if (type != known.type) continue;
    result.kind = known.kind;
    if (known.kind != Kind::kText) {
      result.source = media_source(part, type, path);
    } else if (field(part, known.text_key) == nullptr && !rules.lenient) {
      refuse(fmt::format("{}.{}", path, known.text_key), "missing");
    } else {
      result.text = text_field(part, known.text_key, path);
    }
    return result;
  }
  if (!rules.lenient) refuse(path + ".type", fmt::format("unsupported content[].type \"{}\"", type));
  result.kind = Kind::kOther;
  if (const JsonValue* text = field(part, "text"); text != nullptr && text->is_string())
    result.text = text->text;
  return result;
}

Content parse_content(const JsonValue* value, bool tool, const std::string& path, const MessageRules& rules) {
  Content content;
  if (value == nullptr || value->is_null()) return content;
  if (value->is_string()) {
    content.form = Content::Form::kText;
    content.text = value->text;
  } else if (value->is_array()) {
    content.form = Content::Form::kParts;
    for (std::size_t i = 0; i < value->items.size(); ++i) {
      content.parts.push_back(parse_part(value->items[i], element(path, i), rules));
    }
  } else if (value->is_object() && tool) {
    content.form = Content::Form::kText;
    content.text = to_json_text(*value);
  } else {
    refuse(path, "must be a string, null or an array of parts");
  }
  return content;
}

JsonValue parse_arguments(const JsonValue* value, const std::string& path) {
  if (value == nullptr) return JsonValue::object();
  if (value->is_object()) return *value;
  if (!value->is_string()) refuse(path, "must be the JSON text of an object");
  if (value->text.empty()) return JsonValue::object();
  JsonValue arguments;
  try {
    arguments = parse_json(value->text);
  } catch (const Error& error) {
    refuse(path, error.what());
  }
  if (!arguments.is_object()) refuse(path, "must be the JSON text of an object");
  return arguments;
}

ToolCall parse_call(const JsonValue& value, const std::string& path) {
  object_at(value, path);
  ToolCall call;
  if (field(value, "id") != nullptr) call.id = text_field(value, "id", path);
  const std::string place = path + ".function";
  const JsonValue* function = field(value, "function");
  if (function == nullptr) refuse(place, "missing");
  object_at(*function, place);
  call.name = text_field(*function, "name", place);
  if (call.name.empty()) refuse(place + ".name", "must be a non-empty string");
  call.arguments = parse_arguments(field(*function, "arguments"), place + ".arguments");
  return call;
}

Message parse_message(const JsonValue& value, const std::string& path, const MessageRules& rules) {
  object_at(value, path);
  Message message;
  message.role = text_field(value, "role", path);
  if (message.role == "function") message.role = "tool";
  const bool assistant = message.role == "assistant";
  const bool tool = message.role == "tool";
  const bool known =
      assistant || tool || message.role == "user" || message.role == "system" || message.role == "developer";
  if (message.role.empty() || (!known && !rules.lenient)) {
    refuse(path + ".role", "must be one of system, developer, user, assistant, tool");
  }
  const JsonValue* content = value.find("content");
  message.content = parse_content(content, tool, path + ".content", rules);
  message.reasoning = text_field(value, "reasoning", path);
  if (message.reasoning.empty()) message.reasoning = text_field(value, "reasoning_content", path);
  if (const JsonValue* calls = field(value, "tool_calls")) {
    const std::string place = path + ".tool_calls";
    array_at(*calls, place);
    for (std::size_t i = 0; i < calls->items.size(); ++i) {
      message.tool_calls.push_back(parse_call(calls->items[i], element(place, i)));
    }
    if (!message.tool_calls.empty() && !assistant && !rules.lenient) {
      refuse(place, "only an assistant message has tool calls");
    }
  }
  if (const JsonValue* responses = field(value, "tool_responses")) {
    const std::string place = path + ".tool_responses";
    array_at(*responses, place);
    for (std::size_t i = 0; i < responses->items.size(); ++i) {
      const JsonValue& response = object_at(responses->items[i], element(place, i));
      const JsonValue* result = response.find("response");
      message.tool_responses.push_back(
          {text_field(response, "name", element(place, i)), result != nullptr ? *result : JsonValue{}});
    }
  }
  if (field(value, "tool_call_id") != nullptr) message.tool_call_id = text_field(value, "tool_call_id", path);
  message.name = text_field(value, "name", path);
  const bool carries =
      content != nullptr || (assistant && (!message.tool_calls.empty() || !message.reasoning.empty() ||
                                           !message.tool_responses.empty()));
  if (!carries && !rules.lenient) {
    refuse(path + ".content", assistant ? "missing, and there are no tool_calls either" : "missing");
  }
  return message;
}

Tool parse_tool(const JsonValue& value, const std::string& path) {
  object_at(value, path);
  if (const std::string type = text_field(value, "type", path); !type.empty() && type != "function") {
    refuse(path + ".type", fmt::format("only \"function\" tools are supported, not \"{}\"", type));
  }
  const std::string place = path + ".function";
  const JsonValue* function = field(value, "function");
  if (function == nullptr) refuse(place, "missing");
  object_at(*function, place);
  Tool tool;
  tool.name = text_field(*function, "name", place);
  if (tool.name.empty()) refuse(place + ".name", "must be a non-empty string");
  tool.description = text_field(*function, "description", place);
  if (const JsonValue* parameters = field(*function, "parameters")) {
    tool.parameters = object_at(*parameters, fmt::format("{}.parameters (tool \"{}\")", place, tool.name));
  }
  if (const JsonValue* response = field(*function, "response")) {
    tool.response = object_at(*response, fmt::format("{}.response (tool \"{}\")", place, tool.name));
  }
  return tool;
}

}  // namespace

std::vector<Message> parse_messages(const JsonValue& messages, const MessageRules& rules) {
  array_at(messages, "messages");
  if (messages.items.empty() && !rules.lenient) refuse("messages", "must not be empty");
  std::vector<Message> result;
  result.reserve(messages.items.size());
  for (std::size_t i = 0; i < messages.items.size(); ++i) {
    result.push_back(parse_message(messages.items[i], element("messages", i), rules));
  }
  return result;
}

std::vector<Message> parse_messages(const nlohmann::ordered_json& messages, const MessageRules& rules) {
  return parse_messages(to_json_value(messages), rules);
}

std::vector<Tool> parse_tools(const JsonValue& tools) {
  std::vector<Tool> result;
  if (tools.is_null()) return result;
  array_at(tools, "tools");
  for (std::size_t i = 0; i < tools.items.size(); ++i) {
    result.push_back(parse_tool(tools.items[i], element("tools", i)));
  }
  return result;
}

std::vector<Tool> parse_tools(const nlohmann::ordered_json& tools) {
  return parse_tools(to_json_value(tools));
}

bool ends_in_prefill(const std::vector<Message>& messages) {
  return !messages.empty() && messages.back().role == "assistant" && messages.back().tool_calls.empty() &&
         messages.back().tool_responses.empty();
}

}  // namespace gem
