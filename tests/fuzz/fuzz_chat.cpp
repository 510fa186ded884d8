// Any bytes as {messages, tools, options}: refused with an error or rendered to a well-formed prompt whose
// calls the reply parser takes back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/chat_jsonl.h"
#include "text/json_value.h"
#include "text/utf8.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

const std::set<std::string_view> kTokens = {
    "<bos>",        "<|turn>",          "<turn|>",          "<|think|>", "<|tool>",   "<tool|>",
    "<|channel>",   "<channel|>",       "<|tool_call>",     "<|\"|>",    "<|image|>", "<|audio|>",
    "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|video|>"};

bool is_json(std::string_view text) {
  try {
    return gem::parse_json(text).is_object();
  } catch (const gem::Error&) {
    return false;
  }
}

void check(const gem::ChatCase& item) {
  gem::RenderedPrompt prompt;
  try {
    prompt = gem::render_chat(item.messages, item.tools, item.options);
  } catch (const gem::Error&) {
    return;
  }
  require(!prompt.pieces.empty() && prompt.pieces[0].text == "<bos>");
  std::size_t media = 0;
  gem::ReplyParser calls(gem::ReplyOptions{});
  bool in_call = false;
  for (std::size_t i = 0; i < prompt.pieces.size(); ++i) {
    const gem::PromptPiece& piece = prompt.pieces[i];
    require(!piece.text.empty() && gem::utf8_valid(piece.text));
    require(piece.special ? kTokens.contains(piece.text) : i == 0 || prompt.pieces[i - 1].special);
    if (piece.special && i > 0) require(piece.text != "<bos>");
    if (piece.special &&
        (piece.text == "<|image|>" || piece.text == "<|audio|>" || piece.text == "<|video|>")) {
      require(media < prompt.media.size() && prompt.media[media++].piece == i);
    }
    if (piece.special && piece.text == "<|tool_call>") in_call = true;
    if (in_call) {
      if (piece.special) {
        calls.marker(*gem::marker_from_spelling(piece.text));
      } else {
        calls.text(piece.text);
      }
    }
    if (piece.special && piece.text == "<tool_call|>") in_call = false;
  }
  require(media == prompt.media.size());
  for (const gem::ReplyCall& call : calls.finish(gem::ReplyEnd::kStop).tool_calls) {
    require(is_json(call.arguments));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const gem::JsonValue value = gem::parse_json(text);
    const std::string json = gem::to_json_text(value);
    require(gem::to_json_text(gem::parse_json(json)) == json);
    for (const gem::ChatVariant variant : {gem::ChatVariant::kLarge, gem::ChatVariant::kSmall}) {
      check(gem::parse_chat_case(text, variant));
    }
    if (const gem::JsonValue* messages = value.find("messages")) gem::parse_messages(*messages);
  } catch (const gem::Error&) {
  }
  return 0;
}
