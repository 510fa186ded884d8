// Tool declarations: a JSON schema in the notation of the Gemma 4 prompt.
#pragma once

#include "text/chat_message.h"
#include "text/prompt_builder.h"

namespace gem {

// Schemas nested deeper than this are refused.
inline constexpr std::size_t kMaxSchemaDepth = 64;

// Writes <|tool>declaration:NAME{…}<tool|>. Local "$ref"s are replaced; a missing type of the parameters is
// "object". Throws Error(kUsage) naming the tool and the place in its schema.
void render_declaration(PromptBuilder& out, const Tool& tool);

}  // namespace gem
