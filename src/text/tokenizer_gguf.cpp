// GGUF metadata -> TokenizerSource.
#include <array>
#include <string>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "text/tokenizer_source.h"
#include "text/vocabulary.h"

namespace gem {

namespace {

struct Marker {
  std::string_view text;
  std::int32_t id;  // in the full vocabulary of 262,144 pieces
};

constexpr std::size_t kFullVocabulary = 262144;

// Control tokens of Gemma 4. Converters disagree on their types (user-defined so that they show, normal where
// they differ from the file's end of sequence), so the text decides.
constexpr std::array<Marker, 24> kMarkers = {{
    {"<pad>", 0},
    {"<eos>", 1},
    {"<bos>", 2},
    {"<unk>", 3},
    {"<mask>", 4},
    {"<|tool>", 46},
    {"<tool|>", 47},
    {"<|tool_call>", 48},
    {"<tool_call|>", 49},
    {"<|tool_response>", 50},
    {"<tool_response|>", 51},
    {"<|\"|>", 52},
    {"<|think|>", 98},
    {"<|channel>", 100},
    {"<channel|>", 101},
    {"<|turn>", 105},
    {"<turn|>", 106},
    {"<|image>", 255999},
    {"<|audio>", 256000},
    {"<|image|>", 258880},
    {"<|audio|>", 258881},
    {"<image|>", 258882},
    {"<audio|>", 258883},
    {"<|video|>", 258884},
}};

const Marker* marker_named(std::string_view text) {
  if (text.size() > 16 || !text.starts_with('<')) return nullptr;
  for (const Marker& marker : kMarkers) {
    if (marker.text == text) return &marker;
  }
  return nullptr;
}

// A scalar string is no array, and an array of another type is no list of texts: both are refused by name.
const std::vector<std::string_view>& texts_of(const Checkpoint& checkpoint, std::string_view key) {
  const std::vector<std::string_view>* texts = checkpoint.strings(key);
  if (texts == nullptr) fail(ErrorCode::kBadFile, "{} is missing; it must hold an array of strings", key);
  return *texts;
}

void check_model(const Checkpoint& checkpoint) {
  const std::optional<std::string_view> model = checkpoint.string("tokenizer.ggml.model");
  if (!model) fail(ErrorCode::kBadFile, "tokenizer.ggml.model is missing; expected \"gemma4\"");
  const std::string_view pre = checkpoint.string("tokenizer.ggml.pre").value_or("");
  const bool own = *model == "gemma4" && (pre.empty() || pre == "gemma4");
  const bool ollama = *model == "llama" && pre == "gemma4";
  if (!own && !ollama) {
    fail(ErrorCode::kBadFile,
         "tokenizer.ggml.model is {} with tokenizer.ggml.pre {}; expected \"gemma4\", or \"llama\" with "
         "\"gemma4\"",
         in_quotes(*model), in_quotes(pre));
  }
  if (checkpoint.boolean("tokenizer.ggml.add_space_prefix").value_or(false)) {
    fail(ErrorCode::kBadFile, "tokenizer.ggml.add_space_prefix is true; Gemma 4's tokenizer adds no space");
  }
}

void check_count(const Checkpoint& checkpoint, std::string_view key, std::size_t pieces) {
  const MetadataValue* value = checkpoint.find(key);
  if (value == nullptr) return;
  const auto* array = std::get_if<MetadataArray>(value);
  if (array == nullptr) fail(ErrorCode::kBadFile, "{} is no array", key);
  const std::size_t count = std::visit([](const auto& elements) { return elements.size(); }, *array);
  if (count != pieces) fail(ErrorCode::kBadFile, "{} has {} entries for {} tokens", key, count, pieces);
}

PieceKind kind_of(std::string_view text, std::int64_t type, std::size_t id) {
  if (marker_named(text) != nullptr) return PieceKind::kControl;
  if (byte_of_piece(text)) return PieceKind::kByte;
  switch (type) {
    case 0:  // undefined
    case 1:  // normal
    case 5:  // unused
      return PieceKind::kNormal;
    case 2:  // unknown
    case 3:  // control
      // Other vocabularies end a sequence with it and converters type it by name; here it is an HTML tag.
      return text == "</s>" ? PieceKind::kNormal : PieceKind::kControl;
    case 4:  // user-defined
      return PieceKind::kAdded;
    case 6:
      return PieceKind::kByte;  // and not spelt like one: Vocabulary refuses it
    default:
      fail(ErrorCode::kBadFile, "tokenizer.ggml.token_type of piece {} is {}; expected 0 to 6", id, type);
  }
}

}  // namespace

TokenizerSource read_gguf_tokenizer(const Checkpoint& checkpoint) {
  check_model(checkpoint);
  TokenizerSource source;
  const std::vector<std::string_view>& tokens = texts_of(checkpoint, "tokenizer.ggml.tokens");
  check_count(checkpoint, "tokenizer.ggml.scores", tokens.size());
  check_count(checkpoint, "tokenizer.ggml.token_type", tokens.size());
  const auto types = checkpoint.integers("tokenizer.ggml.token_type");
  source.kinds.reserve(tokens.size());
  source.pieces.reserve(tokens.size(), tokens.size() * 8);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    source.pieces.add(tokens[id]);
    source.kinds.push_back(kind_of(tokens[id], types ? (*types)[id] : 1, id));
    const Marker* marker = tokens.size() == kFullVocabulary ? marker_named(tokens[id]) : nullptr;
    if (marker != nullptr && static_cast<std::size_t>(marker->id) != id) {
      fail(ErrorCode::kBadFile, "{} is piece {}; in a vocabulary of {} pieces it must be {}", marker->text,
           id, kFullVocabulary, marker->id);
    }
  }

  const std::vector<std::string_view>& merges = texts_of(checkpoint, "tokenizer.ggml.merges");
  source.merges.reserve(merges.size(), merges.size() * 8);
  source.merge_left.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos) {
      fail(ErrorCode::kBadFile, "tokenizer.ggml.merges {} is {}; expected two pieces with a space between",
           rank, in_quotes(merge));
    }
    source.add_merge(merge.substr(0, space), merge.substr(space + 1));
  }

  source.bos = checkpoint.integer("tokenizer.ggml.bos_token_id");
  if (const auto eos = checkpoint.integer("tokenizer.ggml.eos_token_id")) source.eos.push_back(*eos);
  if (const auto more = checkpoint.integers("gem.end_tokens"))
    source.eos.insert(source.eos.end(), more->begin(), more->end());
  source.suppressed =
      checkpoint.integers("tokenizer.ggml.suppress_tokens").value_or(std::vector<std::int64_t>());
  return source;
}

TokenizerSource read_checkpoint_tokenizer(const Checkpoint& checkpoint) {
  const auto json = checkpoint.string("tokenizer.huggingface.json");
  const bool listed = checkpoint.find("tokenizer.ggml.tokens") != nullptr;
  if (!json || listed) {
    if (!listed && checkpoint.find("gem.model_type") != nullptr)
      fail(ErrorCode::kBadFile, "there is no tokenizer.json beside config.json");
    return read_gguf_tokenizer(checkpoint);
  }
  TokenizerSource source =
      read_json_tokenizer(*json, checkpoint.string("gem.tokenizer_config").value_or(std::string_view()));
  if (!source.bos) source.bos = checkpoint.integer("tokenizer.ggml.bos_token_id");
  source.eos = checkpoint.integers("gem.end_tokens").value_or(std::vector<std::int64_t>());
  source.suppressed =
      checkpoint.integers("tokenizer.ggml.suppress_tokens").value_or(std::vector<std::int64_t>());
  return source;
}

}  // namespace gem
