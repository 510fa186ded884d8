// Reading vocabularies: what is taken from each kind of file, and that malformed ones are refused by name.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/checkpoint.h"
#include "formats/gguf_writer.h"
#include "text/tokenizer_gguf_keys.h"
#include "tokenizer_fixture.h"

namespace gem {
namespace {

using Ids = std::vector<std::int32_t>;
using nlohmann::ordered_json;
using testing::expect_bad_file;
using testing::kFirstByte;
using testing::small_source;

// The metadata of a small GGUF file, to be changed by a test before it is loaded.
struct GgufVocabulary {
  std::vector<std::string> tokens = {"<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "<|tool_response>",
                                     "</s>",  "<tag>"};
  std::vector<std::int64_t> types = {3, 1, 3, 2, 4, 4, 3, 4};
  std::vector<std::string> merges = {"a b", "\xE2\x96\x81 ab"};
  std::map<std::string, MetadataValue> others = {{"tokenizer.ggml.model", std::string_view("gemma4")},
                                                 {"tokenizer.ggml.bos_token_id", std::int64_t{2}},
                                                 {"tokenizer.ggml.eos_token_id", std::int64_t{1}}};

  GgufVocabulary() {
    for (unsigned byte = 0; byte < 256; ++byte) add(testing::byte_piece_text(byte), 6);
    for (const char* piece : {"a", "b", "\xE2\x96\x81", "ab",
                              "\xE2\x96\x81"
                              "ab"})
      add(piece, 1);
  }
  void add(const std::string& token, std::int64_t type) {
    tokens.push_back(token);
    types.push_back(type);
  }
  Tokenizer load() const {
    Checkpoint checkpoint;
    const auto array = [](const std::vector<std::string>& texts) {
      return MetadataArray(std::vector<std::string_view>(texts.begin(), texts.end()));
    };
    if (!others.contains("tokenizer.ggml.tokens"))
      checkpoint.add_metadata("tokenizer.ggml.tokens", array(tokens));
    checkpoint.add_metadata("tokenizer.ggml.token_type", MetadataArray(types));
    if (!others.contains("tokenizer.ggml.merges"))
      checkpoint.add_metadata("tokenizer.ggml.merges", array(merges));
    for (const auto& [key, value] : others) checkpoint.add_metadata(key, value);
    return Tokenizer::from_checkpoint(checkpoint);
  }
};

TEST(TokenizerGguf, KindsFollowTextsThenTypes) {
  GgufVocabulary file;
  file.others["tokenizer.ggml.suppress_tokens"] = MetadataArray(std::vector<std::int64_t>{7, -5, 1 << 20, 3});
  const Tokenizer tokenizer = file.load();
  EXPECT_EQ(tokenizer.bos(), 2);
  EXPECT_EQ(tokenizer.end_of_generation(), (Ids{1, 4, 5}));
  EXPECT_TRUE(tokenizer.ends_generation(4));
  EXPECT_FALSE(tokenizer.ends_generation(6));
  EXPECT_EQ(tokenizer.suppressed(), (Ids{3, 7}));
  for (const std::int32_t id : {0, 1, 2, 3, 4, 5})
    EXPECT_TRUE(tokenizer.is_special(id)) << id;  // whatever the type
  for (const std::int32_t id : {6, 7, 8, 270}) EXPECT_FALSE(tokenizer.is_special(id)) << id;
  EXPECT_EQ(tokenizer.special_id("<turn|>"), 4);
  EXPECT_EQ(tokenizer.special_id("</s>"), std::nullopt);
  EXPECT_EQ(tokenizer.special_id("<|turn>"), std::nullopt);
  EXPECT_EQ(tokenizer.encode("<tag><turn|>", true), (Ids{7, 4}));
  EXPECT_EQ(testing::shown(tokenizer, tokenizer.encode("a ab")),
            "a|\xE2\x96\x81"
            "ab");
}

TEST(TokenizerGguf, OneMoreEndOfSequenceFromTheFile) {
  GgufVocabulary file;
  file.others["tokenizer.ggml.eos_token_id"] = std::int64_t{0};
  EXPECT_EQ(file.load().end_of_generation(), (Ids{0, 1, 4, 5}));
  file.others["tokenizer.ggml.eos_token_id"] = std::int64_t{6};  // </s> is an HTML tag here
  EXPECT_EQ(file.load().end_of_generation(), (Ids{1, 4, 5}));
}

TEST(TokenizerGguf, OtherConvertersModelName) {
  GgufVocabulary file;
  file.others["tokenizer.ggml.model"] = std::string_view("llama");
  expect_bad_file([&] { file.load(); }, "tokenizer.ggml.model");
  file.others["tokenizer.ggml.pre"] = std::string_view("gemma4");
  EXPECT_EQ(file.load().bos(), 2);
}

TEST(TokenizerGguf, AFileWithoutTokenizerSaysSo) {
  Checkpoint checkpoint;
  EXPECT_FALSE(Tokenizer::present_in(checkpoint));
  expect_bad_file([&] { Tokenizer::from_checkpoint(checkpoint); }, "tokenizer.ggml.model");
}

TEST(TokenizerGguf, MalformedVocabulariesAreRefused) {
  struct Case {
    const char* named;
    std::function<void(GgufVocabulary&)> damage;
  };
  const std::vector<Case> cases = {
      {"\"gpt2\"", [](auto& f) { f.others["tokenizer.ggml.model"] = std::string_view("gpt2"); }},
      {"tokenizer.ggml.model", [](auto& f) { f.others["tokenizer.ggml.model"] = std::int64_t{4}; }},
      {"\"llama-bpe\"", [](auto& f) { f.others["tokenizer.ggml.pre"] = std::string_view("llama-bpe"); }},
      {"add_space_prefix", [](auto& f) { f.others["tokenizer.ggml.add_space_prefix"] = true; }},
      {"\"zz\"", [](auto& f) { f.merges.push_back("zz a"); }},
      {"\"zz\"", [](auto& f) { f.merges.push_back("a zz"); }},
      {"\"ba\"", [](auto& f) { f.merges.push_back("b a"); }},
      {"merges 2", [](auto& f) { f.merges.push_back("ab"); }},
      {"merge 2", [](auto& f) { f.merges.push_back("a "); }},
      {"merges 2", [](auto& f) { f.merges.push_back(""); }},
      {"repeats merge 0", [](auto& f) { f.merges.push_back("a b"); }},
      {"control", [](auto& f) { f.add("<bos>a", 3), f.merges.push_back("<bos> a"); }},
      {"byte", [](auto& f) { f.add("<0x41>a", 1), f.merges.push_back("<0x41> a"); }},
      {"both \"a\"", [](auto& f) { f.add("a", 1); }},
      {"both \"<eos>\"", [](auto& f) { f.add("<eos>", 3); }},
      {"is -1", [](auto& f) { f.others["tokenizer.ggml.eos_token_id"] = std::int64_t{-1}; }},
      {"is 269", [](auto& f) { f.others["tokenizer.ggml.eos_token_id"] = std::int64_t{269}; }},
      {"is 4294967297",
       [](auto& f) { f.others["tokenizer.ggml.bos_token_id"] = std::int64_t{(1ll << 32) + 1}; }},
      {"eos_token_id", [](auto& f) { f.others["tokenizer.ggml.eos_token_id"] = std::string_view("1"); }},
      {"<0x0A>", [](auto& f) { f.tokens[8 + 10] = "<0x0a>", f.types[8 + 10] = 1; }},
      {"\"x\"", [](auto& f) { f.tokens[8 + 255] = "x"; }},
      {"tokenizer.ggml.token_type", [](auto& f) { f.types.pop_back(); }},
      {"tokenizer.ggml.token_type", [](auto& f) { f.types.back() = 7; }},
      {"tokenizer.ggml.scores",
       [](auto& f) { f.others["tokenizer.ggml.scores"] = MetadataArray(std::vector<double>{0.0}); }},
      {"not valid UTF-8", [](auto& f) { f.add("\xC3(", 1); }},
      {"not valid UTF-8", [](auto& f) { f.add("\xED\xA0\x80", 1); }},
      {"is empty", [](auto& f) { f.add("", 1); }},
      {"tokenizer.ggml.tokens", [](auto& f) { f.others["tokenizer.ggml.tokens"] = std::int64_t{5}; }},
      {"tokenizer.ggml.merges", [](auto& f) { f.others["tokenizer.ggml.merges"] = std::string_view("a b"); }},
      {"tokenizer.ggml.merges",
       [](auto& f) { f.others["tokenizer.ggml.merges"] = MetadataArray(std::vector<std::int64_t>{1}); }},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(fmt::format("case {}", i));
    GgufVocabulary file;
    cases[i].damage(file);
    expect_bad_file([&] { file.load(); }, cases[i].named);
  }
}

TEST(TokenizerGguf, EmptyVocabularyIsRefused) {
  GgufVocabulary file;
  file.tokens.clear();
  file.types.clear();
  expect_bad_file([&] { file.load(); }, "empty");
}

// In a vocabulary of Gemma 4's size the control tokens' places are known.
TEST(TokenizerGguf, FullSizeVocabularyWithMisplacedControlTokensIsRefused) {
  GgufVocabulary file;
  file.tokens[4] = "<other>";
  file.tokens[5] = "<another>";
  while (file.tokens.size() < 262144) file.add(fmt::format("p{}", file.tokens.size()), 1);
  EXPECT_EQ(file.load().size(), 262144);
  file.tokens[105000] = "<turn|>";
  expect_bad_file([&] { file.load(); }, "<turn|> is piece 105000");
}

// Braces alone would make an object of two strings in a list.
ordered_json pair(const char* left, const char* right) {
  return ordered_json::array({left, right});
}

// A file as the reference implementation writes it, with pieces 8-263 the bytes.
ordered_json small_json() {
  const TokenizerSource source =
      small_source({"a", "b", "\xE2\x96\x81"}, {{"a", "b"}, {"\xE2\x96\x81", "ab"}, {"\n", "\n"}});
  ordered_json vocabulary = ordered_json::object();
  for (std::size_t id = 0; id < source.pieces.size(); ++id) vocabulary[std::string(source.pieces[id])] = id;
  ordered_json added = ordered_json::array();
  for (std::size_t id = 0; id < 8; ++id) {
    added.push_back({{"id", id},
                     {"content", std::string(source.pieces[id])},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", id != 7}});
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"added_tokens", added},
          {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}}},
          {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"invert", false}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", ordered_json::array({pair("a", "b"), pair("\xE2\x96\x81", "ab")})}}}};
}

TEST(TokenizerJson, ReadsTheReferenceLayout) {
  const Tokenizer tokenizer = Tokenizer::from_json(small_json().dump());
  EXPECT_EQ(tokenizer.size(), 270);
  EXPECT_EQ(tokenizer.bos(), 2);
  EXPECT_EQ(tokenizer.end_of_generation(), (Ids{1, 6}));
  EXPECT_TRUE(tokenizer.is_special(5));
  EXPECT_FALSE(tokenizer.is_special(7));
  EXPECT_EQ(tokenizer.encode("<tag><|turn>", true), (Ids{7, 5}));
  EXPECT_EQ(testing::shown(tokenizer, tokenizer.encode("ab ab")),
            "ab|\xE2\x96\x81"
            "ab");
  EXPECT_EQ(Tokenizer::from_json(small_json().dump(2, ' ', true)).encode("ab ab"), tokenizer.encode("ab ab"));
}

TEST(TokenizerJson, OlderSpellingOfMerges) {
  ordered_json file = small_json();
  file["model"]["merges"] = ordered_json::array({"a b", "\xE2\x96\x81 ab"});
  EXPECT_EQ(Tokenizer::from_json(file.dump()).encode("a ab"),
            Tokenizer::from_json(small_json().dump()).encode("a ab"));
}

TEST(TokenizerJson, AddedTokensMayExtendTheVocabulary) {
  ordered_json file = small_json();
  const ordered_json soft = {{"id", 270}, {"content", "<soft>"}, {"special", true}};
  file["added_tokens"].push_back(soft);
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump());
  EXPECT_EQ(tokenizer.size(), 271);
  EXPECT_EQ(tokenizer.encode("<soft>", true), Ids{270});
}

// The file's own list decides: a name that is no added token there is text.
TEST(TokenizerJson, NamesAloneMakeNoControlToken) {
  ordered_json file = small_json();
  file["added_tokens"].erase(5);
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump());
  EXPECT_FALSE(tokenizer.is_special(5));
  EXPECT_EQ(tokenizer.special_id("<|turn>"), std::nullopt);
}

Tokenizer with_config(const std::string& config) {
  return Tokenizer(read_json_tokenizer(small_json().dump(), config));
}

TEST(TokenizerJson, TheConfigBesideNamesBosAndAddsTokens) {
  EXPECT_EQ(with_config(R"({"bos_token": "<mask>"})").bos(), 4);
  EXPECT_EQ(with_config(R"({"bos_token": {"content": "<mask>", "lstrip": false}})").bos(), 4);
  EXPECT_EQ(with_config(R"({"bos_token": null, "chat_template": "{{ x }}"})").bos(), 2);
  const Tokenizer more = with_config(R"({"added_tokens_decoder": {
    "5": {"content": "<|turn>", "special": true},
    "269": {"content": "\n\n", "special": true},
    "270": {"content": "<soft>", "special": true}}})");
  EXPECT_EQ(more.size(), 271);
  EXPECT_TRUE(more.is_special(269));
  EXPECT_EQ(more.encode("<soft>", true), Ids{270});
}

TEST(TokenizerJson, AConfigThatContradictsIsRefused) {
  const auto token = [](const std::string& entry) { return R"({"added_tokens_decoder": {)" + entry + "}}"; };
  expect_bad_file([&] { with_config(R"({"bos_token": "<nowhere>"})"); }, "<nowhere>");
  expect_bad_file([&] { with_config(R"({"bos_token": 2})"); }, "expected a string");
  expect_bad_file([&] { with_config(token(R"("5": {"content": "<|other>"})")); }, "id 5");
  expect_bad_file([&] { with_config(token(R"("264": {"content": "b"})")); }, "264");
  expect_bad_file([&] { with_config(token(R"("272": {"content": "<far>"})")); }, "272");
  expect_bad_file([&] { with_config(token(R"("x": {"content": "b"})")); }, "added_tokens_decoder.x");
  expect_bad_file([&] { with_config(token(R"("-1": {"content": "b"})")); }, "-1");
  expect_bad_file([&] { with_config(token(R"("270": {"content": "<soft>", "lstrip": true})")); }, "lstrip");
}

TEST(TokenizerCheckpoint, TakesTheJsonAndTheIdsOfTheConfigs) {
  const std::string json = small_json().dump();
  const auto checkpoint = [&](std::vector<std::int64_t> end) {
    Checkpoint c;
    c.add_metadata("gem.model_type", std::string_view("gemma4"));
    c.add_metadata("tokenizer.huggingface.json", std::string_view(json));
    c.add_metadata("tokenizer.ggml.bos_token_id", std::int64_t{2});
    c.add_metadata("gem.end_tokens", MetadataArray(std::move(end)));
    c.add_metadata("tokenizer.ggml.suppress_tokens", MetadataArray(std::vector<std::int64_t>{4}));
    return c;
  };
  const Checkpoint c = checkpoint({1, 5});
  EXPECT_TRUE(Tokenizer::present_in(c));
  const Tokenizer tokenizer = Tokenizer::from_checkpoint(c);
  EXPECT_EQ(tokenizer.end_of_generation(), (Ids{1, 5, 6}));  // 6 by its name
  EXPECT_TRUE(std::ranges::equal(tokenizer.suppressed(), Ids{4}));
  expect_bad_file([&] { Tokenizer::from_checkpoint(checkpoint({270})); }, "270");
  Checkpoint without;
  without.add_metadata("gem.model_type", std::string_view("gemma4"));
  expect_bad_file([&] { Tokenizer::from_checkpoint(without); }, "no tokenizer.json");
}

// What gem convert writes reads back as the same vocabulary.
TEST(TokenizerCheckpoint, GgufKeysSayTheSameAsTheJson) {
  const std::string json = small_json().dump();
  Checkpoint source;
  source.add_metadata("tokenizer.huggingface.json", std::string_view(json));
  source.add_metadata("gem.end_tokens", MetadataArray(std::vector<std::int64_t>{1, 5}));
  GgufWriter writer;
  add_gguf_tokenizer(source, writer);
  writer.add("gem.end_tokens", std::vector<std::int32_t>{1, 5});
  const std::string path = ::testing::TempDir() + "gem-tokenizer-" + std::to_string(::getpid()) + ".gguf";
  writer.write(path, [](const GgufWriter::Tensor&, const GgufWriter::Sink&) {});
  const Tokenizer before = Tokenizer::from_checkpoint(source);
  const Tokenizer after = Tokenizer::from_checkpoint(open_checkpoint(path));
  std::filesystem::remove(path);
  ASSERT_EQ(after.size(), before.size());
  for (std::int32_t id = 0; id < before.size(); ++id) {
    EXPECT_EQ(after.piece(id), before.piece(id));
    EXPECT_EQ(after.is_special(id), before.is_special(id)) << before.piece(id);
  }
  EXPECT_EQ(after.bos(), before.bos());
  EXPECT_TRUE(std::ranges::equal(after.end_of_generation(), before.end_of_generation()));
  for (const char* text : {"ab ab", "<tag><|turn>ab", "\n\nb \xC3\xA9"})
    EXPECT_EQ(after.encode(text, true), before.encode(text, true)) << text;
}

TEST(TokenizerJson, MalformedFilesAreRefused) {
  struct Case {
    const char* named;
    std::function<void(ordered_json&)> damage;
  };
  const std::vector<Case> cases = {
      {"model.type", [](auto& j) { j["model"]["type"] = "Unigram"; }},
      {"model.type", [](auto& j) { j.erase("model"); }},
      {"byte_fallback", [](auto& j) { j["model"]["byte_fallback"] = false; }},
      {"ignore_merges", [](auto& j) { j["model"]["ignore_merges"] = true; }},
      {"dropout", [](auto& j) { j["model"]["dropout"] = 0.5; }},
      {"end_of_word_suffix", [](auto& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"normalizer", [](auto& j) { j["normalizer"] = nullptr; }},
      {"normalizer", [](auto& j) { j["normalizer"]["content"] = "_"; }},
      {"normalizer",
       [](auto& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       }},
      {"model.vocab is missing", [](auto& j) { j["model"].erase("vocab"); }},
      {"model.vocab", [](auto& j) { j["model"]["vocab"]["a"] = "264"; }},
      {"model.vocab", [](auto& j) { j["model"]["vocab"]["a"] = nullptr; }},
      {"model.vocab", [](auto& j) { j["model"]["vocab"]["a"] = ordered_json::array({1}); }},
      {"model.vocab", [](auto& j) { j["model"]["vocab"]["a"] = 264.5; }},
      {"id -1", [](auto& j) { j["model"]["vocab"]["a"] = -1; }},
      {"id 1000", [](auto& j) { j["model"]["vocab"]["a"] = 1000; }},
      {"model.vocab", [](auto& j) { j["model"]["vocab"]["a"] = 18446744073709551615ull; }},
      {"to both", [](auto& j) { j["model"]["vocab"]["a"] = 265; }},
      {"model.merges is missing", [](auto& j) { j["model"].erase("merges"); }},
      {"\"zz\"", [](auto& j) { j["model"]["merges"].push_back(pair("a", "zz")); }},
      {"model.merges[2]",
       [](auto& j) {
         j["model"]["merges"].push_back(ordered_json::array({"a", "b", "c"}));
       }},
      {"model.merges[2]", [](auto& j) { j["model"]["merges"].push_back(ordered_json::array({"a"})); }},
      {"model.merges[2]",
       [](auto& j) {
         j["model"]["merges"].push_back(ordered_json::array({"a", 3}));
       }},
      {"model.merges[2]", [](auto& j) { j["model"]["merges"].push_back("ab"); }},
      {"model.merges[2]", [](auto& j) { j["model"]["merges"].push_back(7); }},
      {"repeats merge 0", [](auto& j) { j["model"]["merges"].push_back(pair("a", "b")); }},
      {"which is", [](auto& j) { j["added_tokens"][0]["content"] = "<other>"; }},
      {"the id 500", [](auto& j) { j["added_tokens"][0]["id"] = 500; }},
      {"the id -1", [](auto& j) { j["added_tokens"][0].erase("id"); }},
      {"lstrip", [](auto& j) { j["added_tokens"][0]["lstrip"] = true; }},
      {"<bos>",
       [](auto& j) {
         j["model"]["vocab"].erase("<bos>"), j["model"]["vocab"]["<b>"] = 2, j["added_tokens"].erase(2);
       }},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(fmt::format("case {}", i));
    ordered_json file = small_json();
    cases[i].damage(file);
    expect_bad_file([&] { Tokenizer::from_json(file.dump()); }, cases[i].named);
  }
}

TEST(TokenizerJson, TextThatIsNoJsonIsRefused) {
  const std::string whole = small_json().dump();
  for (const std::string& text : {std::string(), std::string("[]x"), std::string("{\"model\":"), whole + "}",
                                  whole.substr(0, whole.size() / 2), std::string(100000, '[')}) {
    expect_bad_file([&] { Tokenizer::from_json(text); }, "not valid JSON");
  }
  // The same key twice, which a document tree would hide.
  std::string twice = whole;
  twice.replace(twice.find("\"a\":"), 4, "\"b\":");
  expect_bad_file([&] { Tokenizer::from_json(twice); }, "both \"b\"");
}

TEST(TokenizerJson, ErrorsNameTheFile) {
  expect_bad_file([] { Tokenizer::from_json_file("/nonexistent/tokenizer.json"); },
                  "/nonexistent/tokenizer.json");
  const std::string path = ::testing::TempDir() + "gem-no-tokenizer.json";
  std::ofstream(path) << "{}";
  expect_bad_file([&] { Tokenizer::from_json_file(path); }, path);
}

}  // namespace
}  // namespace gem
