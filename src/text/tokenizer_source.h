// What a tokenizer file says, before it is checked: both readers (GGUF metadata, tokenizer.json) fill this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gem {

class Checkpoint;

// Many short texts in one allocation.
class TextList {
 public:
  void reserve(std::size_t texts, std::size_t bytes) {
    ends_.reserve(texts);
    bytes_.reserve(bytes);
  }
  void add(std::string_view text) {
    bytes_.append(text);
    ends_.push_back(bytes_.size());
  }
  void add(std::string_view left, std::string_view right) {
    bytes_.append(left);
    add(right);
  }
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

// How a piece takes part in encoding and decoding.
enum class PieceKind : std::uint8_t {
  kNormal,   // comes from merges; text
  kByte,     // one byte, `<0xHH>`: stands for a byte of a character that is no piece
  kAdded,    // matched as a whole when special parsing is on (HTML tags of Gemma 3's file); still text when
             // decoded
  kControl,  // a control token: matched only when special parsing is on, shown only on request
};

struct TokenizerSource {
  TextList pieces;  // by id, spaces as U+2581
  std::vector<PieceKind> kinds;
  // Merge number r (its rank) joins the first `merge_left[r]` bytes of `merges[r]` with the rest.
  TextList merges;
  std::vector<std::uint32_t> merge_left;
  std::optional<std::int64_t> bos;  // by id; else the piece named <bos>
  std::vector<std::int64_t> eos;    // more ends of generation, beside those found by name
  std::vector<std::int64_t> suppressed;

  void add_merge(std::string_view left, std::string_view right) {
    merges.add(left, right);
    merge_left.push_back(static_cast<std::uint32_t>(left.size()));
  }
};

// From the keys tokenizer.ggml.* (docs/models.md). Error(kBadFile) naming the key.
TokenizerSource read_gguf_tokenizer(const Checkpoint& checkpoint);
// From the text of a Hugging Face tokenizer.json, and of the tokenizer_config.json beside it where there is
// one: its <bos>, and added tokens that the former does not have. Error(kBadFile) naming the field.
TokenizerSource read_json_tokenizer(std::string_view json, std::string_view config = {});

// Whichever of the two the checkpoint has, with the ids that its config names.
TokenizerSource read_checkpoint_tokenizer(const Checkpoint& checkpoint);

// `text` for an error message: in quotes, control characters and broken UTF-8 escaped, at most 40 bytes of
// it.
std::string in_quotes(std::string_view text);

}  // namespace gem
