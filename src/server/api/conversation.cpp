#include "server/api/conversation.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace gem::server {
namespace {

Message make_message(std::string role, std::string text) {
  Message message;
  message.role = std::move(role);
  message.content.form = Content::Form::kText;
  message.content.text = std::move(text);
  return message;
}

}  // namespace

void ConversationBuilder::system(const std::string& text) {
  if (steps_.size() == 1 && steps_.front().message.role == "system") {
    std::string& all = steps_.front().message.content.text;
    if (!all.empty() && !text.empty()) all += "\n\n";
    all += text;
    return;
  }
  steps_.push_back({make_message("system", text), {}});
}

void ConversationBuilder::user(const std::string& text) {
  steps_.push_back({make_message("user", text), {}});
}

Message& ConversationBuilder::assistant() {
  if (steps_.empty() || steps_.back().message.role != "assistant" || !steps_.back().results.empty()) {
    steps_.push_back({});
    steps_.back().message.role = "assistant";
  }
  return steps_.back().message;
}

void ConversationBuilder::thought(std::string_view text) {
  if (text.empty()) return;
  Message* message = &assistant();
  if (message->content.form != Content::Form::kNone || !message->tool_calls.empty()) {
    steps_.push_back({});
    message = &steps_.back().message;
    message->role = "assistant";
  }
  message->reasoning += text;
}

void ConversationBuilder::text(std::string_view text) {
  Content& content = assistant().content;
  content.form = Content::Form::kText;
  content.text += text;
}

void ConversationBuilder::call(std::string id, std::string name, JsonValue arguments) {
  Message& message = assistant();
  calls_[id] = steps_.size() - 1;
  message.tool_calls.push_back({std::move(id), std::move(name), std::move(arguments)});
}

bool ConversationBuilder::result(const std::string& call_id, std::string text) {
  const auto found = calls_.find(call_id);
  if (found == calls_.end()) return false;
  Message message = make_message("tool", std::move(text));
  message.tool_call_id = call_id;
  steps_[found->second].results.push_back(std::move(message));
  return true;
}

std::vector<Message> ConversationBuilder::take() {
  std::vector<Message> messages;
  for (Step& step : steps_) {
    messages.push_back(std::move(step.message));
    std::move(step.results.begin(), step.results.end(), std::back_inserter(messages));
  }
  steps_.clear();
  calls_.clear();
  return messages;
}

std::string element(const std::string& path, std::size_t index) {
  return fmt::format("{}[{}]", path, index);
}

FieldReader object_at(const JsonValue& value, const std::string& path) {
  if (!value.is_object()) refuse_field(path, fmt::format("expected an object, found {}", describe(value)));
  return FieldReader(value, path);
}

std::string needed_text(const FieldReader& fields, std::string_view key) {
  std::optional<std::string> text = fields.text(key);
  if (!text) fields.refuse(key, "missing");
  return std::move(*text);
}

JsonValue call_arguments_of(const FieldReader& fields, std::string_view key) {
  const JsonValue* value = fields.find(key);
  if (value == nullptr) return JsonValue::object();
  if (value->is_object()) return *value;
  if (value->is_string() && value->text.empty()) return JsonValue::object();
  JsonValue parsed;
  if (value->is_string()) {
    try {
      parsed = parse_json(value->text);
    } catch (const Error& error) {
      fields.refuse(key, error.what());
    }
  }
  if (!parsed.is_object()) {
    fields.refuse(key, fmt::format("expected the JSON text of an object, found {}", describe(*value)));
  }
  return parsed;
}

void append_line(std::string& text, std::string_view part) {
  if (!text.empty() && !part.empty()) text += '\n';
  text += part;
}

ChatRequest parse_common_fields(const JsonValue& body, std::span<const std::string_view> own,
                                std::span<const RenamedField> renamed, const RequestDefaults& defaults,
                                const Tokenizer& tokenizer) {
  // The chat API reads the rest, so that a field means the same everywhere; it wants a message.
  JsonValue rest = JsonValue::object();
  for (const JsonMember& member : body.members) {
    std::string_view key = member.key;
    if (std::find(own.begin(), own.end(), key) != own.end()) continue;
    // The chat API's own name for a renamed field means nothing in this one.
    if (std::any_of(renamed.begin(), renamed.end(), [&](const RenamedField& f) { return f.chat == key; }))
      continue;
    const auto other =
        std::find_if(renamed.begin(), renamed.end(), [&](const RenamedField& f) { return f.here == key; });
    rest.members.push_back({std::string(other != renamed.end() ? other->chat : key), member.value});
  }
  JsonValue message = JsonValue::object();
  message.members.push_back({"role", JsonValue::string("user")});
  message.members.push_back({"content", JsonValue::string("")});
  JsonValue messages;
  messages.kind = JsonValue::Kind::kArray;
  messages.items.push_back(std::move(message));
  rest.members.push_back({"messages", std::move(messages)});
  ChatRequest request;
  try {
    request = parse_chat_request(rest, defaults, tokenizer);
  } catch (ApiError& error) {
    for (const RenamedField& field : renamed) {
      if (error.param != field.chat && !error.param.starts_with(fmt::format("{}[", field.chat))) continue;
      error.param.replace(0, field.chat.size(), field.here);
      const std::string quoted = fmt::format("'{}", field.chat);
      if (const std::size_t at = error.message.find(quoted); at != std::string::npos)
        error.message.replace(at + 1, field.chat.size(), field.here);
      break;
    }
    throw;
  }
  if (request.generation.n != 1) refuse_field("n", "this API makes one reply a request");
  request.messages.clear();
  return request;
}

void log_skipped_tools(std::string_view api, const std::set<std::string>& types) {
  if (types.empty()) return;
  constexpr std::size_t kMost = 8;
  std::string names;
  std::size_t count = 0;
  for (const std::string& type : types) {
    if (++count > kMost) {
      names += ", …";
      break;
    }
    names += (names.empty() ? "" : ", ") + describe(JsonValue::string(type));
  }
  spdlog::info("{}: left out the tools that only their vendor's servers can run: {}", api, names);
}

void refuse_forced_call(std::string_view field) {
  refuse_field(field,
               "a call cannot be forced: that needs constrained decoding, which is not supported yet; "
               "use \"auto\" or \"none\"");
}

void refuse_image(const std::string& path) {
  refuse_field(path, "images are not supported: the served model has no vision");
}

}  // namespace gem::server
