// What the chat formatter hands to the tokenizer: the prompt as control tokens and text, so that nothing
// inside a message can turn into a control token.
#pragma once

#include <string>

namespace gem {

struct PromptPiece {
  bool special =
      false;  // `text` is the literal of one control token, e.g. "<|turn>"; otherwise it is plain text
  std::string text;

  bool operator==(const PromptPiece&) const = default;
};

}  // namespace gem
