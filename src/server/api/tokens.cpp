// Text to ids and back, and prompts without a reply: /tokenize, /detokenize, /apply-template,
// /v1/chat/completions/input_tokens.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/api.h"
#include "server/api/json_echo.h"
#include "server/api/json_fields.h"
#include "text/tokenizer.h"

namespace gem::server {
namespace {

using nlohmann::ordered_json;

std::int32_t token_id(const JsonValue& value, const std::string& place, const Tokenizer& tokenizer) {
  const std::optional<std::int64_t> id = as_integer(value);
  if (!id || *id < 0 || *id >= tokenizer.size()) {
    refuse_field(place, fmt::format("expected a token id from 0 to {}, found {}", tokenizer.size() - 1,
                                    describe(value)));
  }
  return static_cast<std::int32_t>(*id);
}

// The text alone is what a piece is; bytes that are no text by themselves are given as numbers.
ordered_json piece_json(std::string_view bytes) {
  ordered_json text = bytes;
  try {
    (void)text.dump();
    return text;
  } catch (const ordered_json::type_error&) {
    ordered_json numbers = ordered_json::array();
    for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
    return numbers;
  }
}

// A string, or an array of strings and ids, one after the other.
std::vector<std::int32_t> encode_content(const JsonValue& content, const std::string& name, bool special,
                                         const Tokenizer& tokenizer) {
  if (content.is_string()) return tokenizer.encode(content.text, special);
  if (!content.is_array())
    refuse_field(name, fmt::format("expected a string or an array, found {}", describe(content)));
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const JsonValue& item = content.items[i];
    if (item.is_string()) {
      const std::vector<std::int32_t> more = tokenizer.encode(item.text, special);
      ids.insert(ids.end(), more.begin(), more.end());
    } else {
      ids.push_back(token_id(item, fmt::format("{}[{}]", name, i), tokenizer));
    }
  }
  return ids;
}

ChatRequest chat_of(const ApiContext& context, const HttpRequest& request) {
  return parse_chat_request(parse_body(request), context.defaults, context.session.tokenizer());
}

}  // namespace

Reply tokenize(const ApiContext& context, const HttpRequest& request) {
  const JsonValue body = parse_body(request);
  const FieldReader fields(body);
  const Tokenizer& tokenizer = context.session.tokenizer();
  // llama-server's field, or vLLM's, whose prompts begin with <bos> unless told otherwise.
  const JsonValue* content = fields.find("content");
  const bool vllm = content == nullptr && fields.has("prompt");
  if (vllm) content = fields.find("prompt");
  if (content == nullptr) fields.refuse("content", "missing");
  const bool add_special = fields.boolean(vllm ? "add_special_tokens" : "add_special").value_or(vllm);
  const bool parse_special = fields.boolean("parse_special").value_or(true);
  const bool with_pieces = fields.boolean("with_pieces").value_or(false);
  std::vector<std::int32_t> ids =
      encode_content(*content, vllm ? "prompt" : "content", parse_special, tokenizer);
  if (add_special) tokenizer.ensure_bos(ids);
  if (vllm) {
    ordered_json reply = {{"count", ids.size()},
                          {"max_model_len", context.session.engine().options().context},
                          {"tokens", ids}};
    if (fields.boolean("return_token_strs").value_or(false)) {
      for (const std::int32_t id : ids) reply["token_strs"].push_back(tokenizer.piece(id));
    }
    return json_response(reply);
  }
  ordered_json tokens = ordered_json::array();
  for (const std::int32_t id : ids) {
    if (with_pieces) {
      tokens.push_back({{"id", id}, {"piece", piece_json(tokenizer.decode_bytes(id))}});
    } else {
      tokens.push_back(id);
    }
  }
  return json_response({{"tokens", std::move(tokens)}});
}

Reply detokenize(const ApiContext& context, const HttpRequest& request) {
  const JsonValue body = parse_body(request);
  const FieldReader fields(body);
  const Tokenizer& tokenizer = context.session.tokenizer();
  const JsonValue* tokens = fields.array("tokens");
  if (tokens == nullptr) fields.refuse("tokens", "missing");
  std::vector<std::int32_t> ids;
  ids.reserve(tokens->items.size());
  for (std::size_t i = 0; i < tokens->items.size(); ++i)
    ids.push_back(token_id(tokens->items[i], fmt::format("tokens[{}]", i), tokenizer));
  // Control tokens as their text: the way back from /tokenize loses nothing.
  const std::string text = tokenizer.decode(ids, true);
  return json_response({{"content", text}, {"prompt", text}});  // vLLM's name for it is prompt
}

Reply apply_template(const ApiContext& context, const HttpRequest& request) {
  // From the ids, without the check that they fit: this is what the model would read.
  const std::vector<std::int32_t> ids = encode_chat(chat_of(context, request), context.session);
  return json_response({{"prompt", context.session.tokenizer().decode(ids, true)}});
}

Reply chat_input_tokens(const ApiContext& context, const HttpRequest& request) {
  const std::vector<std::int32_t> ids = encode_chat(chat_of(context, request), context.session);
  return json_response({{"object", "response.input_tokens"}, {"input_tokens", ids.size()}});
}

}  // namespace gem::server
