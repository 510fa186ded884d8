// Collects a prompt as control tokens and runs of text; neighbouring text becomes one run, as encoding needs
// it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/json_value.h"
#include "text/prompt_piece.h"

namespace gem {

class PromptBuilder {
 public:
  void special(std::string_view token) { pieces_.push_back({true, std::string(token)}); }
  void text(std::string_view run);
  void quoted(std::string_view run);  // between <|"|> tokens

  enum class Keys { kBare, kQuoted };
  // A value as the format writes it: dictsorted objects, no blanks, Python's numbers.
  void value(const JsonValue& value, Keys keys);
  // The members of an object without the braces, keys bare.
  void arguments(const JsonValue& object);

  bool ends_with_turn() const;  // "<turn|>\n"
  bool empty() const { return pieces_.empty(); }
  std::size_t size() const { return pieces_.size(); }
  std::vector<PromptPiece> take() { return std::move(pieces_); }

 private:
  void members(const JsonValue& object, Keys keys);

  std::vector<PromptPiece> pieces_;
};

}  // namespace gem
