// Reads the arguments of one generated tool call and writes them as JSON, piece by piece.
//
//   args  = [ key ":" value { "," key ":" value } ]
//   value = <|"|>text<|"|> | "json" | 'text' | """text""" | '''text''' | number | true | false | null
//         | bare text | [ … ] | { args }
//
// Text between triple quotes is taken as it stands (closing_quotes.h says where it ends).
//
// Everything is accepted: what does not fit the grammar becomes a string, is closed, or is dropped, so that
// the JSON is valid wherever the call is cut. Time is linear in the text; memory is one key or bare value and
// a few bytes per open container.
//
// With the tool's schema, values are typed by it: text where a number, boolean or null is declared becomes
// one if it spells one, text where a container is declared becomes one if it is one in any of the spellings,
// and numbers, words and containers where only text is declared become text as they were spelled. (A bare
// null stays null: the format always quotes text.) What fits no declared type is passed on as it came, with
// a diagnostic. A value that the schema may still turn into another type is held until its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/argument_types.h"
#include "text/closing_quotes.h"

namespace gem {

class CallArguments {
 public:
  // `type`: of the arguments object; must outlive this. Null: anything.
  explicit CallArguments(const ArgumentType* type = nullptr) : CallArguments(type, '{', false) {}

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

  // The closing brace has been read. (Where triple quotes and it may still turn out to be text, as if.)
  bool done() const { return state_ == State::kDone || closing_.call_complete(); }

  // The JSON that has become final since the last call; all of them together are the arguments.
  std::string take() { return std::exchange(out_, {}); }

  // What did not fit, one line each, by the names of the arguments; never their values.
  const std::vector<std::string>& diagnostics() const { return diagnostics_; }

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
    kCaptured,    // inside a container that is declared as text
    kDone,
  };
  // Of a string in quotes: whether it may be, or is, one in triple quotes.
  enum class Triple : std::uint8_t { kNo, kOneQuote, kTwoQuotes, kYes };
  enum class Quote : char { kNone = 0, kToken = 't', kDouble = '"', kSingle = '\'' };

  // `found`: a container found in text, whose opening bracket has been read.
  CallArguments(const ArgumentType* type, char bracket, bool found)
      : found_(found),
        out_(1, bracket),
        stack_(1, bracket),
        types_{type},
        state_(bracket == '{' ? State::kKey : State::kValue) {}
  std::size_t read(std::string_view utf8);

  void character(std::string_view c, bool blank);
  void key_character(std::string_view c, bool blank);
  void value_character(std::string_view c, bool blank);
  void after_value(std::string_view c, bool blank);
  void skipped_character(char c);
  void skipped_quote(Quote quote);

  std::size_t string_text(std::string_view text);
  std::size_t triple_text(std::string_view text);
  void apply(ClosingQuotes::Verdict verdict);
  ClosingQuotes::Place place() const { return {stack_, types_, found_}; }
  void escape_character(char c);
  void end_escape();
  void append_string(std::string_view text);
  void append_code(char32_t code);

  bool value_takes(std::uint8_t any_of) const { return value_type_ == nullptr || value_type_->takes(any_of); }
  std::string typed_json(std::string_view text, bool quoted);
  std::string container_json(std::string_view text);
  bool may_be_retyped(std::string_view text) const;
  void append_held(std::string_view text);
  void begin_capture(char bracket);
  void captured(std::string_view text);
  bool ignores(char bracket) const;
  void end_capture();
  void diagnose(const char* problem);

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

  bool found_;
  std::string out_;
  std::string stack_;                       // the open containers
  std::vector<const ArgumentType*> types_;  // of the open containers
  bool first_ = true;                       // nothing written yet in the innermost container
  State state_ = State::kKey;
  Quote quote_ = Quote::kNone;   // of the string or key being read
  Triple triple_ = Triple::kNo;  // of the string being read
  ClosingQuotes closing_;        // what may be the end of one between triple quotes
  std::string key_;              // the key being read, or read and waiting for its value
  std::string bare_;             // the bare value being read
  std::string escape_;           // an escape being read, from its backslash
  char32_t high_surrogate_ = 0;  // the first half of a pair of \u escapes
  std::size_t skipped_ = 0;      // open containers inside the skipped one, itself included

  const ArgumentType* value_type_ = nullptr;  // of the value being read
  std::string value_key_;                     // its key, for diagnostics
  bool holding_ = false;                      // the string being read waits in held_
  std::string held_;
  std::unique_ptr<CallArguments> inner_;  // reads a captured container, to find its end
  bool value_begun_ = false;              // the bare value has its comma and key already
  bool captured_marks_ = false;           // the captured text holds <|"|> tokens
  bool in_text_ = false;  // this container was found in text: its own texts are taken as they are
  bool clean_ = true;     // nothing had to be mended so far
  std::vector<std::string> diagnostics_;
};

}  // namespace gem
