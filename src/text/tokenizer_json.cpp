// Hugging Face tokenizer.json -> TokenizerSource, in one pass without a document tree: the file is 33 MB,
// nearly all of it vocabulary and merges.
#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "formats/json_document.h"
#include "text/tokenizer_source.h"
#include "text/vocabulary.h"

namespace gem {

namespace {

struct AddedToken {
  std::int64_t id = -1;
  std::string content;
  bool special = false;
};

class JsonTokenizerReader {
 public:
  using Json = nlohmann::json;

  // What tokenizer_config.json adds: the name of <bos>, and added tokens.
  void read_config(std::string_view text);
  TokenizerSource finish();

  // The events of nlohmann's SAX interface. Each returns whether to go on; errors are thrown.
  bool null() {
    check_no_text_expected();
    return true;
  }
  bool boolean(bool value) {
    check_no_text_expected();
    if (at({"model", "byte_fallback"})) byte_fallback_ = value;
    if (at({"model", "ignore_merges"}) && value) refuse_field("model.ignore_merges", "true", "false");
    if (top() == Where::kAddedToken) {
      const std::string& key = keys_[depth()];
      if (key == "special") added_.back().special = value;
      for (const std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
        if (key == flag && value) refuse_field(fmt::format("added_tokens[].{}", flag), "true", "false");
      }
    }
    return true;
  }
  bool number_integer(Json::number_integer_t value) {
    number(value);
    return true;
  }
  bool number_unsigned(Json::number_unsigned_t value) {
    number(static_cast<std::int64_t>(std::min<Json::number_unsigned_t>(value, std::uint64_t{1} << 62)));
    return true;
  }
  bool number_float(Json::number_float_t, const std::string& text) {
    if (at({"model", "dropout"})) refuse_field("model.dropout", text, "null");
    if (top() == Where::kVocabulary) refuse_field("model.vocab", text, "an integer id");
    check_no_text_expected();
    return true;
  }
  bool string(std::string& value);
  bool binary(Json::binary_t&) { return true; }
  bool start_object(std::size_t) {
    const bool vocabulary = at({"model", "vocab"});
    const bool added = top() == Where::kAddedTokens;
    check_no_text_expected();
    has_vocabulary_ |= vocabulary;
    if (added) added_.emplace_back();
    push(vocabulary ? Where::kVocabulary : added ? Where::kAddedToken : Where::kObject);
    return true;
  }
  bool key(std::string& name) {
    if (top() == Where::kVocabulary) {
      piece_ = std::move(name);
    } else if (depth() < keys_.size()) {
      keys_[depth()] = std::move(name);
    }
    return true;
  }
  bool end_object() {
    stack_.pop_back();
    return true;
  }
  bool start_array(std::size_t) {
    if (top() == Where::kMerges) {
      sides_.clear();
      push(Where::kMergePair);
      return true;
    }
    check_no_text_expected();
    const bool merges = at({"model", "merges"});
    has_merges_ |= merges;
    push(merges ? Where::kMerges : at({"added_tokens"}) ? Where::kAddedTokens : Where::kArray);
    return true;
  }
  bool end_array() {
    if (top() == Where::kMergePair) {
      if (sides_.size() != 2) {
        fail(ErrorCode::kBadFile, "model.merges[{}] has {} parts, not 2", source_.merges.size(),
             sides_.size());
      }
      source_.add_merge(sides_[0], sides_[1]);
    }
    stack_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
    fail(ErrorCode::kBadFile, "not valid JSON at byte {}: {}", position, error.what());
  }

 private:
  enum class Where : std::uint8_t {
    kObject,
    kArray,
    kVocabulary,
    kMerges,
    kMergePair,
    kAddedTokens,
    kAddedToken,
  };

  std::size_t depth() const { return stack_.size(); }
  Where top() const { return stack_.empty() ? Where::kArray : stack_.back(); }
  void push(Where where) {
    stack_.push_back(where);
    if (depth() < keys_.size()) keys_[depth()].clear();
  }
  // Whether the value that comes is that of this path of object keys.
  bool at(std::initializer_list<std::string_view> path) const {
    if (depth() != path.size() || path.size() >= keys_.size()) return false;
    std::size_t level = 0;
    for (const std::string_view name : path) {
      if (stack_[level] != Where::kObject || keys_[level + 1] != name) return false;
      ++level;
    }
    return true;
  }
  void check_no_text_expected() const {
    if (top() == Where::kVocabulary) {
      fail(ErrorCode::kBadFile, "model.vocab of {} is no integer id", in_quotes(piece_));
    }
    if (top() == Where::kMerges || top() == Where::kMergePair) {
      fail(ErrorCode::kBadFile, "model.merges[{}] is no pair of strings", source_.merges.size());
    }
  }
  [[noreturn]] static void refuse_field(std::string_view field, std::string_view found,
                                        std::string_view expected) {
    fail(ErrorCode::kBadFile, "{} is {}; gem's tokenizer supports {} only", field, found, expected);
  }
  void number(std::int64_t value) {
    if (top() == Where::kVocabulary) {
      vocabulary_.add(piece_);
      vocabulary_ids_.push_back(value);
    } else if (top() == Where::kAddedToken && keys_[depth()] == "id") {
      added_.back().id = value;
    } else {
      check_no_text_expected();
    }
  }

  TokenizerSource source_;
  TextList vocabulary_;  // in file order
  std::vector<std::int64_t> vocabulary_ids_;
  std::vector<AddedToken> added_;
  std::vector<Where> stack_;
  std::array<std::string, 5> keys_;  // keys_[d]: the latest key of the object at depth d
  std::string piece_;                // the latest key of model.vocab
  std::vector<std::string> sides_;   // of the merge being read
  std::string bos_;                  // its text, where the config names it
  std::string model_type_;
  std::string normalizer_type_, normalizer_pattern_, normalizer_content_;
  bool byte_fallback_ = false;
  bool has_vocabulary_ = false;
  bool has_merges_ = false;
};

bool JsonTokenizerReader::string(std::string& value) {
  switch (top()) {
    case Where::kMergePair:
      if (sides_.size() > 2) check_no_text_expected();
      sides_.push_back(std::move(value));
      return true;
    case Where::kMerges: {  // how older writers spell a pair
      const std::size_t space = value.find(' ', 1);
      if (space == std::string::npos) {
        fail(ErrorCode::kBadFile, "model.merges[{}] is {}; expected two pieces with a space between",
             source_.merges.size(), in_quotes(value));
      }
      const std::string_view text = value;
      source_.add_merge(text.substr(0, space), text.substr(space + 1));
      return true;
    }
    case Where::kAddedToken:
      if (keys_[depth()] == "content") added_.back().content = std::move(value);
      return true;
    case Where::kVocabulary:
      check_no_text_expected();
      return true;
    default:
      break;
  }
  if (at({"model", "type"})) model_type_ = value;
  for (const std::string_view affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (at({"model", affix}) && !value.empty())
      refuse_field(fmt::format("model.{}", affix), in_quotes(value), "null");
  }
  if (at({"normalizer", "type"})) normalizer_type_ = value;
  if (at({"normalizer", "pattern", "String"})) normalizer_pattern_ = value;
  if (at({"normalizer", "content"})) normalizer_content_ = value;
  return true;
}

void JsonTokenizerReader::read_config(std::string_view text) {
  const std::string where = "tokenizer_config.json";
  const Json document = parse_json_object(text, where);
  const JsonFields fields(document, where);
  if (const Json* bos = fields.find("bos_token"); bos != nullptr && bos->is_object()) {
    bos_ = fields.object("bos_token")->string("content").value_or("");
  } else {
    bos_ = fields.string("bos_token").value_or("");
  }
  const auto decoder = fields.object("added_tokens_decoder");
  if (!decoder) return;
  for (const auto& item : decoder->json().items()) {
    const JsonFields entry = decoder->needed_object(item.key());
    AddedToken token;
    const auto [end, error] =
        std::from_chars(item.key().data(), item.key().data() + item.key().size(), token.id);
    const auto content = entry.string("content");
    if (error != std::errc() || end != item.key().data() + item.key().size() || !content)
      fail(ErrorCode::kBadFile, "{} is no added token: an id with its content", decoder->name(item.key()));
    token.content = *content;
    token.special = entry.boolean("special").value_or(false);
    for (const std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
      if (entry.boolean(flag).value_or(false)) refuse_field(entry.name(flag), "true", "false");
    }
    const auto same = std::find_if(added_.begin(), added_.end(),
                                   [&](const AddedToken& known) { return known.id == token.id; });
    if (same == added_.end()) {
      added_.push_back(std::move(token));
    } else if (same->content != token.content) {
      fail(ErrorCode::kBadFile, "{}: id {} is {}, but {} in tokenizer.json", where, token.id,
           in_quotes(token.content), in_quotes(same->content));
    }
  }
}

TokenizerSource JsonTokenizerReader::finish() {
  if (model_type_ != "BPE") refuse_field("model.type", in_quotes(model_type_), "\"BPE\"");
  if (!byte_fallback_) refuse_field("model.byte_fallback", "not true", "true");
  if (normalizer_type_ != "Replace" || normalizer_pattern_ != " " || normalizer_content_ != kSpacePiece) {
    refuse_field("normalizer",
                 fmt::format("{} {} by {}", in_quotes(normalizer_type_), in_quotes(normalizer_pattern_),
                             in_quotes(normalizer_content_)),
                 "Replace \" \" by U+2581");
  }
  if (!has_vocabulary_) fail(ErrorCode::kBadFile, "model.vocab is missing");
  if (!has_merges_) fail(ErrorCode::kBadFile, "model.merges is missing");

  // Ids 0 to n-1, from the vocabulary and from added tokens that are not in it.
  std::vector<std::string_view> texts(vocabulary_.size());
  std::vector<bool> known(vocabulary_.size(), false);
  for (std::size_t i = 0; i < vocabulary_.size(); ++i) {
    const std::int64_t id = vocabulary_ids_[i];
    if (id < 0 || static_cast<std::size_t>(id) >= vocabulary_.size()) {
      fail(ErrorCode::kBadFile, "model.vocab gives {} the id {}; {} pieces must have the ids 0 to {}",
           in_quotes(vocabulary_[i]), id, vocabulary_.size(), vocabulary_.size() - 1);
    }
    const auto slot = static_cast<std::size_t>(id);
    if (known[slot]) {
      fail(ErrorCode::kBadFile, "model.vocab gives the id {} to both {} and {}", id, in_quotes(texts[slot]),
           in_quotes(vocabulary_[i]));
    }
    texts[slot] = vocabulary_[i];
    known[slot] = true;
  }
  std::sort(added_.begin(), added_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  for (const AddedToken& token : added_) {
    if (token.id < 0 || static_cast<std::size_t>(token.id) > texts.size()) {
      fail(ErrorCode::kBadFile, "added_tokens gives {} the id {} after a vocabulary of {} pieces",
           in_quotes(token.content), token.id, texts.size());
    }
    const auto slot = static_cast<std::size_t>(token.id);
    if (slot == texts.size()) texts.push_back(token.content);
    if (texts[slot] != token.content) {
      fail(ErrorCode::kBadFile, "added_tokens gives {} the id {}, which is {}", in_quotes(token.content),
           token.id, in_quotes(texts[slot]));
    }
  }
  source_.pieces.reserve(texts.size(), texts.size() * 8);
  for (const std::string_view text : texts) {
    source_.pieces.add(text);
    source_.kinds.push_back(byte_of_piece(text) ? PieceKind::kByte : PieceKind::kNormal);
  }
  for (const AddedToken& token : added_) {
    source_.kinds[static_cast<std::size_t>(token.id)] =
        token.special ? PieceKind::kControl : PieceKind::kAdded;
  }
  if (!bos_.empty()) {
    const auto named = std::find(texts.begin(), texts.end(), bos_);
    if (named == texts.end())
      fail(ErrorCode::kBadFile, "tokenizer_config.json: bos_token {} is no piece of the vocabulary",
           in_quotes(bos_));
    source_.bos = named - texts.begin();
  }
  return std::move(source_);
}

}  // namespace

TokenizerSource read_json_tokenizer(std::string_view json, std::string_view config) {
  JsonTokenizerReader reader;
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  if (!config.empty()) reader.read_config(config);
  return reader.finish();
}

}  // namespace gem
