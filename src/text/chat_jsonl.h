// One case a line: the chat format and the reply parser as filters of JSON lines, for gem format and gem
// parse.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "text/chat_format.h"
#include "text/reply_parser.h"

namespace gem {

struct ChatCase {
  std::vector<Message> messages;
  std::vector<Tool> tools;
  ChatOptions options;
};

// {"messages": […], "tools": […] or null, "options": {add_generation_prompt (true), enable_thinking (false),
// preserve_thinking (false), continue_final_message (false; true, "content" or "reasoning_content")}}, with
// what the template takes beyond the API. Throws Error(kUsage).
ChatCase parse_chat_case(std::string_view json, ChatVariant variant);

// {"prompt": "…"}, for the small variant {"prompt_small": "…"}; no newline at the end. Throws Error(kUsage).
std::string format_line(std::string_view json, ChatVariant variant);

// {"text": "…", "start": "content" or "thinking", "tools": true, "extract_reasoning": true, "end": "eog" or
// "length"} (all but text optional, with these defaults; tools may be the declarations, by which arguments
// are then typed) becomes {"reasoning", "content", "tool_calls", "finish_reason"}. The text is fed `chunk`
// characters at a time, 0: whole. Throws Error(kUsage).
std::string parse_line(std::string_view json, std::size_t chunk);

// {"reasoning", "content", "tool_calls", "finish_reason"}, and "diagnostics" where there are any
std::string to_json_text(const ParsedReply& reply);

}  // namespace gem
