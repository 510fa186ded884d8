// Reads the arguments of one generated tool call and writes them as JSON, piece by piece.
//
//   args  = [ key ":" value { "," key ":" value } ]
//   value = <|"|>text<|"|> | "json" | 'text' | number | true | false | null | bare text | [ … ] | { args }
//
// Everything is accepted: what does not fit the grammar becomes a string, is closed, or is dropped, so that
// the JSON is valid wherever the call is cut. Time is linear in the text; memory is one key or bare value and
// one byte per open container.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace gem {

class CallArguments {
 public:
  // Plain text after the opening brace: valid UTF-8, whole characters. Text after the closing brace is
  // ignored.
  void text(std::string_view utf8);
  // A <|"|> token.
  void quote();
  // Any other control token: part of a string as spelled, else ignored.
  void foreign(std::string_view spelling);
  // The end of the call, wherever it comes: strings and containers are closed, a key without a value is
  // dropped.
  void end();

  // The closing brace has been read.
  bool done() const { return state_ == State::kDone; }

  // The JSON that has become final since the last call; all of them together are the arguments.
  std::string take() { return std::exchange(out_, {}); }

 private:
  enum class State : std::uint8_t {
    kKey,         // before or inside a bare key
    kQuotedKey,   // inside a key in quotes
    kAfterKey,    // between a key in quotes and ':'
    kValue,       // before a value
    kBare,        // inside a bare value
    kString,      // inside a string value
    kAfterValue,  // before ',' or a closing bracket
    kSkipped,     // inside a container nested too deeply, which counts as null
    kDone,
  };
  enum class Quote : char { kNone = 0, kToken = 't', kDouble = '"', kSingle = '\'' };

  void character(std::string_view c, bool blank);
  void key_character(std::string_view c, bool blank);
  void value_character(std::string_view c, bool blank);
  void after_value(std::string_view c, bool blank);
  void skipped_character(char c);
  void skipped_quote(Quote quote);

  std::size_t string_text(std::string_view text);
  void escape_character(char c);
  void end_escape();
  void append_string(std::string_view text);
  void append_code(char32_t code);

  bool key_assigns();
  void drop_key();
  void begin_value();
  void begin_string(Quote quote);
  void end_string();
  void begin_container(char bracket);
  void end_containers(char bracket);
  void end_bare();
  void next_member();
  bool in_array() const { return stack_.back() == '['; }

  std::string out_ = "{";
  std::string stack_ = "{";  // the open containers
  bool first_ = true;        // nothing written yet in the innermost container
  State state_ = State::kKey;
  Quote quote_ = Quote::kNone;   // of the string or key being read
  std::string key_;              // the key being read, or read and waiting for its value
  std::string bare_;             // the bare value being read
  std::string escape_;           // an escape being read, from its backslash
  char32_t high_surrogate_ = 0;  // the first half of a pair of \u escapes
  std::size_t skipped_ = 0;      // open containers inside the skipped one, itself included
};

}  // namespace gem
