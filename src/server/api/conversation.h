// From a history told in items (Responses) or content blocks (Anthropic) to the messages that the chat format
// renders, and the readers that both APIs share for it.
#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/api/chat_request.h"
#include "server/api/json_fields.h"
#include "text/chat_message.h"

namespace gem::server {

// Folds what one side says in a row into one message, and puts every tool result right behind the message
// with its call, where the format wants it.
class ConversationBuilder {
 public:
  // What precedes every other message is joined, by an empty line, into the one system turn that the format
  // has; later ones become turns of their own.
  void system(const std::string& text);
  void user(const std::string& text);

  // The assistant's side. A thought after text or calls begins a new step of the same turn.
  void thought(std::string_view text);
  void text(std::string_view text);
  void call(std::string id, std::string name, JsonValue arguments);

  // False: no call before it has that id.
  bool result(const std::string& call_id, std::string text);

  bool empty() const { return steps_.empty(); }
  std::vector<Message> take();

 private:
  struct Step {
    Message message;
    std::vector<Message> results;
  };
  Message& assistant();
  std::vector<Step> steps_;
  std::unordered_map<std::string, std::size_t> calls_;  // the last call of an id, by step
};

// "path[index]"
std::string element(const std::string& path, std::size_t index);
// A reader of the object there; refuses what is none.
FieldReader object_at(const JsonValue& value, const std::string& path);
// The field's text; refuses a missing one.
std::string needed_text(const FieldReader& fields, std::string_view key);
// The object that a call's arguments are: JSON text of one, or the object itself; absent or empty means {}.
JsonValue call_arguments_of(const FieldReader& fields, std::string_view key);

// The parts of a text that came in several, as one: each on its own line.
void append_line(std::string& text, std::string_view part);

// What every API has of a chat request beside its conversation and tools: sampling, limits, streaming, and
// llama-server's fields. `own`: the fields of `body` that the caller reads itself; `renamed`: fields that
// have another name here ({"stop_sequences", "stop"}; refusals name the first).
struct RenamedField {
  std::string_view here, chat;
};
ChatRequest parse_common_fields(const JsonValue& body, std::span<const std::string_view> own,
                                std::span<const RenamedField> renamed, const RequestDefaults& defaults,
                                const Tokenizer& tokenizer);

// One line in the log for the kinds of tools that only their vendor's servers can run.
void log_skipped_tools(std::string_view api, const std::set<std::string>& types);

// tool_choice that needs constrained decoding.
[[noreturn]] void refuse_forced_call(std::string_view field);
[[noreturn]] void refuse_image(const std::string& path);

}  // namespace gem::server
