#include "server/api/anthropic_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/conversation.h"
#include "server/api/json_fields.h"

namespace gem::server {
namespace {

constexpr auto kOwn = std::to_array<std::string_view>(
    {"container", "logprobs", "mcp_servers", "messages", "metadata", "output_config", "output_format",
     "system", "thread", "thinking", "tool_choice", "tools", "top_logprobs"});
constexpr std::array<RenamedField, 1> kRenamed = {{{"stop_sequences", "stop"}}};

// The official client's tool runner asks for one, and sends whole conversations once it is told of this.
void refuse_threads(const FieldReader& body) {
  if (!body.has("thread")) return;
  ApiError error = ApiError::bad_field(
      "thread", "Field 'thread': conversations are not stored here; send all messages without it");
  error.code = "thread_unsupported_request";
  throw error;
}

void refuse_what_runs_elsewhere(const FieldReader& body) {
  for (const char* key : {"container", "mcp_servers"}) {
    const JsonValue* value = body.find(key);
    if (value == nullptr || (value->is_array() && value->items.empty())) continue;
    body.refuse(key, "not supported: this server runs no tools itself");
  }
  constexpr std::string_view kConstraint =
      "a JSON reply needs constrained decoding, which is not supported yet";
  if (body.has("output_format")) body.refuse("output_format", kConstraint);
  const std::optional<FieldReader> config = body.nested("output_config");
  if (config && config->has("format")) config->refuse("format", kConstraint);
}

std::string blocks_text(const JsonValue& content, const std::string& path);

// The text of what a document or a search result holds; media and files are refused.
std::string document_text(const FieldReader& block) {
  const std::optional<FieldReader> source = block.nested("source");
  if (!source) block.refuse("source", "missing");
  std::string text = block.text("title").value_or("");
  append_line(text, block.text("context").value_or(""));
  const std::string type = needed_text(*source, "type");
  if (type == "text") {
    append_line(text, needed_text(*source, "data"));
  } else if (type == "content" && source->has("content")) {
    append_line(text, blocks_text(*source->find("content"), source->path("content")));
  } else {
    source->refuse("type", fmt::format("documents of type \"{}\" are not supported; send their text", type));
  }
  return text;
}

std::string search_result_text(const FieldReader& block) {
  std::string text = block.text("title").value_or("");
  append_line(text, block.text("source").value_or(""));
  if (const JsonValue* content = block.array("content")) {
    append_line(text, blocks_text(*content, block.path("content")));
  }
  return text;
}

// A block whose place is a text: of a user, a system prompt, a tool's result.
std::string block_text(const FieldReader& block, const std::string& type, const std::string& path) {
  if (type == "text") return needed_text(block, "text");
  if (type == "document") return document_text(block);
  if (type == "search_result") return search_result_text(block);
  if (type == "image") refuse_image(path);
  block.refuse("type", fmt::format("blocks of type \"{}\" are not supported here", type));
}

// A string, or blocks, each on its own line.
std::string blocks_text(const JsonValue& content, const std::string& path) {
  if (content.is_string()) return content.text;
  if (!content.is_array()) {
    refuse_field(path, fmt::format("expected a string or an array of blocks, found {}", describe(content)));
  }
  std::string text;
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const std::string place = element(path, i);
    const FieldReader block = object_at(content.items[i], place);
    append_line(text, block_text(block, needed_text(block, "type"), place));
  }
  return text;
}

void add_tool_result(const FieldReader& block, ConversationBuilder& conversation) {
  const std::string id = needed_text(block, "tool_use_id");
  const JsonValue* content = block.find("content");
  std::string text = content != nullptr ? blocks_text(*content, block.path("content")) : std::string();
  if (block.boolean("is_error").value_or(false)) {
    // The format has no field for it, so that the text must say it.
    constexpr std::string_view kError = "error";
    const bool said = text.size() >= kError.size() &&
                      std::equal(kError.begin(), kError.end(), text.begin(),
                                 [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); });
    if (!said) text.insert(0, text.empty() ? "Error" : "Error: ");
  }
  if (!conversation.result(id, std::move(text))) {
    block.refuse("tool_use_id", fmt::format("no tool_use block before it has the id \"{}\"", id));
  }
}

void add_user(const JsonValue& content, const std::string& path, ConversationBuilder& conversation) {
  if (!content.is_array()) return conversation.user(blocks_text(content, path));
  std::string text;
  bool said = content.items.empty();
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const std::string place = element(path, i);
    const FieldReader block = object_at(content.items[i], place);
    const std::string type = needed_text(block, "type");
    if (type == "tool_result") {
      add_tool_result(block, conversation);
    } else {
      append_line(text, block_text(block, type, place));
      said = true;
    }
  }
  if (said) conversation.user(text);
}

void add_assistant(const JsonValue& content, const std::string& path, ConversationBuilder& conversation) {
  if (content.is_string()) {
    if (!content.text.empty()) conversation.text(content.text);
    return;
  }
  if (!content.is_array()) {
    refuse_field(path, fmt::format("expected a string or an array of blocks, found {}", describe(content)));
  }
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const std::string place = element(path, i);
    const FieldReader block = object_at(content.items[i], place);
    const std::string type = needed_text(block, "type");
    if (type == "text") {
      conversation.text(needed_text(block, "text"));
    } else if (type == "thinking") {
      conversation.thought(needed_text(block, "thinking"));
    } else if (type == "tool_use") {
      conversation.call(needed_text(block, "id"), needed_text(block, "name"),
                        call_arguments_of(block, "input"));
    } else if (type != "redacted_thinking") {  // which only its maker can read
      block.refuse("type", fmt::format("blocks of type \"{}\" are not supported here", type));
    }
  }
}

void add_message(const JsonValue& value, const std::string& path, ConversationBuilder& conversation) {
  const FieldReader message = object_at(value, path);
  const std::string role = needed_text(message, "role");
  const JsonValue* content = message.find("content");
  if (content == nullptr) message.refuse("content", "missing");
  const std::string place = message.path("content");
  if (role == "user") {
    add_user(*content, place, conversation);
  } else if (role == "assistant") {
    add_assistant(*content, place, conversation);
  } else if (role == "system") {
    conversation.system(blocks_text(*content, place));
  } else {
    message.refuse("role", fmt::format("expected user or assistant, found \"{}\"", role));
  }
}

std::vector<Message> parse_conversation(const FieldReader& body) {
  ConversationBuilder conversation;
  if (const JsonValue* system = body.find("system")) {
    std::string text = blocks_text(*system, "system");
    normalise_billing_header(text);
    conversation.system(text);
  }
  const JsonValue* messages = body.array("messages");
  if (messages == nullptr) body.refuse("messages", "missing");
  if (messages->items.empty()) body.refuse("messages", "must not be empty");
  for (std::size_t i = 0; i < messages->items.size(); ++i) {
    add_message(messages->items[i], element("messages", i), conversation);
  }
  if (conversation.empty()) body.refuse("messages", "say nothing");
  return conversation.take();
}

std::vector<Tool> parse_client_tools(const FieldReader& body) {
  std::vector<Tool> tools;
  const JsonValue* list = body.array("tools");
  if (list == nullptr) return tools;
  std::set<std::string> skipped;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const FieldReader fields = object_at(list->items[i], element("tools", i));
    if (const std::string type = fields.text("type").value_or("custom"); type != "custom") {
      skipped.insert(type);
      continue;
    }
    Tool tool;
    tool.name = needed_text(fields, "name");
    if (tool.name.empty()) fields.refuse("name", "must not be empty");
    tool.description = fields.text("description").value_or("");
    if (const JsonValue* schema = fields.object("input_schema")) tool.parameters = *schema;
    tools.push_back(std::move(tool));
  }
  log_skipped_tools("messages", skipped);
  return tools;
}

void parse_tool_choice(const FieldReader& body, ChatRequest& chat) {
  const std::optional<FieldReader> choice = body.nested("tool_choice");
  if (!choice) return;
  const std::string type = needed_text(*choice, "type");
  chat.parallel_tool_calls = !choice->boolean("disable_parallel_tool_use").value_or(false);
  if (type == "none") {
    chat.tools_active = false;
  } else if (type == "tool") {
    const std::string name = needed_text(*choice, "name");
    const bool known = std::any_of(chat.tools.begin(), chat.tools.end(),
                                   [&](const Tool& tool) { return tool.name == name; });
    if (!known) choice->refuse("name", fmt::format("there is no tool \"{}\"", name));
    refuse_forced_call("tool_choice");
  } else if (type == "any") {
    refuse_forced_call("tool_choice");
  } else if (type != "auto") {
    choice->refuse("type", fmt::format("expected auto, any, tool or none, found \"{}\"", type));
  }
}

void parse_thinking(const FieldReader& body, AnthropicRequest& request) {
  const std::optional<FieldReader> thinking = body.nested("thinking");
  if (!thinking) return;
  const std::string type = needed_text(*thinking, "type");
  if (type == "disabled") {
    request.chat.thinking = false;
  } else if (type == "enabled" || type == "adaptive") {
    request.chat.thinking = true;
    // Official: at least 1,024 and less than max_tokens; a small model needs fewer.
    if (const auto budget =
            thinking->integer("budget_tokens", 0, std::numeric_limits<std::uint32_t>::max())) {
      request.chat.thinking_budget = static_cast<std::uint32_t>(*budget);
    }
  } else {
    thinking->refuse("type", fmt::format("expected enabled, adaptive or disabled, found \"{}\"", type));
  }
  if (const std::optional<std::string> display = thinking->text("display")) {
    if (*display != "summarized" && *display != "omitted") {
      thinking->refuse("display", fmt::format("expected summarized or omitted, found \"{}\"", *display));
    }
    request.omit_thinking = *display == "omitted";
  }
}

}  // namespace

void normalise_billing_header(std::string& system) {
  constexpr std::string_view kHeader = "x-anthropic-billing-header:";
  constexpr std::string_view kKey = "cch=";
  constexpr std::size_t kLength = 5;
  if (!system.starts_with(kHeader)) return;
  const std::size_t line = std::min(system.find('\n'), system.size());
  const std::size_t key = system.find(kKey, kHeader.size());
  if (key == std::string::npos || key > line) return;
  const std::size_t value = key + kKey.size();
  if (system.find(';', value) == value + kLength) system.replace(value, kLength, kLength, '0');
}

AnthropicRequest parse_anthropic_request(const JsonValue& body, const RequestDefaults& defaults,
                                         const Tokenizer& tokenizer) {
  const FieldReader fields(body);
  refuse_threads(fields);
  refuse_what_runs_elsewhere(fields);
  RequestDefaults official = defaults;
  official.thinking = false;
  AnthropicRequest request;
  request.chat = parse_common_fields(body, kOwn, kRenamed, official, tokenizer);
  ChatRequest& chat = request.chat;
  parse_thinking(fields, request);
  chat.tools = parse_client_tools(fields);
  check_tools(chat.tools, "tools");
  chat.tools_active = true;
  parse_tool_choice(fields, chat);
  chat.tools_active = chat.tools_active && !chat.tools.empty();
  chat.messages = parse_conversation(fields);
  check_messages(chat.messages, "messages");
  chat.continue_final = ends_in_prefill(chat.messages) ? ContinueFinal::kAuto : ContinueFinal::kNo;
  return request;
}

}  // namespace gem::server
