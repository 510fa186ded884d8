// The reference ids over the vocabulary of 262,144 pieces, and the small vocabularies of the bundled models.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "formats/checkpoint.h"
#include "golden.h"
#include "text/detokenizer.h"
#include "tokenizer_fixture.h"

namespace gem {
namespace {

using Ids = std::vector<std::int32_t>;
using nlohmann::json;
using testing::read_all;

// Loaded once for all tests: half a second each.
const Tokenizer& loaded(const std::string& path) {
  static std::map<std::string, Tokenizer> tokenizers;
  auto found = tokenizers.find(path);
  if (found == tokenizers.end()) found = tokenizers.emplace(path, Tokenizer::from_json_file(path)).first;
  return found->second;
}

std::vector<json> json_lines(const std::string& path) {
  std::vector<json> lines;
  std::istringstream text(read_all(path));
  for (std::string line; std::getline(text, line);) {
    if (!line.empty()) lines.push_back(json::parse(line));
  }
  return lines;
}

struct PublishedCase {
  std::string text;
  Ids ids;
};

std::vector<PublishedCase> published_cases(const std::string& inputs_path, const std::string& ids_path) {
  constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  const std::string inputs = read_all(inputs_path);
  std::istringstream ids_text(read_all(ids_path));
  std::vector<PublishedCase> cases;
  for (std::size_t at = 0; at <= inputs.size();) {
    const std::size_t end = std::min(inputs.find(kSeparator, at), inputs.size());
    PublishedCase next{inputs.substr(at, end - at), {}};
    std::string line;
    std::getline(ids_text, line);
    std::istringstream numbers(line);
    for (std::int32_t id = 0; numbers >> id;) next.ids.push_back(id);
    cases.push_back(std::move(next));
    at = end + kSeparator.size();
  }
  return cases;
}

TEST(TokenizerGolden, PublishedVectors) {
  GEM_GOLDEN_OR_SKIP(inputs, "tokenizer-gemma4.inp");
  GEM_GOLDEN_OR_SKIP(ids, "tokenizer-gemma4.out");
  for (const char* name : {"tokenizer-gemma3.json", "tokenizer-gemma4-like.json"}) {
    GEM_REAL_TOKENIZER_OR_SKIP(path, name);
    const Tokenizer& tokenizer = loaded(path);
    const auto cases = published_cases(inputs, ids);
    ASSERT_GE(cases.size(), 40u);
    for (const PublishedCase& one : cases) {
      EXPECT_EQ(tokenizer.encode(one.text), one.ids) << name << ": " << one.text;
      EXPECT_EQ(tokenizer.encode(one.text, true), one.ids) << name << ": " << one.text;
    }
  }
}

TEST(TokenizerGolden, Gemma3WithAndWithoutAddedTokens) {
  GEM_GOLDEN_OR_SKIP(cases, "tokenizer-gemma3.jsonl");
  GEM_REAL_TOKENIZER_OR_SKIP(original, "tokenizer-gemma3.json");
  GEM_REAL_TOKENIZER_OR_SKIP(like, "tokenizer-gemma4-like.json");
  std::size_t checked = 0;
  for (const json& one : json_lines(cases)) {
    const auto text = one.at("text").get<std::string>();
    const auto ids = one.at("ids").get<Ids>();
    const auto plain = one.value("ids_no_added_tokens", one.at("ids")).get<Ids>();
    const Tokenizer& tokenizer = loaded(original);
    EXPECT_EQ(tokenizer.encode(text, true), ids) << one.at("id");
    EXPECT_EQ(tokenizer.encode(text), plain) << one.at("id");
    EXPECT_EQ(loaded(like).encode(text), plain) << one.at("id");
    const auto decoded = one.value("decoded", text);
    EXPECT_EQ(tokenizer.decode(ids, true), decoded) << one.at("id");
    EXPECT_EQ(tokenizer.decode(ids, false), one.value("decoded_skip_special", decoded)) << one.at("id");
    EXPECT_EQ(tokenizer.decode(plain), decoded) << one.at("id");
    ++checked;
  }
  EXPECT_GE(checked, 100u);
}

// The text cut at the control tokens' literals, as a chat formatter would hand it over; long texts in two
// pieces.
std::vector<PromptPiece> pieces_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<PromptPiece> pieces;
  std::string run;
  const auto flush = [&] {
    const std::size_t half = run.size() / 2;
    if (half > 0) pieces.push_back({false, run.substr(0, half)});
    if (!run.empty()) pieces.push_back({false, run.substr(half)});
    run.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 0;
    if (text[at] == '<') {
      for (std::size_t n = 1; n <= 20 && at + n <= text.size(); ++n) {
        if (tokenizer.special_id(text.substr(at, n))) length = n;
      }
    }
    if (length > 0) {
      flush();
      pieces.push_back({true, text.substr(at, length)});
      at += length;
    } else {
      run += text[at++];
    }
  }
  flush();
  return pieces;
}

TEST(TokenizerGolden, Gemma4ChatPrompts) {
  GEM_GOLDEN_OR_SKIP(cases, "tokenizer-gemma4-chat.jsonl");
  GEM_REAL_TOKENIZER_OR_SKIP(path, "tokenizer-gemma4-like.json");
  const Tokenizer& tokenizer = loaded(path);
  std::size_t checked = 0;
  for (const json& one : json_lines(cases)) {
    const auto text = one.at("text").get<std::string>();
    const auto ids = one.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer.encode(text, true), ids) << one.at("id");
    EXPECT_EQ(tokenizer.encode_prompt(pieces_of(tokenizer, text)), ids) << one.at("id");
    for (const std::int32_t id : tokenizer.encode(text))
      EXPECT_FALSE(tokenizer.is_special(id)) << one.at("id");
    ++checked;
  }
  EXPECT_GE(checked, 50u);
}

// What a converter writes: the keys of a GGUF file, with the token types of docs/models.md.
Checkpoint as_checkpoint(const std::string& json_path, std::int64_t eos, bool types_by_name) {
  const json file = json::parse(read_all(json_path));
  const json& model = file.at("model");
  Checkpoint checkpoint;
  std::vector<std::string_view> tokens(model.at("vocab").size());
  for (const auto& [text, id] : model.at("vocab").items()) {
    tokens.at(id.get<std::size_t>()) = checkpoint.keep(text);
  }
  std::vector<std::int64_t> types;
  for (const std::string_view token : tokens) types.push_back(byte_of_piece(token) ? 6 : 1);
  if (types_by_name) {
    for (const json& added : file.at("added_tokens")) types.at(added.at("id").get<std::size_t>()) = 3;
    for (const std::size_t id : {48u, 49u, 50u, 51u, 52u, 100u, 101u}) types.at(id) = 4;
    types.at(212) = 3;  // </s>, as converters type it by name
  }
  std::vector<std::string_view> merges;
  for (const json& merge : model.at("merges")) {
    merges.push_back(checkpoint.keep(merge[0].get<std::string>() + " " + merge[1].get<std::string>()));
  }
  std::vector<double> scores(tokens.size(), -1000.0);
  checkpoint.add_metadata("tokenizer.ggml.model", std::string_view("gemma4"));
  checkpoint.add_metadata("tokenizer.ggml.tokens", MetadataArray(tokens));
  checkpoint.add_metadata("tokenizer.ggml.scores", MetadataArray(scores));
  checkpoint.add_metadata("tokenizer.ggml.token_type", MetadataArray(types));
  checkpoint.add_metadata("tokenizer.ggml.merges", MetadataArray(merges));
  checkpoint.add_metadata("tokenizer.ggml.bos_token_id", std::int64_t{2});
  checkpoint.add_metadata("tokenizer.ggml.eos_token_id", eos);
  checkpoint.add_metadata("tokenizer.ggml.suppress_tokens",
                          MetadataArray(std::vector<std::int64_t>{258883, 258882, 300000, -1}));
  return checkpoint;
}

TEST(TokenizerGolden, GgufAndJsonAgree) {
  GEM_GOLDEN_OR_SKIP(chat, "tokenizer-gemma4-chat.jsonl");
  GEM_GOLDEN_OR_SKIP(plain, "tokenizer-gemma3.jsonl");
  GEM_REAL_TOKENIZER_OR_SKIP(path, "tokenizer-gemma4-like.json");
  const Tokenizer& expected = loaded(path);
  for (const bool types_by_name : {true, false}) {
    const Tokenizer tokenizer =
        Tokenizer::from_checkpoint(as_checkpoint(path, types_by_name ? 1 : 106, types_by_name));
    EXPECT_EQ(tokenizer.size(), 262144);
    EXPECT_EQ(tokenizer.bos(), 2);
    EXPECT_EQ(tokenizer.end_of_generation(), (Ids{1, 50, 106}));
    EXPECT_EQ(tokenizer.suppressed(), (Ids{258882, 258883}));
    for (std::int32_t id = 0; id < tokenizer.size(); ++id) {
      ASSERT_EQ(tokenizer.is_special(id), expected.is_special(id)) << id;
    }
    for (const std::string& file : {chat, plain}) {
      for (const json& one : json_lines(file)) {
        const auto text = one.at("text").get<std::string>();
        EXPECT_EQ(tokenizer.encode(text), expected.encode(text)) << one.at("id");
        EXPECT_EQ(tokenizer.encode(text, true), expected.encode(text, true)) << one.at("id");
      }
    }
  }
}

TEST(TokenizerGolden, FullVocabularyHasItsControlTokensInPlace) {
  GEM_REAL_TOKENIZER_OR_SKIP(path, "tokenizer-gemma4-like.json");
  const Tokenizer& tokenizer = loaded(path);
  EXPECT_EQ(tokenizer.size(), 262144);
  EXPECT_EQ(tokenizer.special_id("<|turn>"), 105);
  EXPECT_EQ(tokenizer.special_id("<|\"|>"), 52);
  EXPECT_EQ(tokenizer.special_id("<|video|>"), 258884);
  EXPECT_EQ(tokenizer.special_id("<table>"), std::nullopt);
  EXPECT_EQ(tokenizer.end_of_generation(), (Ids{1, 50, 106}));
  EXPECT_EQ(tokenizer.encode("<|turn>model\n", true), (Ids{105, 4368, 107}));
  EXPECT_EQ(tokenizer.encode("<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>", true),
            (Ids{48, 6639, 236787, 236760, 236782, 236746, 236787, 52, 236781, 52, 236783, 49}));
  EXPECT_EQ(tokenizer.encode("<table>", true), (Ids{236820, 5127, 236813}));
  EXPECT_EQ(tokenizer.encode("> </"), (Ids{107068}));  // the one piece with a space inside
}

// Runs of one character: whole 31s first, then the rest, whose piece follows from the vocabulary's layout.
TEST(TokenizerGolden, RunsOfNewlinesSpacesAndTabs) {
  GEM_REAL_TOKENIZER_OR_SKIP(path, "tokenizer-gemma4-like.json");
  const Tokenizer& tokenizer = loaded(path);
  const auto expected = [](std::size_t n, auto piece_of_length) {
    Ids ids(n / 31, piece_of_length(std::size_t{31}));
    if (n % 31 != 0) ids.push_back(piece_of_length(n % 31));
    return ids;
  };
  std::vector<std::size_t> lengths = {1000, 100000};
  for (std::size_t n = 1; n <= 100; ++n) lengths.push_back(n);
  for (const std::size_t n : lengths) {
    EXPECT_EQ(tokenizer.encode(std::string(n, '\n')),
              expected(n, [](std::size_t k) { return static_cast<std::int32_t>(106 + k); }))
        << n;
    EXPECT_EQ(tokenizer.encode(std::string(n, ' ')),
              expected(n, [](std::size_t k) { return static_cast<std::int32_t>(k == 1 ? 236743 : 136 + k); }))
        << n;
    EXPECT_EQ(tokenizer.encode(std::string(n, '\t')),
              expected(n, [](std::size_t k) { return static_cast<std::int32_t>(255967 + k); }))
        << n;
  }
}

TEST(TokenizerGolden, WorkGrowsWithTheTextNotItsSquare) {
  GEM_REAL_TOKENIZER_OR_SKIP(path, "tokenizer-gemma4-like.json");
  // Bpe counts its look-ups; a quadratic method would take some n^2 / 8 of them.
  TokenizerSource source = read_json_tokenizer(read_all(path));
  const Vocabulary vocabulary(std::move(source.pieces), std::move(source.kinds));
  const Bpe bpe(vocabulary, source.merges, source.merge_left);
  constexpr std::size_t kLength = 200000;
  std::string words;
  while (words.size() < kLength)
    words += fmt::format("word{} <b>is</b> {}\n\n\t", words.size(), words.size() * 7919);
  for (const std::string& text : {std::string(kLength, 'a'), std::string(kLength, ' '),
                                  std::string(kLength, '\n'), std::string(kLength, '<'), words}) {
    Ids ids;
    BpeWork work;
    bpe.encode(vocabulary, text, ids, &work);
    EXPECT_LE(work.lookups, 4 * text.size()) << text.substr(0, 20);
  }
  Ids ids;
  BpeWork work;
  bpe.encode(vocabulary, words, ids, &work);
  EXPECT_LE(work.longest_segment, 32u);  // cut into words
  EXPECT_GE(work.cached_segments * 10, work.segments);
}

// Every id that the vocabulary can produce comes back as the text it stands for.
TEST(TokenizerGolden, BundledModelsVocabularyRoundTrips) {
  const std::string path = std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const Tokenizer tokenizer = Tokenizer::from_checkpoint(open_checkpoint(path));
  EXPECT_EQ(tokenizer.size(), 4096);
  EXPECT_EQ(tokenizer.end_of_generation(), (Ids{1, 50, 106}));
  EXPECT_EQ(tokenizer.special_id("<|video|>"), 4095);
  EXPECT_EQ(tokenizer.encode("<|turn>\n\n<turn|>", true), (Ids{105, 108, 106}));
  const std::string text = "Once upon a time, there was a \xF0\x9F\xA6\x99.\n\n  12 + 30 = 42\r\n<|turn>";
  const Ids ids = tokenizer.encode(text);
  for (const std::int32_t id : ids) EXPECT_FALSE(tokenizer.is_special(id));
  EXPECT_LT(ids.size(), text.size());
  EXPECT_EQ(tokenizer.decode(ids), text);
}

// Hardening S8 with a vocabulary that is always there: nothing is lost, merged across or taken for a control
// token, and a prompt starts with exactly one <bos> whether or not it had one.
TEST(TokenizerGolden, OddTextsRoundTripInTheBundledVocabulary) {
  const std::string path = std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const Tokenizer tokenizer = Tokenizer::from_checkpoint(open_checkpoint(path));
  std::vector<std::string> texts = {std::string(100'000, ' '), "\r\n\r\n", "\t \n\t \n", "a\n", "\na",
                                    // family emoji joined by ZWJ, a flag, skin tone, keycap, BOM, RTL mark
                                    "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F1E9\U0001F1EA",
                                    "\U0001F44D\U0001F3FD", "1\uFE0F\u20E3", "\uFEFFx\u200F", "<bos>",
                                    "<|turn>model\n<turn|>"};
  for (std::size_t n = 1; n <= 50; ++n) {
    for (const char c : {'\n', '\t', ' '}) {
      texts.emplace_back(n, c);
      texts.push_back("a" + std::string(n, c) + "b");
    }
  }
  const std::int32_t bos = tokenizer.bos();
  for (const std::string& text : texts) {
    Ids ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
    for (const std::int32_t id : ids) EXPECT_FALSE(tokenizer.is_special(id)) << text;
    const std::size_t length = ids.size();
    tokenizer.ensure_bos(ids);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), bos), 1) << text;
    EXPECT_EQ(ids.size(), length + 1);
    const Ids once = ids;
    tokenizer.ensure_bos(ids);
    EXPECT_EQ(ids, once) << "a prompt that has its <bos>";
  }
  // Bytes that are no text keep their count, each as a byte piece.
  for (const std::string& bytes : {std::string("\x80"), std::string("a\xff\xfe z"), std::string("\xe4\xbd"),
                                   std::string("\xf0\x9f\xa6"), std::string("\0", 1)}) {
    std::string raw;
    for (const std::int32_t id : tokenizer.encode(bytes)) raw += tokenizer.decode_bytes(id);
    EXPECT_EQ(raw, bytes);
  }
}

TEST(TokenizerGolden, SmallGgufVocabularyLoads) {
  GEM_GOLDEN_OR_SKIP(path, "models/dense-a/f16.gguf");
  const Tokenizer tokenizer = Tokenizer::from_checkpoint(open_checkpoint(path));
  EXPECT_EQ(tokenizer.size(), 1024);
  EXPECT_EQ(tokenizer.special_id("<turn|>"), 16);
  EXPECT_EQ(tokenizer.end_of_generation(), (Ids{1, 9, 16}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a \xC3\xA9 test")), "a \xC3\xA9 test");
}

}  // namespace
}  // namespace gem
