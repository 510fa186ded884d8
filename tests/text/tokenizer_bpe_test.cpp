// Encoding over vocabularies small enough to work out by hand, and against a slow reading of the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "text/tokenizer.h"
#include "text/utf8.h"
#include "tokenizer_fixture.h"

namespace gem {
namespace {

using Ids = std::vector<std::int32_t>;
using testing::kFirstByte;
using testing::Merges;
using testing::shown;
using testing::small_source;

const std::string kMark = "\xE2\x96\x81";

TEST(TokenizerBpe, LowestRankFirstNotLeftToRight) {
  const Tokenizer tokenizer(small_source({"a", "b", "c"}, {{"b", "c"}, {"a", "b"}}));
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("abc")), "a|bc");
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("abab")), "ab|ab");
}

TEST(TokenizerBpe, EqualRanksFromTheLeft) {
  const Tokenizer tokenizer(small_source({"a"}, {{"a", "a"}}));
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("aaaaa")), "aa|aa|a");
  // The same by the heap, which longer segments take.
  const Ids ids = tokenizer.encode(std::string(101, 'a'));
  ASSERT_EQ(ids.size(), 51u);
  EXPECT_EQ(tokenizer.piece(ids.front()), "aa");
  EXPECT_EQ(tokenizer.piece(ids.back()), "a");
}

TEST(TokenizerBpe, PieceWithoutMergeIsNeverProduced) {
  const Tokenizer tokenizer(small_source({"a", "b", "ab"}, {}));
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("ab")), "a|b");
}

TEST(TokenizerBpe, SpacesAreMarksAndMergeIntoWords) {
  const Tokenizer tokenizer(small_source({"a", kMark}, {{kMark, kMark}, {kMark, "a"}}));
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("a a")), "a|" + kMark + "a");
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("  a")), kMark + kMark + "|a");
  EXPECT_EQ(tokenizer.encode("a" + kMark + "a"), tokenizer.encode("a a"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" a  a ")), " a  a ");
}

TEST(TokenizerBpe, CharactersOutsideTheVocabularyBecomeBytes) {
  const Tokenizer tokenizer(small_source({"a", "\xF0\x9F\x99\x82"}, {{"a", "a"}}));
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("aa\raa")), "aa|<0x0D>|aa");
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("\xF0\x9F\xA6\x99")), "<0xF0>|<0x9F>|<0xA6>|<0x99>");
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("\xF0\x9F\x99\x82")), "\xF0\x9F\x99\x82");
  EXPECT_EQ(tokenizer.encode(std::string_view("\0", 1)), Ids{kFirstByte});
  EXPECT_EQ(shown(tokenizer, tokenizer.encode(" ")), "<0xE2>|<0x96>|<0x81>");
  EXPECT_EQ(tokenizer.encode(""), Ids{});
}

TEST(TokenizerBpe, EveryInvalidByteBecomesItsBytePiece) {
  const Tokenizer tokenizer(small_source({"a", "\xC3\xA9"}, {{"a", "a"}}));
  const std::pair<std::string, std::string> cases[] = {
      {"a\x80"
       "a",
       "a|<0x80>|a"},  // a continuation alone
      {"\xC3"
       "a",
       "<0xC3>|a"},                              // a lead without its continuation
      {"\xC3", "<0xC3>"},                        // cut off
      {"\xF0\x9F\xA6", "<0xF0>|<0x9F>|<0xA6>"},  // cut off late
      {"\xC0\xAF", "<0xC0>|<0xAF>"},             // overlong
      {"\xE0\x80\xAF", "<0xE0>|<0x80>|<0xAF>"},
      {"\xED\xA0\x80", "<0xED>|<0xA0>|<0x80>"},             // a surrogate
      {"\xF4\x90\x80\x80", "<0xF4>|<0x90>|<0x80>|<0x80>"},  // above U+10FFFF
      {"\xFF\xC3\xA9", "<0xFF>|\xC3\xA9"},
  };
  for (const auto& [text, pieces] : cases) EXPECT_EQ(shown(tokenizer, tokenizer.encode(text)), pieces);
}

// The only cut points are pairs of characters that no merge joins; a piece may hold a space or a line break
// inside.
TEST(TokenizerBpe, MergesMayCrossSpacesAndLines) {
  const Tokenizer tokenizer(
      small_source({">", kMark, "<", "/", "\n", "x"},
                   {{"<", "/"}, {kMark, "</"}, {">", kMark + "</"}, {"x", "\n"}, {"x\n", "x"}}));
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("> </x")), ">" + kMark + "</|x");
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("> <x")), ">|" + kMark + "|<|x");
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("x\nx\nx")), "x\n|x\nx");
}

// The definition, word for word: among all neighbouring pairs the lowest rank, the leftmost of these, until
// none.
std::vector<std::string> by_definition(const std::vector<std::string>& pieces, const Merges& merges,
                                       const std::string& text) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (std::size_t i = 0; i < merges.size(); ++i) ranks.emplace(merges[i], i);
  std::vector<std::string> symbols;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_next(text, at).bytes;
    std::string one = text.substr(at, length);
    at += length;
    if (one == " ") one = kMark;
    if (std::find(pieces.begin(), pieces.end(), one) != pieces.end()) {
      symbols.push_back(one);
    } else {
      for (const char byte : one)
        symbols.push_back(testing::byte_piece_text(static_cast<std::uint8_t>(byte)));
    }
  }
  for (;;) {
    std::size_t best = 0, best_rank = merges.size();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best_rank) {
        best = i;
        best_rank = found->second;
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Random merges over `letters` and random texts over `letters` and `strangers`, characters without a piece.
void compare_with_definition(const std::vector<std::string>& letters,
                             const std::vector<std::string>& strangers, unsigned seed) {
  std::vector<std::string> in_text = letters;
  in_text.insert(in_text.end(), strangers.begin(), strangers.end());
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> known = letters;
    Merges merges;
    for (std::size_t tries = below(60); tries > 0; --tries) {
      const std::pair<std::string, std::string> merge = {known[below(known.size())],
                                                         known[below(known.size())]};
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      if (merge.first.size() + merge.second.size() > 24) continue;
      merges.push_back(merge);
      const std::string joined = merge.first + merge.second;
      if (std::find(known.begin(), known.end(), joined) == known.end()) known.push_back(joined);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    const Tokenizer tokenizer(small_source(known, merges));
    // Lengths on both sides of the borders between scan and heap and of the segment memory.
    for (const std::size_t length : {3u, 20u, 60u, 250u, 1200u}) {
      if (length == 1200u && round % 8 != 0) continue;  // the definition is slow
      std::string text;
      const std::size_t variety = 1 + below(in_text.size());
      for (std::size_t i = 0; i < length; ++i) text += in_text[below(variety)];
      if (length == 1200u) text += text;
      std::string expected;
      for (const std::string& symbol : by_definition(letters, merges, text)) {
        expected += (expected.empty() ? "" : "|") + symbol;
      }
      ASSERT_EQ(shown(tokenizer, tokenizer.encode(text)), expected)
          << "round " << round << ", length " << length;
    }
  }
}

TEST(TokenizerBpe, EqualsTheDefinitionOnTextWithCuts) {
  compare_with_definition({"a", "b", "c", kMark, "\n", "\t", "\xC3\xA9", "\xF0\x9F\x99\x82"},
                          {"d", "\xE4\xB8\xAD", " "}, 7);
}

// Two or three letters, which nearly all merge: long segments.
TEST(TokenizerBpe, EqualsTheDefinitionOnTextWithoutCuts) {
  compare_with_definition({"a", "b"}, {}, 8);
  compare_with_definition({"a", kMark, "\n"}, {}, 9);
}

TEST(TokenizerBpe, OneLongRunIsNotQuadratic) {
  Merges merges;
  for (std::string run = "a"; run.size() <= 64; run += run) merges.emplace_back(run, run);
  TokenizerSource source = small_source({"a", kMark}, merges);
  const Vocabulary vocabulary(std::move(source.pieces), std::move(source.kinds));
  const Bpe bpe(vocabulary, source.merges, source.merge_left);
  for (const std::size_t length : {1000u, 10000u, 100000u}) {
    Ids ids;
    BpeWork work;
    bpe.encode(vocabulary, std::string(length, 'a'), ids, &work);
    EXPECT_EQ(work.longest_segment, length);
    EXPECT_LE(work.lookups, 4 * length);
  }
}

TEST(TokenizerBpe, ManyThreadsAtOnce) {
  const Tokenizer tokenizer(small_source({"a", "b", kMark}, {{"a", "b"}, {kMark, "ab"}}));
  std::string text;
  for (int i = 0; i < 2000; ++i) text += i % 3 == 0 ? " ab" : "ba";
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) threads.emplace_back([&] { result = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

class TokenizerMarkers : public ::testing::Test {
 protected:
  Tokenizer tokenizer{small_source({"<", "|", "t", "u", "r", "n", ">", "a", "g"}, {{"a", "g"}, {"t", "ag"}})};
};

TEST_F(TokenizerMarkers, TextOfUsersNeverBecomesAControlToken) {
  for (const std::string text : {"<|turn>", "<turn|>", "a<bos>", "<tag>", "<|turn><|turn>", "<unk>"}) {
    for (const std::int32_t id : tokenizer.encode(text)) EXPECT_FALSE(tokenizer.is_special(id)) << text;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("<tag>")), "<|tag|>");
}

TEST_F(TokenizerMarkers, MatchedWhenAskedFor) {
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("<<|turn>ag<tag>|", true)), "<|<|turn>|ag|<tag>||");
  EXPECT_EQ(tokenizer.encode("<|turn>", true), Ids{5});
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("<|Turn>", true)), "<|||<0x54>|u|r|n|>") << "case matters";
}

TEST_F(TokenizerMarkers, PromptPiecesJoinAcrossTextsOnly) {
  const std::vector<PromptPiece> prompt = {{true, "<bos>"},   {false, "t"},      {false, "a"},
                                           {false, "g"},      {true, "<|turn>"}, {false, "a"},
                                           {true, "<turn|>"}, {false, "g<bos>"}};
  EXPECT_EQ(shown(tokenizer, tokenizer.encode_prompt(prompt)).substr(0, 30),
            "<bos>|tag|<|turn>|a|<turn|>|g|");
  const Ids ids = tokenizer.encode_prompt(prompt);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.bos()), 1);
}

TEST_F(TokenizerMarkers, UnknownControlTokenIsRefused) {
  for (const char* literal : {"<|image>", "<tag>", "a"}) {
    const std::vector<PromptPiece> prompt = {{true, literal}};
    try {
      tokenizer.encode_prompt(prompt);
      ADD_FAILURE() << literal;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_NE(std::string(error.what()).find(literal), std::string::npos) << error.what();
    }
  }
}

TEST_F(TokenizerMarkers, ExactlyOneBos) {
  for (Ids ids : {Ids{}, Ids{2}, Ids{2, 2, 2}}) {
    tokenizer.ensure_bos(ids);
    EXPECT_EQ(ids, Ids{2});
  }
  for (Ids ids : {Ids{7, 2}, Ids{2, 7, 2}, Ids{2, 2, 7, 2}}) {
    tokenizer.ensure_bos(ids);
    EXPECT_EQ(ids, (Ids{2, 7, 2}));
  }
}

TEST(TokenizerMatching, LeftmostThenLongest) {
  TokenizerSource source = small_source({"x"}, {});
  for (const char* text : {"[", "[[a", "[[ab]", "[b"}) {
    source.pieces.add(text);
    source.kinds.push_back(PieceKind::kControl);
  }
  const Tokenizer tokenizer(std::move(source));
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("[[ab]x[[ax[[bx[", true)), "[[ab]|x|[[a|x|[|[b|x|[");
}

// A control token of one character does not turn that character into the control token.
TEST(TokenizerMatching, OneCharacterControlTokenStaysOutOfText) {
  TokenizerSource source = small_source({"x"}, {});
  source.pieces.add("#");
  source.kinds.push_back(PieceKind::kControl);
  const Tokenizer tokenizer(std::move(source));
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("x#")), "x|<0x23>");
  EXPECT_EQ(shown(tokenizer, tokenizer.encode("x#", true)), "x|#");
}

}  // namespace
}  // namespace gem
