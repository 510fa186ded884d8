// Text to token ids and back, for Gemma's vocabulary: byte-pair encoding by ranked merges (text/bpe.h) around
// control tokens. Loaded from a checkpoint's metadata or from a Hugging Face tokenizer.json; all that follows
// is const and may be used by many threads at once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/marker_matcher.h"
#include "text/prompt_piece.h"
#include "text/tokenizer_source.h"
#include "text/vocabulary.h"

namespace gem {

class Checkpoint;

class Tokenizer {
 public:
  // Error(kBadFile) naming the file and what is wrong with its vocabulary.
  static Tokenizer from_checkpoint(const Checkpoint& checkpoint);
  static Tokenizer from_json_file(const std::string& path);
  static Tokenizer from_json(std::string_view json);
  explicit Tokenizer(TokenizerSource source);

  // A drafter's checkpoint may come without one: it uses its target's.
  static bool present_in(const Checkpoint& checkpoint);

  // Ids of `text`, no <bos>. With parse_special false nothing in the text can become a control token; use
  // true only for text that is trusted. Invalid UTF-8 is encoded byte by byte and comes back as U+FFFD.
  std::vector<std::int32_t> encode(std::string_view text, bool parse_special = false) const;

  // A prompt of control tokens and text. Neighbouring texts are encoded as one, since merges cross their
  // borders. Nothing is added; the prompt's pieces begin with <bos>. Error(kUsage) for a control token that
  // the vocabulary does not have.
  std::vector<std::int32_t> encode_prompt(std::span<const PromptPiece> prompt) const;

  // Makes `ids` start with exactly one <bos>.
  void ensure_bos(std::vector<std::int32_t>& ids) const;

  // The text of `ids`, always valid UTF-8: each byte that forms no character becomes U+FFFD. Control tokens
  // appear as their literal if `render_special`, else not at all. Error(kUsage) for an id outside the
  // vocabulary.
  std::string decode(std::span<const std::int32_t> ids, bool render_special = false) const;
  // The raw bytes of one id, perhaps a part of a character; a control token's literal. Empty for an id
  // outside the vocabulary.
  std::string_view decode_bytes(std::int32_t id) const;

  std::int32_t size() const { return vocabulary_.size(); }
  // As in the vocabulary: spaces as U+2581, bytes as <0xHH>. Empty for an id outside the vocabulary.
  std::string_view piece(std::int32_t id) const;
  std::optional<std::int32_t> find_piece(std::string_view text) const { return vocabulary_.find(text); }

  // Control tokens: hidden in decoded text, never produced by encoding untrusted text.
  bool is_special(std::int32_t id) const;
  std::optional<std::int32_t> special_id(std::string_view literal) const;

  std::int32_t bos() const { return bos_; }
  // Ids that end a generation: <eos>, <turn|>, <|tool_response> and the file's end of sequence; ascending.
  const std::vector<std::int32_t>& end_of_generation() const { return end_of_generation_; }
  bool ends_generation(std::int32_t id) const;
  // Ids that the file says must not be sampled; ascending.
  const std::vector<std::int32_t>& suppressed() const { return suppressed_; }

 private:
  Vocabulary vocabulary_;
  Bpe bpe_;
  MarkerMatcher markers_;
  std::int32_t bos_ = -1;
  std::vector<std::int32_t> end_of_generation_;
  std::vector<std::int32_t> suppressed_;
};

}  // namespace gem
