// Whether three quotes end a text between triple quotes, or are a part of it.
//
// A text between """ (or ''') is taken as it stands, without escapes: models write code so, and code has
// triple quotes of its own. So three quotes end it only where what follows could follow a value: blanks, then
// the end of the call, a comma and another member (in an object: a key and ':'), or brackets that close what
// is open, and after the outermost one nothing at all. Of more than three quotes the last three are the end.
//
// What has been read while that is open is held here. Constant time a character; held text is a run of
// quotes, blanks and brackets, and at most one key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "text/argument_types.h"

namespace gem {

class ClosingQuotes {
 public:
  enum class Verdict : std::uint8_t {
    kOpen,     // more has to be seen
    kCloses,   // text_quotes() of the held quotes are text, three are the end, rest() follows it
    kNoClose,  // text_quotes() of the held text are text; rest() has to be read again as text
  };
  // Where the text stands; the same in all calls from begin() to a verdict.
  struct Place {
    std::string_view stack;                      // the open containers, outermost first: '{' or '['
    std::span<const ArgumentType* const> types;  // of these; a declared member may have '=' for ':'
    bool outermost_ends = false;  // it is not known what follows the outermost one: its bracket is an end
  };

  // At a quote in the text.
  void begin(char quote, const Place& place);
  bool active() const { return !held_.empty(); }

  // The next whole character.
  Verdict character(std::string_view c, bool blank, const Place& place);
  // The format's own quote: one where a key may begin, else no end.
  Verdict quote_token();
  // Another control token: no end.
  Verdict marker() { return verdict(false); }
  // The call ends here.
  Verdict end();

  // The outermost container has been closed; at the end of the call this will have been the end.
  bool call_complete() const { return active() && state_ == State::kAllClosed; }

  std::size_t text_quotes() const { return text_quotes_; }
  std::string_view rest() const { return std::string_view(held_).substr(quotes_); }
  void clear() { held_.clear(); }

 private:
  enum class State : std::uint8_t {
    kQuotes,
    kAfterValue,  // before ',' or a closing bracket
    kMember,      // after ','
    kBareKey,
    kAfterBareKey,
    kQuotedKey,
    kAfterQuotedKey,
    kAllClosed,
  };
  Verdict verdict(bool closes);
  bool declared(const Place& place) const;
  Verdict after_value(std::string_view c, bool blank, const Place& place);
  Verdict member(std::string_view c, bool blank, const Place& place);
  Verdict close_containers(char bracket, const Place& place);

  State state_ = State::kQuotes;
  char quote_ = '"';
  char key_quote_ = '"';
  std::size_t key_quotes_ = 0;  // before the key, later those that may still follow it, and one
  std::string held_;
  std::size_t quotes_ = 0;       // held_ begins with so many
  std::size_t text_quotes_ = 0;  // of which so many are text
  std::size_t key_begin_ = 0;    // in held_
  std::size_t depth_ = 0;        // of the containers that the held text leaves open
};

}  // namespace gem
