// The Gemma 4 chat format, canonical version of 2026-07-09: a conversation becomes the one prompt the models
// were trained on. Whatever a client wrote stays plain text; only the format's own positions hold control
// tokens.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "text/chat_message.h"
#include "text/prompt_piece.h"

namespace gem {

// The two published templates differ in one place: with thinking off, the large one's generation prompt ends
// in an empty thought, as these models open one unasked otherwise.
enum class ChatVariant {
  kLarge,  // 12B, 26B-A4B, 31B
  kSmall,  // E2B, E4B
};

// Going on with the last message, which must be an assistant's without tool calls and not the second of two.
enum class ContinueFinal {
  kNo,
  kAuto,       // its content, or its reasoning where it has no content
  kContent,    // its thought is closed and its content is open
  kReasoning,  // its thought is open
};

struct ChatOptions {
  bool add_generation_prompt = true;  // not looked at when the last message is continued
  bool enable_thinking = false;
  bool preserve_thinking = false;  // keep the reasoning of earlier turns that called tools
  ChatVariant variant = ChatVariant::kLarge;
  ContinueFinal continue_final = ContinueFinal::kNo;
};

struct RenderedPrompt {
  std::vector<PromptPiece> pieces;  // neighbouring text is one piece
  bool open_thought = false;        // the reply begins inside a thought

  // The media of the prompt, in the order of their tokens: part `part` of messages[message].content.
  struct Media {
    ContentPart::Kind kind = ContentPart::Kind::kImage;
    std::size_t message = 0;
    std::size_t part = 0;
    std::size_t piece = 0;  // index of its token in `pieces`
  };
  std::vector<Media> media;
};

// Throws Error(kUsage): a tool's schema that cannot be shown, or a last message that cannot be continued.
RenderedPrompt render_chat(const std::vector<Message>& messages, const std::vector<Tool>& tools,
                           const ChatOptions& options = {});

// The prompt as one text, control tokens spelled out; for people and tests, not for encoding.
std::string to_text(const std::vector<PromptPiece>& pieces);

}  // namespace gem
