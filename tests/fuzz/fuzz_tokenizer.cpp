// Any bytes through the tokenizer: nothing crashes, users' text makes no control token, what was valid comes
// back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

void add(gem::TokenizerSource& source, std::string_view text, gem::PieceKind kind) {
  source.pieces.add(text);
  source.kinds.push_back(kind);
}

gem::Tokenizer make_tokenizer() {
  gem::TokenizerSource source;
  for (const char* name : {"<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|\"|>"}) {
    add(source, name, gem::PieceKind::kControl);
  }
  add(source, "<b>", gem::PieceKind::kAdded);
  constexpr char kHex[] = "0123456789ABCDEF";
  for (unsigned byte = 0; byte < 256; ++byte) {
    add(source, std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">", gem::PieceKind::kByte);
  }
  for (const char* piece :
       {"\xE2\x96\x81", "a", "b", "<", ">", "|", "/", "\n", "\xC3\xA9", "\xF0\x9F\x99\x82"}) {
    add(source, piece, gem::PieceKind::kNormal);
  }
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"\n", "\n"},          {"\xE2\x96\x81", "\xE2\x96\x81"},
      {"\xE2\x96\x81", "a"}, {"a", "a"},
      {"aa", "aa"},          {"<", "/"},
      {">", "\xE2\x96\x81"}, {"b", "\xC3\xA9"},
  };
  for (const auto& [left, right] : merges) {
    add(source, left + right, gem::PieceKind::kNormal);
    source.add_merge(left, right);
  }
  return gem::Tokenizer(std::move(source));
}

void require(bool holds) {
  if (!holds) std::abort();
}

// What decoding may give back: a mark is a space, a byte of no character is U+FFFD.
std::string expected_text(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const gem::Utf8Char c = gem::utf8_next(text, at);
    if (c.state != gem::Utf8State::kComplete) {
      for (std::size_t i = 0; i < c.bytes; ++i) out += gem::kReplacementCharacter;
    } else if (c.code == 0x2581) {
      out += ' ';
    } else {
      out += text.substr(at, c.bytes);
    }
    at += c.bytes;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const gem::Tokenizer tokenizer = make_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  std::string streamed;
  gem::StreamDecoder decoder(tokenizer);
  for (const std::int32_t id : ids) {
    require(!tokenizer.is_special(id));
    const std::string part = decoder.push(id);
    require(gem::utf8_valid(part));
    streamed += part;
  }
  streamed += decoder.flush();
  require(streamed == expected_text(text));
  require(tokenizer.decode(ids) == streamed);
  require(tokenizer.decode(tokenizer.encode(text, true), true) == streamed);

  // The same bytes as a file: refused or loaded, never worse.
  try {
    (void)gem::Tokenizer::from_json(text);
  } catch (const gem::Error&) {
  }
  return 0;
}
