#include "server/api/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "server/api/json_fields.h"
#include "text/python_text.h"

namespace gem::server {
namespace {

// Results are matched with the calls of their message, each with each.
constexpr std::size_t kMaxCallsOfMessage = 256;
constexpr std::size_t kMaxTools = 1024;
constexpr std::size_t kMaxToolName = 256;

constexpr std::string_view kNeedsConstraint = "not supported yet: needs constrained decoding";

void check_modalities(const FieldReader& fields) {
  const JsonValue* modalities = fields.array("modalities");
  if (modalities == nullptr) return;
  for (const JsonValue& item : modalities->items) {
    if (!item.is_string() || item.text != "text") {
      fields.refuse("modalities", fmt::format("only \"text\" is made here, found {}", describe(item)));
    }
  }
}

std::vector<Message> read_messages(const FieldReader& fields) {
  const JsonValue* value = fields.find("messages");
  if (value == nullptr) fields.refuse("messages", "missing");
  std::vector<Message> messages = naming_field("messages", [&] { return parse_messages(*value); });
  check_messages(messages);
  return messages;
}

void read_tool_choice(const FieldReader& fields, ChatRequest& request) {
  const JsonValue* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    if (choice->text == "auto") return;
    if (choice->text == "none") {
      request.tools_active = false;
    } else if (choice->text == "required" || choice->text == "any") {
      if (request.tools.empty()) fields.refuse("tool_choice", "a call is required, but there are no tools");
      fields.refuse("tool_choice", fmt::format("\"{}\" is {}", choice->text, kNeedsConstraint));
    } else {
      fields.refuse(
          "tool_choice",
          fmt::format("expected \"auto\", \"none\", \"required\" or an object, found {}", describe(*choice)));
    }
    return;
  }
  const FieldReader object = *fields.nested("tool_choice");
  const std::optional<std::string> type = object.text("type");
  if (!type) object.refuse("type", "missing");
  if (*type == "function") {
    const auto function = object.nested("function");
    if (!function) object.refuse("function", "missing");
    const std::optional<std::string> name = function->text("name");
    if (!name) function->refuse("name", "missing");
    const bool known = std::any_of(request.tools.begin(), request.tools.end(),
                                   [&](const Tool& tool) { return tool.name == *name; });
    if (!known) {
      function->refuse("name", fmt::format("no tool is called {}", describe(JsonValue::string(*name))));
    }
    fields.refuse("tool_choice", fmt::format("a named function is {}", kNeedsConstraint));
  }
  if (*type == "allowed_tools")
    fields.refuse("tool_choice", fmt::format("\"allowed_tools\" is {}", kNeedsConstraint));
  object.refuse("type", fmt::format("expected \"function\" or \"allowed_tools\", found {}",
                                    describe(JsonValue::string(*type))));
}

void read_tools(const FieldReader& fields, ChatRequest& request) {
  if (const JsonValue* value = fields.find("tools")) {
    request.tools = naming_field("tools", [&] { return parse_tools(*value); });
    check_tools(request.tools);
  }
  // The calls of the older form would never be made.
  if (const JsonValue* functions = fields.find("functions"); functions != nullptr) {
    if (!functions->is_array() || !functions->items.empty())
      fields.refuse("functions", "not supported; use tools");
  }
  if (const JsonValue* call = fields.find("function_call"); call != nullptr) {
    if (!call->is_string() || (call->text != "auto" && call->text != "none"))
      fields.refuse("function_call", "not supported; use tool_choice");
  }
  read_tool_choice(fields, request);
  request.tools_active = request.tools_active && !request.tools.empty();
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
}

void read_thinking(const FieldReader& fields, const RequestDefaults& defaults, ChatRequest& request) {
  request.thinking = defaults.thinking;
  std::optional<bool> chosen;
  if (const auto options = fields.nested("chat_template_kwargs")) {
    chosen = options->boolean("enable_thinking");
    request.preserve_thinking = options->boolean("preserve_thinking").value_or(false);
  }
  if (chosen) request.thinking = *chosen;
  if (const std::optional<std::string> effort = fields.text("reasoning_effort")) {
    request.thinking = thinking_of_effort(fields.path("reasoning_effort"), *effort, chosen);
  }
  if (const std::optional<std::string> format = fields.text("reasoning_format")) {
    if (*format == "none") {
      request.extract_reasoning = false;
    } else if (*format == "deepseek-legacy") {
      fields.refuse("reasoning_format",
                    "\"deepseek-legacy\" is not supported; use \"deepseek\" (thoughts apart) or \"none\" "
                    "(thoughts in the content)");
    } else if (*format != "auto" && *format != "deepseek") {
      fields.refuse("reasoning_format", fmt::format("expected \"none\", \"auto\" or \"deepseek\", found {}",
                                                    describe(JsonValue::string(*format))));
    }
  }
  request.thinking_budget = defaults.thinking_budget;
  bool found = false;
  for (const std::string_view name : {"thinking_budget_tokens", "reasoning_budget_tokens"}) {
    const auto budget = fields.integer(name, -1, std::numeric_limits<std::uint32_t>::max());
    if (!budget || found) continue;
    found = true;
    request.thinking_budget.reset();
    if (*budget >= 0) request.thinking_budget = static_cast<std::uint32_t>(*budget);
  }
  request.reasoning_control = fields.boolean("reasoning_control").value_or(false);
}

void read_continuation(const FieldReader& fields, ChatRequest& request) {
  const std::optional<bool> add = fields.boolean("add_generation_prompt");
  request.add_generation_prompt = add.value_or(true);
  const JsonValue* value = fields.find("continue_final_message");
  if (value == nullptr) {
    // An assistant's message at the end is gone on with, unless a new turn was asked for by name.
    if (ends_in_prefill(request.messages) && add != true) request.continue_final = ContinueFinal::kAuto;
    return;
  }
  if (value->kind == JsonValue::Kind::kBoolean) {
    if (!value->boolean) return;
    request.continue_final = ContinueFinal::kAuto;
  } else if (value->is_string() && value->text == "content") {
    request.continue_final = ContinueFinal::kContent;
  } else if (value->is_string() && value->text == "reasoning_content") {
    request.continue_final = ContinueFinal::kReasoning;
  } else {
    fields.refuse("continue_final_message",
                  fmt::format("expected true, false, \"content\" or \"reasoning_content\", found {}",
                              describe(*value)));
  }
  if (add == true)
    fields.refuse("continue_final_message", "cannot be set together with add_generation_prompt: true");
}

}  // namespace

bool thinking_of_effort(std::string_view field, std::string_view effort, std::optional<bool> chosen) {
  constexpr std::array<std::string_view, 6> kOn = {"minimal", "low", "medium", "high", "xhigh", "max"};
  if (effort == "none") return false;
  if (std::find(kOn.begin(), kOn.end(), effort) == kOn.end()) {
    refuse_field(field, fmt::format("expected none, minimal, low, medium, high, xhigh or max, found {}",
                                    describe(JsonValue::string(effort))));
  }
  return chosen.value_or(true);
}

void check_messages(const std::vector<Message>& messages, std::string_view field) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", field, i);
    if (messages[i].tool_calls.size() > kMaxCallsOfMessage) {
      refuse_field(place + ".tool_calls", fmt::format("{} calls, at most {} are taken in a message",
                                                      messages[i].tool_calls.size(), kMaxCallsOfMessage));
    }
    const std::vector<ContentPart>& parts = messages[i].content.parts;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      const char* what = nullptr;
      if (parts[k].kind == ContentPart::Kind::kImage) what = "an image";
      if (parts[k].kind == ContentPart::Kind::kAudio) what = "audio";
      if (parts[k].kind == ContentPart::Kind::kVideo) what = "a video";
      if (what == nullptr) continue;
      refuse_field(fmt::format("{}.content[{}]", place, k),
                   fmt::format("{} cannot be read: this server takes text only", what));
    }
  }
}

void check_tools(const std::vector<Tool>& tools, std::string_view field) {
  if (tools.size() > kMaxTools)
    refuse_field(field, fmt::format("{} tools, at most {} are taken", tools.size(), kMaxTools));
  for (std::size_t i = 0; i < tools.size(); ++i) {
    // A call is written call:NAME{…}, so that such a name could not be read back from it.
    const std::string& name = tools[i].name;
    const bool control = std::any_of(
        name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (name.size() <= kMaxToolName && !control && name.find_first_of("{}") == std::string::npos &&
        python_strip(name) == name && name.find("<|") == std::string::npos &&
        name.find("|>") == std::string::npos)
      continue;
    refuse_field(
        fmt::format("{}[{}]", field, i),
        fmt::format("the tool's name {} must have at most {} bytes, no braces, no control characters or "
                    "markers, and no blanks around it",
                    describe(JsonValue::string(name)), kMaxToolName));
  }
}

ChatRequest parse_chat_request(const JsonValue& body, const RequestDefaults& defaults,
                               const Tokenizer& tokenizer) {
  const FieldReader fields(body);
  ChatRequest request;
  fields.text("model");
  fields.boolean("logprobs");
  check_modalities(fields);
  request.generation = parse_generation_fields(body, defaults, tokenizer);
  request.stream = parse_stream_fields(body);
  request.messages = read_messages(fields);
  read_tools(fields, request);
  read_thinking(fields, defaults, request);
  read_continuation(fields, request);
  return request;
}

}  // namespace gem::server
