#include "text/detokenizer.h"

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace gem {

std::string Utf8Stream::push(std::string_view bytes) {
  tail_ += bytes;
  std::string out;
  std::size_t at = 0;
  while (at < tail_.size()) {
    const Utf8Char c = utf8_next(tail_, at);
    if (c.state == Utf8State::kIncomplete) break;
    if (c.state == Utf8State::kComplete) {
      out.append(tail_, at, c.bytes);
    } else {
      out += kReplacementCharacter;
    }
    at += c.bytes;
  }
  tail_.erase(0, at);
  return out;
}

std::string Utf8Stream::flush() {
  std::string out;
  for (std::size_t i = 0; i < tail_.size(); ++i) out += kReplacementCharacter;
  tail_.clear();
  return out;
}

std::string StreamDecoder::push(std::int32_t id) {
  if (!render_special_ && tokenizer_->is_special(id)) return {};
  return stream_.push(tokenizer_->decode_bytes(id));
}

}  // namespace gem
