#include "text/prompt_builder.h"

#include "text/python_text.h"

namespace gem {

void PromptBuilder::text(std::string_view run) {
  if (run.empty()) return;
  if (pieces_.empty() || pieces_.back().special) pieces_.push_back({});
  pieces_.back().text += run;
}

void PromptBuilder::quoted(std::string_view run) {
  special("<|\"|>");
  text(run);
  special("<|\"|>");
}

void PromptBuilder::value(const JsonValue& value, Keys keys) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return text("null");
    case JsonValue::Kind::kBoolean:
      return text(value.boolean ? "true" : "false");
    case JsonValue::Kind::kNumber:
      return text(python_number(value.text));
    case JsonValue::Kind::kString:
      return quoted(value.text);
    case JsonValue::Kind::kArray:
      text("[");
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) text(",");
        this->value(value.items[i], keys);
      }
      return text("]");
    case JsonValue::Kind::kObject:
      text("{");
      members(value, keys);
      return text("}");
  }
}

void PromptBuilder::arguments(const JsonValue& object) {
  members(object, Keys::kBare);
}

void PromptBuilder::members(const JsonValue& object, Keys keys) {
  bool first = true;
  for (const JsonMember* member : dictsort(object)) {
    if (!std::exchange(first, false)) text(",");
    if (keys == Keys::kQuoted) {
      quoted(member->key);
    } else {
      text(member->key);
    }
    text(":");
    value(member->value, keys);
  }
}

bool PromptBuilder::ends_with_turn() const {
  return pieces_.size() >= 2 && pieces_.back() == PromptPiece{false, "\n"} &&
         pieces_[pieces_.size() - 2] == PromptPiece{true, "<turn|>"};
}

}  // namespace gem
