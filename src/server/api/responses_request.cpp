#include "server/api/responses_request.h"

#include <fmt/format.h>

#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/conversation.h"
#include "server/api/json_echo.h"
#include "server/api/json_fields.h"

namespace gem::server {
namespace {

using nlohmann::ordered_json;

// The fields that this API gives a meaning of its own, or none.
constexpr auto kOwn = std::to_array<std::string_view>(
    {"background", "conversation", "include", "input", "instructions", "logprobs", "max_tool_calls",
     "messages", "metadata", "parallel_tool_calls", "previous_response_id", "prompt", "reasoning", "text",
     "tool_choice", "tools", "top_logprobs", "truncation"});
constexpr std::array<RenamedField, 1> kRenamed = {{{"max_output_tokens", "max_completion_tokens"}}};

void refuse_what_needs_state(const FieldReader& body) {
  for (const char* key : {"previous_response_id", "conversation", "prompt"}) {
    if (body.has(key)) {
      body.refuse(key, "responses are not stored here; send the whole conversation as input");
    }
  }
  if (body.boolean("background").value_or(false)) {
    body.refuse("background", "responses are not stored here, so there is no work in the background");
  }
}

// The text of content parts, each on its own line.
std::string parts_text(const JsonValue& parts, const std::string& path) {
  std::string text;
  for (std::size_t i = 0; i < parts.items.size(); ++i) {
    const std::string place = element(path, i);
    const FieldReader part = object_at(parts.items[i], place);
    const std::string type = needed_text(part, "type");
    if (type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text" ||
        type == "summary_text") {
      append_line(text, needed_text(part, "text"));
    } else if (type == "refusal") {
      append_line(text, needed_text(part, "refusal"));
    } else if (type == "input_image") {
      refuse_image(place);
    } else {
      part.refuse("type", fmt::format("parts of type \"{}\" are not supported", type));
    }
  }
  return text;
}

// A string, or parts. Missing is refused.
std::string content_text(const FieldReader& item, std::string_view key) {
  const JsonValue* content = item.find(key);
  if (content == nullptr) item.refuse(key, "missing");
  if (content->is_string()) return content->text;
  if (!content->is_array()) {
    item.refuse(key, fmt::format("expected a string or an array of parts, found {}", describe(*content)));
  }
  return parts_text(*content, item.path(key));
}

void add_message(const FieldReader& item, ConversationBuilder& conversation) {
  const std::string role = needed_text(item, "role");
  const std::string text = content_text(item, "content");
  if (role == "system" || role == "developer") {
    conversation.system(text);
  } else if (role == "user") {
    conversation.user(text);
  } else if (role == "assistant") {
    conversation.text(text);
  } else {
    item.refuse("role", fmt::format("expected system, developer, user or assistant, found \"{}\"", role));
  }
}

// The thought itself, or its summary where the client kept no more.
void add_reasoning(const FieldReader& item, ConversationBuilder& conversation) {
  for (const char* key : {"content", "summary"}) {
    const JsonValue* parts = item.array(key);
    if (parts != nullptr && !parts->items.empty()) {
      return conversation.thought(parts_text(*parts, item.path(key)));
    }
  }
}

void add_result(const FieldReader& item, ConversationBuilder& conversation) {
  const std::string id = needed_text(item, "call_id");
  if (!conversation.result(id, content_text(item, "output"))) {
    item.refuse("call_id", fmt::format("no call before this output has the id \"{}\"", id));
  }
}

void add_item(const JsonValue& value, const std::string& path, ConversationBuilder& conversation) {
  const FieldReader item = object_at(value, path);
  const std::string type = item.text("type").value_or("message");
  if (type == "message") {
    add_message(item, conversation);
  } else if (type == "reasoning") {
    add_reasoning(item, conversation);
  } else if (type == "function_call") {
    conversation.call(needed_text(item, "call_id"), needed_text(item, "name"),
                      call_arguments_of(item, "arguments"));
  } else if (type == "custom_tool_call") {  // of a history that another model began
    JsonValue arguments = JsonValue::object();
    arguments.members.push_back({"input", JsonValue::string(item.text("input").value_or(""))});
    conversation.call(needed_text(item, "call_id"), needed_text(item, "name"), std::move(arguments));
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    add_result(item, conversation);
  } else if (type == "item_reference") {
    item.refuse("type", "items are not stored here; send the item itself");
  } else {
    item.refuse("type", fmt::format("items of type \"{}\" are not supported", type));
  }
}

std::vector<Message> parse_input(const FieldReader& body) {
  ConversationBuilder conversation;
  if (const JsonValue* instructions = body.find("instructions")) {
    if (!instructions->is_string()) {
      body.refuse("instructions", fmt::format("expected a string, found {}", describe(*instructions)));
    }
    conversation.system(instructions->text);
  }
  const JsonValue* input = body.find("input");
  if (input == nullptr) body.refuse("input", "missing");
  if (input->is_string()) {
    conversation.user(input->text);
  } else if (input->is_array()) {
    if (input->items.empty()) body.refuse("input", "must not be empty");
    for (std::size_t i = 0; i < input->items.size(); ++i) {
      add_item(input->items[i], element("input", i), conversation);
    }
  } else {
    body.refuse("input", fmt::format("expected a string or an array of items, found {}", describe(*input)));
  }
  return conversation.take();
}

std::vector<Tool> parse_function_tools(const FieldReader& body) {
  std::vector<Tool> tools;
  const JsonValue* list = body.array("tools");
  if (list == nullptr) return tools;
  std::set<std::string> skipped;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string path = element("tools", i);
    const FieldReader fields = object_at(list->items[i], path);
    const std::string type = needed_text(fields, "type");
    if (type != "function") {
      skipped.insert(type);
      continue;
    }
    Tool tool;
    tool.name = needed_text(fields, "name");
    if (tool.name.empty()) fields.refuse("name", "must not be empty");
    tool.description = fields.text("description").value_or("");
    if (const JsonValue* parameters = fields.object("parameters")) tool.parameters = *parameters;
    tools.push_back(std::move(tool));
  }
  log_skipped_tools("responses", skipped);
  return tools;
}

// True: calls are looked for.
bool parse_tool_choice(const FieldReader& body, const std::vector<Tool>& tools) {
  const JsonValue* choice = body.find("tool_choice");
  if (choice == nullptr) return true;
  if (choice->is_string()) {
    if (choice->text == "auto") return true;
    if (choice->text == "none") return false;
    if (choice->text == "required") refuse_forced_call("tool_choice");
    body.refuse("tool_choice", fmt::format("expected \"auto\", \"none\", \"required\" or an object, found {}",
                                           describe(*choice)));
  }
  const FieldReader fields = object_at(*choice, "tool_choice");
  const std::string type = needed_text(fields, "type");
  if (type != "function") {
    fields.refuse("type", fmt::format("only functions can be called here, not \"{}\"", type));
  }
  const std::string name = needed_text(fields, "name");
  for (const Tool& tool : tools) {
    if (tool.name == name) refuse_forced_call("tool_choice");
  }
  fields.refuse("name", fmt::format("there is no tool \"{}\"", name));
}

void parse_text_format(const FieldReader& body) {
  const std::optional<FieldReader> text = body.nested("text");
  if (!text) return;
  const std::optional<FieldReader> format = text->nested("format");
  if (!format) return;
  const std::string type = needed_text(*format, "type");
  if (type == "text") return;
  if (type == "json_schema" || type == "json_object") {
    text->refuse("format",
                 fmt::format("\"{}\" needs constrained decoding, which is not supported yet", type));
  }
  format->refuse("type", fmt::format("expected text, json_object or json_schema, found \"{}\"", type));
}

void parse_effort(const FieldReader& body, ChatRequest& chat) {
  const std::optional<FieldReader> reasoning = body.nested("reasoning");
  if (!reasoning) return;
  const std::optional<std::string> effort = reasoning->text("effort");
  if (!effort) return;
  chat.thinking = thinking_of_effort(reasoning->path("effort"), *effort, std::nullopt);
}

void refuse_logprobs(const FieldReader& body) {
  if (body.integer("top_logprobs", 0, 20).value_or(0) > 0) {
    body.refuse("top_logprobs",
                "not supported by this API here; /v1/chat/completions gives log probabilities");
  }
  const JsonValue* include = body.array("include");
  if (include == nullptr) return;
  for (std::size_t i = 0; i < include->items.size(); ++i) {
    if (include->items[i].is_string() && include->items[i].text == "message.output_text.logprobs") {
      refuse_field(element("include", i),
                   "not supported by this API here; /v1/chat/completions gives log probabilities");
    }
  }
}

ordered_json echo_field(const FieldReader& body, std::string_view key, ordered_json absent) {
  const JsonValue* value = body.find(key);
  return value != nullptr ? echo(*value) : absent;
}

ordered_json response_object(const FieldReader& body, const ChatRequest& chat) {
  ordered_json response;
  response["id"] = nullptr;
  response["object"] = "response";
  response["created_at"] = nullptr;
  response["completed_at"] = nullptr;
  response["status"] = "in_progress";
  response["background"] = false;
  response["error"] = nullptr;
  response["incomplete_details"] = nullptr;
  response["instructions"] = echo_field(body, "instructions", nullptr);
  response["max_output_tokens"] =
      chat.generation.max_tokens > 0 ? ordered_json(chat.generation.max_tokens) : ordered_json();
  response["max_tool_calls"] = echo_field(body, "max_tool_calls", nullptr);
  response["model"] = nullptr;
  response["output"] = ordered_json::array();
  response["parallel_tool_calls"] = chat.parallel_tool_calls;
  response["previous_response_id"] = nullptr;
  response["prompt_cache_key"] = echo_field(body, "prompt_cache_key", nullptr);
  response["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  if (const std::optional<FieldReader> reasoning = body.nested("reasoning")) {
    response["reasoning"]["effort"] = echo_field(*reasoning, "effort", nullptr);
  }
  response["safety_identifier"] = echo_field(body, "safety_identifier", nullptr);
  response["service_tier"] = "default";
  response["store"] = false;  // nothing is
  response["temperature"] = chat.generation.sampling.temperature;
  response["text"] = {{"format", {{"type", "text"}}}};
  response["tool_choice"] = echo_field(body, "tool_choice", "auto");
  response["tools"] = echo_field(body, "tools", ordered_json::array());
  response["top_logprobs"] = 0;
  response["top_p"] = chat.generation.sampling.top_p;
  response["truncation"] = "disabled";
  response["usage"] = nullptr;
  response["user"] = echo_field(body, "user", nullptr);
  response["metadata"] = echo_field(body, "metadata", ordered_json::object());
  return response;
}

}  // namespace

ResponsesRequest parse_responses_request(const JsonValue& body, const RequestDefaults& defaults,
                                         const Tokenizer& tokenizer) {
  const FieldReader fields(body);
  refuse_what_needs_state(fields);
  refuse_logprobs(fields);
  parse_text_format(fields);
  ResponsesRequest request;
  request.chat = parse_common_fields(body, kOwn, kRenamed, defaults, tokenizer);
  ChatRequest& chat = request.chat;
  parse_effort(fields, chat);
  chat.tools = parse_function_tools(fields);
  check_tools(chat.tools, "tools");
  chat.tools_active = parse_tool_choice(fields, chat.tools) && !chat.tools.empty();
  chat.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  chat.messages = parse_input(fields);
  check_messages(chat.messages, "input");
  // A trailing assistant message is history here, not the beginning of the reply.
  chat.continue_final = ContinueFinal::kNo;
  request.response = response_object(fields, chat);
  return request;
}

}  // namespace gem::server
