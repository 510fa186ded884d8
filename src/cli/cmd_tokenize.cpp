// gem tokenize and gem detokenize: text to ids and back.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/model_path.h"
#include "cli/options.h"
#include "formats/checkpoint.h"
#include "text/json_value.h"
#include "text/tokenizer.h"

namespace gem::cli {
namespace {

using Ids = std::vector<std::int32_t>;

struct Options {
  std::string model;
  std::string tokenizer;  // a tokenizer.json, instead of a model
  bool jsonl = false;
  bool bos = false;                         // tokenize
  bool parse_special = false;               // tokenize
  bool skip_special = false;                // detokenize
  std::string text;                         // tokenize
  const CLI::Option* text_given = nullptr;  // an empty text may be given too
  std::vector<std::string> words;           // detokenize

  void add_to(CLI::App& app) {
    auto* from_model =
        app.add_option("-m,--model", model, "Checkpoint whose tokenizer to use (default: the bundled model)");
    app.add_option("--tokenizer", tokenizer, "A Hugging Face tokenizer.json instead of a checkpoint")
        ->excludes(from_model);
  }
  Tokenizer load() const {
    if (!tokenizer.empty()) return Tokenizer::from_json_file(tokenizer);
    return Tokenizer::from_checkpoint(
        open_checkpoint(model.empty() ? bundled_model() : resolve_model(model)));
  }
};

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
}

// Calls `answer` with the member `key` of the object on each line of standard input.
template <typename Answer>
void answer_lines(std::string_view key, Answer&& answer) {
  filter_json_lines([&](std::string_view line) {
    const JsonValue question = parse_json(line);
    const JsonValue* value = question.find(key);
    if (value == nullptr) fail(ErrorCode::kUsage, "expected an object with the member {:?}", key);
    return answer(*value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  });
}

void tokenize(const Options& o) {
  const Tokenizer tokenizer = o.load();
  const auto ids_of = [&](const std::string& text) {
    Ids ids = tokenizer.encode(text, o.parse_special);
    if (o.bos) tokenizer.ensure_bos(ids);
    return ids;
  };
  if (o.jsonl) {
    answer_lines("text", [&](const JsonValue& text) {
      if (!text.is_string()) fail(ErrorCode::kUsage, "text is not a string");
      return nlohmann::json{{"ids", ids_of(text.text)}};
    });
    return;
  }
  print_line(
      fmt::format("{}", fmt::join(ids_of(o.text_given->count() == 0 ? read_standard_input() : o.text), " ")));
}

std::int32_t parse_id(std::string_view word) {
  std::int32_t id = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
  if (error != std::errc() || end != word.data() + word.size()) {
    fail(ErrorCode::kUsage, "{} is no token id", in_quotes(word));
  }
  return id;
}

// Ids separated by spaces, commas or line breaks, brackets allowed: what tokenize prints, and a JSON array.
void append_ids(std::string_view text, Ids& ids) {
  constexpr std::string_view kBetween = " \t\r\n,[]";
  for (std::size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    ids.push_back(parse_id(text.substr(at, end - at)));
    at = text.find_first_not_of(kBetween, end);
  }
}

Ids ids_from(const JsonValue& array) {
  if (!array.is_array()) fail(ErrorCode::kUsage, "ids is not an array");
  Ids ids;
  for (const JsonValue& number : array.items) {
    if (number.kind != JsonValue::Kind::kNumber)
      fail(ErrorCode::kUsage, "{} is no token id", in_quotes(to_json_text(number)));
    ids.push_back(parse_id(number.text));
  }
  return ids;
}

void detokenize(const Options& o) {
  const Tokenizer tokenizer = o.load();
  if (o.jsonl) {
    answer_lines("ids", [&](const JsonValue& ids) {
      return nlohmann::json{{"text", tokenizer.decode(ids_from(ids), !o.skip_special)}};
    });
    return;
  }
  Ids ids;
  if (o.words.empty()) {
    try {
      append_ids(read_standard_input(), ids);
    } catch (const Error& error) {
      fail(ErrorCode::kFailed, "standard input: {}", error.what());
    }
  }
  for (const std::string& word : o.words) append_ids(word, ids);
  const std::string text = tokenizer.decode(ids, !o.skip_special);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("tokenize", "Text to token ids");
  options->add_to(*verb);
  verb->add_flag("--jsonl", options->jsonl,
                 "Lines {\"text\": ...} on standard input to lines {\"ids\": [...]}");
  verb->add_flag("--bos", options->bos, "Start with exactly one <bos>");
  verb->add_flag("--parse-special", options->parse_special,
                 "Control tokens spelt out in the text become control tokens (never for untrusted text)");
  // One string and no list: CLI11 would cut a text "[a, b]" for a list into its elements.
  options->text_given =
      verb->add_option("text", options->text, "The text, in quotes; without it, all of standard input");
  verb->callback([options] { tokenize(*options); });
}

void add_detokenize(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("detokenize", "Token ids to text");
  options->add_to(*verb);
  verb->add_flag("--jsonl", options->jsonl,
                 "Lines {\"ids\": [...]} on standard input to lines {\"text\": ...}");
  verb->add_flag("--skip-special", options->skip_special,
                 "Leave control tokens out instead of spelling them");
  verb->add_option("ids", options->words, "The ids; without them, all of standard input");
  verb->callback([options] { detokenize(*options); });
}

}  // namespace gem::cli
