// Ids to text: what is shown, and that text which arrives token by token is whole UTF-8 at every step.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "tokenizer_fixture.h"

namespace gem {
namespace {

using Ids = std::vector<std::int32_t>;
using testing::kFirstByte;
using testing::kFirstPiece;
using testing::small_source;

constexpr const char* kBroken = "\xEF\xBF\xBD";

std::string broken(std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += kBroken;
  return out;
}

// An independent judge: nlohmann's serializer throws on invalid UTF-8.
bool is_utf8(const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

TEST(Utf8Stream, SendsWholeCharactersOnly) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0"), "a");
  EXPECT_TRUE(stream.pending());
  EXPECT_EQ(stream.push("\x9F"), "");
  EXPECT_EQ(stream.push("\xA6"), "");
  EXPECT_EQ(stream.push("\x99"
                        "b"),
            "\xF0\x9F\xA6\x99"
            "b");
  EXPECT_FALSE(stream.pending());
  EXPECT_EQ(stream.flush(), "");
}

TEST(Utf8Stream, ImpossibleBytesAreReplacedAtOnce) {
  for (const std::string bytes : {"\x80", "\xBF", "\xC0", "\xC1", "\xF5", "\xFF"}) {
    Utf8Stream stream;
    EXPECT_EQ(stream.push(bytes), kBroken);
    EXPECT_FALSE(stream.pending());
  }
}

TEST(Utf8Stream, OneReplacementForEachBrokenByte) {
  const std::pair<std::string, std::string> cases[] = {
      {"\xC3"
       "a",
       broken(1) + "a"},
      {"\xF0\x9F"
       "a",
       broken(2) + "a"},
      {"\xE0\x80\xAF", broken(3)},                   // overlong
      {"\xED\xA0\x80", broken(3)},                   // a surrogate
      {"\xF4\x90\x80\x80", broken(4)},               // above U+10FFFF
      {"\xF0\x9F\xC3\xA9", broken(2) + "\xC3\xA9"},  // a good character follows
      {"\xE2\x82\xE2\x82\xAC", broken(2) + "\xE2\x82\xAC"},
  };
  for (const auto& [bytes, text] : cases) {
    Utf8Stream stream;
    EXPECT_EQ(stream.push(bytes), text);
    EXPECT_FALSE(stream.pending());
  }
}

TEST(Utf8Stream, FlushReplacesWhatWaits) {
  for (const std::string start : {"\xC3", "\xE2\x82", "\xF0\x9F\xA6"}) {
    Utf8Stream stream;
    EXPECT_EQ(stream.push(start), "");
    EXPECT_EQ(stream.flush(), broken(start.size()));
    EXPECT_EQ(stream.flush(), "");
    EXPECT_EQ(stream.push("a"), "a");
  }
}

TEST(Utf8Stream, CutsMakeNoDifference) {
  const std::string parts[] = {"a",    "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\xA6\x99",
                               "\x80", "\xC3",     "\xE2\x82",     "\xF0\x9F\xA6",
                               "\xFF", "\xED\xA0", "\xF4\x90"};
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (std::size_t n = random() % 12; n > 0; --n) bytes += parts[random() % std::size(parts)];
    Utf8Stream whole;
    std::string expected = whole.push(bytes);
    expected += whole.flush();
    EXPECT_TRUE(is_utf8(expected));
    Utf8Stream stream;
    std::string text;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t length = 1 + random() % 4;
      const std::string sent = stream.push(std::string_view(bytes).substr(at, length));
      ASSERT_TRUE(is_utf8(sent));
      text += sent;
      at += length;
    }
    text += stream.flush();
    ASSERT_EQ(text, expected);
  }
}

class TokenizerDecode : public ::testing::Test {
 protected:
  static std::int32_t byte(unsigned value) { return kFirstByte + static_cast<std::int32_t>(value); }
  Tokenizer tokenizer{small_source({"a",
                                    "\xE2\x96\x81"
                                    "b\xE2\x96\x81"},
                                   {})};
};

TEST_F(TokenizerDecode, MarksBecomeSpacesAndNothingIsTidied) {
  EXPECT_EQ(tokenizer.decode(Ids{kFirstPiece + 1, kFirstPiece, byte('!')}), " b a!");
  EXPECT_EQ(tokenizer.decode_bytes(kFirstPiece + 1), " b ");
  EXPECT_EQ(tokenizer.piece(kFirstPiece + 1),
            "\xE2\x96\x81"
            "b\xE2\x96\x81");
}

TEST_F(TokenizerDecode, ControlTokensOnRequest) {
  const Ids ids = {2, 5, kFirstPiece, 7, 6};
  EXPECT_EQ(tokenizer.decode(ids), "a<tag>");
  EXPECT_EQ(tokenizer.decode(ids, true), "<bos><|turn>a<tag><turn|>");
}

TEST_F(TokenizerDecode, BytesFormCharactersAcrossTokens) {
  EXPECT_EQ(tokenizer.decode(Ids{byte(0xF0), byte(0x9F), byte(0xA6), byte(0x99)}), "\xF0\x9F\xA6\x99");
  EXPECT_EQ(tokenizer.decode(Ids{byte(0xF0), byte(0x9F), kFirstPiece}), broken(2) + "a");
  EXPECT_EQ(tokenizer.decode(Ids{kFirstPiece, byte(0xF0)}), "a" + broken(1));
  EXPECT_EQ(tokenizer.decode_bytes(byte(0xF0)), "\xF0");
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(byte(0xC3)), "");
  EXPECT_TRUE(decoder.pending());
  EXPECT_EQ(decoder.push(5), "");  // hidden, and no text of its own
  EXPECT_EQ(decoder.push(byte(0xA9)), "\xC3\xA9");
  EXPECT_EQ(decoder.push(-1) + decoder.push(tokenizer.size()) + decoder.flush(), "");
}

TEST_F(TokenizerDecode, IdsOutsideTheVocabulary) {
  for (const std::int32_t id : {-1, tokenizer.size(), std::numeric_limits<std::int32_t>::max()}) {
    EXPECT_EQ(tokenizer.piece(id), "");
    EXPECT_EQ(tokenizer.decode_bytes(id), "");
    EXPECT_FALSE(tokenizer.is_special(id));
    EXPECT_FALSE(tokenizer.ends_generation(id));
    EXPECT_THROW((void)tokenizer.decode(Ids{id}), Error);
  }
}

}  // namespace
}  // namespace gem
