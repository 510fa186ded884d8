#include "text/chat_jsonl.h"

#include <memory>

#include "base/error.h"
#include "text/json_value.h"

namespace gem {
namespace {

JsonValue object_of(std::string_view json) {
  JsonValue value = parse_json(json);
  if (!value.is_object()) fail(ErrorCode::kUsage, "a line must hold a JSON object");
  return value;
}

// The member, with null counting as absent.
const JsonValue* field(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

bool flag(const JsonValue& object, std::string_view key, bool otherwise) {
  const JsonValue* value = field(object, key);
  if (value == nullptr) return otherwise;
  if (value->kind != JsonValue::Kind::kBoolean) fail(ErrorCode::kUsage, "{}: must be true or false", key);
  return value->boolean;
}

// Whether the member is `second` rather than `first`, which it is by default.
bool is_second(const JsonValue& object, std::string_view key, std::string_view first,
               std::string_view second) {
  const JsonValue* value = field(object, key);
  if (value == nullptr || (value->is_string() && value->text == first)) return false;
  if (!value->is_string() || value->text != second) {
    fail(ErrorCode::kUsage, "{}: must be \"{}\" or \"{}\"", key, first, second);
  }
  return true;
}

ContinueFinal continue_final(const JsonValue& options) {
  const JsonValue* value = field(options, "continue_final_message");
  if (value == nullptr) return ContinueFinal::kNo;
  if (value->kind == JsonValue::Kind::kBoolean)
    return value->boolean ? ContinueFinal::kAuto : ContinueFinal::kNo;
  if (value->is_string() && value->text == "content") return ContinueFinal::kContent;
  if (value->is_string() && value->text == "reasoning_content") return ContinueFinal::kReasoning;
  fail(ErrorCode::kUsage, "continue_final_message: must be a boolean, \"content\" or \"reasoning_content\"");
}

class ObjectText {
 public:
  void string(std::string_view key, std::string_view text) {
    raw(key, to_json_text(JsonValue::string(text)));
  }
  void raw(std::string_view key, std::string_view json) {
    text_ += text_.empty() ? "{" : ",";
    text_ += to_json_text(JsonValue::string(key));
    text_ += ':';
    text_ += json;
  }
  std::string end() && { return std::move(text_) + "}"; }

 private:
  std::string text_;
};

}  // namespace

ChatCase parse_chat_case(std::string_view json, ChatVariant variant) {
  const JsonValue value = object_of(json);
  ChatCase result;
  const JsonValue* messages = field(value, "messages");
  if (messages == nullptr) fail(ErrorCode::kUsage, "messages: missing");
  result.messages = parse_messages(*messages, {.lenient = true});
  if (const JsonValue* tools = field(value, "tools")) result.tools = parse_tools(*tools);
  result.options.variant = variant;
  if (const JsonValue* options = field(value, "options")) {
    if (!options->is_object()) fail(ErrorCode::kUsage, "options: must be an object");
    result.options.add_generation_prompt = flag(*options, "add_generation_prompt", true);
    result.options.enable_thinking = flag(*options, "enable_thinking", false);
    result.options.preserve_thinking = flag(*options, "preserve_thinking", false);
    result.options.continue_final = continue_final(*options);
  }
  return result;
}

std::string format_line(std::string_view json, ChatVariant variant) {
  const ChatCase item = parse_chat_case(json, variant);
  const RenderedPrompt prompt = render_chat(item.messages, item.tools, item.options);
  ObjectText out;
  out.string(variant == ChatVariant::kSmall ? "prompt_small" : "prompt", to_text(prompt.pieces));
  return std::move(out).end();
}

std::string parse_line(std::string_view json, std::size_t chunk) {
  const JsonValue value = object_of(json);
  const JsonValue* text = field(value, "text");
  if (text == nullptr || !text->is_string()) fail(ErrorCode::kUsage, "text: must be a string");
  // An array of declarations instead of a flag: arguments are typed by their schemas.
  const JsonValue* tools = field(value, "tools");
  std::shared_ptr<const ToolTypes> types;
  if (tools != nullptr && tools->is_array()) types = std::make_shared<const ToolTypes>(parse_tools(*tools));
  ReplyParser parser({.start_thinking = is_second(value, "start", "content", "thinking"),
                      .tools_active = types != nullptr || flag(value, "tools", true),
                      .extract_reasoning = flag(value, "extract_reasoning", true),
                      .tools = types});
  feed_marked_text(parser, text->text, chunk);
  const bool length = is_second(value, "end", "eog", "length");
  return to_json_text(parser.finish(length ? ReplyEnd::kLength : ReplyEnd::kStop));
}

std::string to_json_text(const ParsedReply& reply) {
  std::string calls = "[";
  for (const ReplyCall& call : reply.tool_calls) {
    ObjectText item;
    item.string("name", call.name);
    item.string("arguments", call.arguments);
    if (calls.size() > 1) calls += ',';
    calls += std::move(item).end();
  }
  ObjectText out;
  out.string("reasoning", reply.reasoning);
  out.string("content", reply.content);
  out.raw("tool_calls", calls + "]");
  out.string("finish_reason", reply.finish_reason);
  if (!reply.diagnostics.empty()) {
    std::string lines;
    for (const std::string& line : reply.diagnostics) {
      lines += (lines.empty() ? "[" : ",") + to_json_text(JsonValue::string(line));
    }
    out.raw("diagnostics", lines + "]");
  }
  return std::move(out).end();
}

}  // namespace gem
