#include "text/tokenizer_gguf_keys.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "text/tokenizer_source.h"

namespace gem {
namespace {

// Control tokens that are shown in replies: converters type them as user-defined.
constexpr std::array<std::string_view, 7> kShown = {"<|tool_call>",     "<tool_call|>", "<|tool_response>",
                                                    "<tool_response|>", "<|\"|>",       "<|channel>",
                                                    "<channel|>"};

// llama.cpp's types: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte.
std::int32_t type_of(std::string_view text, PieceKind kind) {
  if (kind == PieceKind::kByte) return 6;
  if (kind == PieceKind::kNormal) return 1;
  if (kind == PieceKind::kAdded) return 4;
  if (text == "<unk>") return 2;
  return std::find(kShown.begin(), kShown.end(), text) != kShown.end() ? 4 : 3;
}

}  // namespace

void add_gguf_tokenizer(const Checkpoint& source, GgufWriter& writer) {
  const TokenizerSource tokenizer = read_checkpoint_tokenizer(source);
  std::vector<std::string_view> tokens;
  std::vector<std::int32_t> types;
  for (std::size_t id = 0; id < tokenizer.pieces.size(); ++id) {
    tokens.push_back(tokenizer.pieces[id]);
    types.push_back(type_of(tokens.back(), tokenizer.kinds[id]));
  }
  std::vector<std::string> merges;
  for (std::size_t rank = 0; rank < tokenizer.merges.size(); ++rank) {
    const std::string_view both = tokenizer.merges[rank];
    merges.push_back(std::string(both.substr(0, tokenizer.merge_left[rank])) + " " +
                     std::string(both.substr(tokenizer.merge_left[rank])));
  }
  writer.add("tokenizer.ggml.model", std::string_view("gemma4"));
  writer.add("tokenizer.ggml.tokens", tokens);
  writer.add("tokenizer.ggml.scores", std::vector<float>(tokens.size(), -1000.0f));
  writer.add("tokenizer.ggml.token_type", types);
  writer.add("tokenizer.ggml.merges", merges);
  writer.add("tokenizer.ggml.add_space_prefix", false);
  writer.add("tokenizer.ggml.add_bos_token", true);
  const auto add_id = [&](const char* key, std::int64_t id) {
    if (source.find(key) == nullptr) writer.add(key, static_cast<std::uint32_t>(id));
  };
  if (tokenizer.bos) add_id("tokenizer.ggml.bos_token_id", *tokenizer.bos);
  if (!tokenizer.eos.empty()) add_id("tokenizer.ggml.eos_token_id", tokenizer.eos.front());
}

}  // namespace gem
