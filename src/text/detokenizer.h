// Token ids to text while they arrive. A character outside the vocabulary comes as 2-4 byte tokens, so text
// is held back until a character is complete.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gem {

class Tokenizer;

// Bytes in, valid UTF-8 out. A byte that can belong to no character becomes U+FFFD at once, one for each
// byte; an unfinished character (at most 3 bytes) waits. How the bytes are cut into pushes makes no
// difference to the text.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  // What waits, as U+FFFD; afterwards nothing waits.
  std::string flush();
  bool pending() const { return !tail_.empty(); }

 private:
  std::string tail_;
};

// One per generation. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool render_special = false)
      : tokenizer_(&tokenizer), render_special_(render_special) {}

  // The text that `id` completes, perhaps none. Ids outside the vocabulary give no text.
  std::string push(std::int32_t id);
  std::string flush() { return stream_.flush(); }
  bool pending() const { return stream_.pending(); }

 private:
  const Tokenizer* tokenizer_;
  bool render_special_;
  Utf8Stream stream_;
};

}  // namespace gem
