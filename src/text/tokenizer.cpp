#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/checkpoint.h"
#include "text/detokenizer.h"

namespace gem {

namespace {

// Loads with the file's name in front of whatever is wrong.
template <typename Load>
Tokenizer load_from(const std::string& path, Load&& load) {
  try {
    return load();
  } catch (const Error& error) {
    throw Error(error.code(), path.empty() ? error.what() : path + ": " + error.what());
  }
}

void sort_unique(std::vector<std::int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

Tokenizer Tokenizer::from_checkpoint(const Checkpoint& checkpoint) {
  const std::string path = checkpoint.files().empty() ? std::string() : checkpoint.files().front();
  return load_from(path, [&] { return Tokenizer(read_checkpoint_tokenizer(checkpoint)); });
}

Tokenizer Tokenizer::from_json_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  const std::span<const std::byte> bytes = file->bytes();
  return load_from(path, [&] {
    return from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  });
}

Tokenizer Tokenizer::from_json(std::string_view json) {
  return Tokenizer(read_json_tokenizer(json));
}

bool Tokenizer::present_in(const Checkpoint& checkpoint) {
  return checkpoint.find("tokenizer.ggml.model") != nullptr ||
         checkpoint.find("tokenizer.ggml.tokens") != nullptr ||
         checkpoint.find("tokenizer.huggingface.json") != nullptr;
}

Tokenizer::Tokenizer(TokenizerSource source)
    : vocabulary_(std::move(source.pieces), std::move(source.kinds)),
      bpe_(vocabulary_, source.merges, source.merge_left),
      markers_(vocabulary_) {
  const auto checked = [&](std::int64_t id, std::string_view what) {
    if (!vocabulary_.contains(id)) {
      fail(ErrorCode::kBadFile, "the {} id is {}, outside the vocabulary of {} pieces", what, id, size());
    }
    return static_cast<std::int32_t>(id);
  };
  if (source.bos) {
    bos_ = checked(*source.bos, "beginning-of-sequence");
  } else if (const auto named = vocabulary_.find("<bos>")) {
    bos_ = *named;
  } else {
    fail(ErrorCode::kBadFile, "the vocabulary has no <bos>");
  }
  for (const std::int64_t id : source.eos) end_of_generation_.push_back(checked(id, "end-of-sequence"));
  for (const std::string_view name : {"<eos>", "<turn|>", "<|tool_response>"}) {
    if (const auto id = special_id(name)) end_of_generation_.push_back(*id);
  }
  // An HTML tag in this vocabulary, the end of a sequence in others.
  if (const auto strike = vocabulary_.find("</s>")) std::erase(end_of_generation_, *strike);
  sort_unique(end_of_generation_);
  if (end_of_generation_.empty()) {
    fail(ErrorCode::kBadFile, "the vocabulary has no end of generation: neither <eos> nor <turn|>");
  }
  for (const std::int64_t id : source.suppressed) {
    if (vocabulary_.contains(id)) suppressed_.push_back(static_cast<std::int32_t>(id));
  }
  sort_unique(suppressed_);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 4);
  std::size_t begin = 0;
  if (parse_special) {
    while (const auto match = markers_.find(vocabulary_, text, begin)) {
      bpe_.encode(vocabulary_, text.substr(begin, match->begin - begin), ids);
      ids.push_back(match->id);
      begin = match->begin + match->length;
    }
  }
  bpe_.encode(vocabulary_, text.substr(begin), ids);
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_prompt(std::span<const PromptPiece> prompt) const {
  std::vector<std::int32_t> ids;
  std::string text;
  const auto flush = [&] {
    bpe_.encode(vocabulary_, text, ids);
    text.clear();
  };
  for (const PromptPiece& piece : prompt) {
    if (!piece.special) {
      text += piece.text;
      continue;
    }
    flush();
    const auto id = special_id(piece.text);
    if (!id) fail(ErrorCode::kUsage, "the vocabulary has no control token {}", in_quotes(piece.text));
    ids.push_back(*id);
  }
  flush();
  return ids;
}

void Tokenizer::ensure_bos(std::vector<std::int32_t>& ids) const {
  const auto first_other = std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id != bos_; });
  if (first_other == ids.begin()) {
    ids.insert(ids.begin(), bos_);
  } else {
    ids.erase(ids.begin(), first_other - 1);
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool render_special) const {
  StreamDecoder decoder(*this, render_special);
  std::string text;
  for (const std::int32_t id : ids) {
    if (!vocabulary_.contains(id)) {
      fail(ErrorCode::kUsage, "token id {} is outside the vocabulary of {} pieces", id, size());
    }
    text += decoder.push(id);
  }
  return text + decoder.flush();
}

std::string_view Tokenizer::decode_bytes(std::int32_t id) const {
  return vocabulary_.contains(id) ? vocabulary_.decoded(id) : std::string_view();
}

std::string_view Tokenizer::piece(std::int32_t id) const {
  return vocabulary_.contains(id) ? vocabulary_.text(id) : std::string_view();
}

bool Tokenizer::is_special(std::int32_t id) const {
  return vocabulary_.contains(id) && vocabulary_.kind(id) == PieceKind::kControl;
}

std::optional<std::int32_t> Tokenizer::special_id(std::string_view literal) const {
  const std::optional<std::int32_t> id = vocabulary_.find(literal);
  return id && is_special(*id) ? id : std::nullopt;
}

bool Tokenizer::ends_generation(std::int32_t id) const {
  return std::binary_search(end_of_generation_.begin(), end_of_generation_.end(), id);
}

}  // namespace gem
