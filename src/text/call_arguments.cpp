#include "text/call_arguments.h"

#include <algorithm>

#include "text/json_value.h"
#include "text/python_text.h"
#include "text/scalar_spelling.h"
#include "text/utf8.h"

namespace gem {
namespace {

constexpr std::string_view kQuoteSpelling = "<|\"|>";

// Longer texts are no numbers, booleans or nulls that anybody meant.
constexpr std::size_t kLongestScalar = 512;
constexpr std::size_t kMostDiagnostics = 16;

constexpr std::uint8_t kScalars =
    ArgumentType::kNumber | ArgumentType::kInteger | ArgumentType::kBoolean | ArgumentType::kNull;

std::uint8_t set_of_bracket(char bracket) {
  return bracket == '{' ? ArgumentType::kObject : ArgumentType::kArray;
}

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

void CallArguments::text(std::string_view utf8) {
  read(utf8);
}

// Returns how many bytes were read: all, or those up to the closing bracket.
std::size_t CallArguments::read(std::string_view utf8) {
  std::size_t at = 0;
  while (at < utf8.size() && state_ != State::kDone) {
    const std::string_view rest = utf8.substr(at);
    if (state_ == State::kString || state_ == State::kQuotedKey) {
      at += string_text(rest);
      continue;
    }
    const Utf8Char c = utf8_next(rest, 0);
    character(rest.substr(0, c.bytes), is_python_space(c.code));
    at += c.bytes;
  }
  return at;
}

void CallArguments::quote() {
  if (closing_.active()) apply(closing_.quote_token());
  if (triple_ == Triple::kTwoQuotes) end_string();  // an empty one
  switch (state_) {
    case State::kString:
    case State::kQuotedKey:
      if (quote_ == Quote::kToken) return end_string();
      if (triple_ == Triple::kOneQuote) triple_ = Triple::kNo;
      end_escape();
      return append_string(kQuoteSpelling);
    case State::kKey:
      if (python_strip(key_).empty()) {
        key_.clear();
        quote_ = Quote::kToken;
        state_ = State::kQuotedKey;
      } else if (key_assigns()) {
        begin_string(Quote::kToken);
      } else {
        key_ += kQuoteSpelling;
      }
      return;
    case State::kValue:
      return begin_string(Quote::kToken);
    case State::kBare:
      bare_ += kQuoteSpelling;
      return;
    case State::kAfterValue:
      // A doubled closing quote; in an array rather the next string after a missing comma.
      clean_ = false;
      if (in_array()) begin_string(Quote::kToken);
      return;
    case State::kSkipped:
      return skipped_quote(Quote::kToken);
    case State::kCaptured:
      captured_marks_ = true;
      inner_->quote();
      bare_ += kQuoteSpelling;
      return;
    case State::kAfterKey:
    case State::kDone:
      return;
  }
}

void CallArguments::foreign(std::string_view spelling) {
  if (state_ == State::kCaptured) {
    captured_marks_ = true;
    inner_->foreign(spelling);
    bare_ += spelling;
  }
  if (closing_.active()) apply(closing_.call_complete() ? closing_.end() : closing_.marker());
  if (triple_ == Triple::kTwoQuotes) end_string();
  if (triple_ == Triple::kOneQuote) triple_ = Triple::kNo;
  if (state_ != State::kString && state_ != State::kQuotedKey) return;
  end_escape();
  append_string(spelling);
}

void CallArguments::end() {
  if (closing_.active()) apply(closing_.end());
  switch (state_) {
    case State::kKey:
      drop_key();
      break;
    case State::kBare:
      end_bare();
      break;
    case State::kString:
      end_string();
      break;
    case State::kCaptured:
      end_capture();
      end_bare();
      break;
    case State::kQuotedKey:
    case State::kAfterKey:
    case State::kValue:
    case State::kAfterValue:
    case State::kSkipped:
    case State::kDone:
      break;
  }
  if (!stack_.empty()) clean_ = false;
  for (; !stack_.empty(); stack_.pop_back()) out_ += stack_.back() == '{' ? '}' : ']';
  state_ = State::kDone;
}

void CallArguments::character(std::string_view c, bool blank) {
  switch (state_) {
    case State::kKey:
      return key_character(c, blank);
    case State::kAfterKey:
      if (c == ":" || c == "=") {
        state_ = State::kValue;
      } else if (c == "," || c == "}" || c == "]") {
        key_.clear();  // no value
        diagnose("a key without a value was dropped");
        state_ = State::kAfterValue;
        after_value(c, blank);
      } else if (key_.empty() && (c == "\"" || c == "'")) {  // a key in triple quotes
        quote_ = Quote{c.front()};
        state_ = State::kQuotedKey;
      } else if (!blank) {
        clean_ = false;
      }
      return;
    case State::kValue:
      return value_character(c, blank);
    case State::kBare:
      if (c != "," && c != "}" && c != "]") {
        bare_ += c;
        return;
      }
      end_bare();
      return after_value(c, blank);
    case State::kAfterValue:
      return after_value(c, blank);
    case State::kSkipped:
      return skipped_character(c.front());
    case State::kCaptured:
      return captured(c);
    case State::kString:
    case State::kQuotedKey:
    case State::kDone:
      return;
  }
}

void CallArguments::key_character(std::string_view c, bool blank) {
  const bool assigns = c == "=" && types_.back() != nullptr && types_.back()->declares(python_strip(key_));
  if (c == ":" || assigns) {  // '=' after a name that is declared is meant as ':'
    key_ = python_strip(key_);
    state_ = State::kValue;
  } else if (c == "," || c == "}" || c == "]") {
    drop_key();
    state_ = State::kAfterValue;
    after_value(c, blank);
  } else if (key_.empty() && blank) {
    return;
  } else if (key_.empty() && (c == "\"" || c == "'")) {
    quote_ = Quote{c.front()};
    state_ = State::kQuotedKey;
  } else if ((c == "\"" || c == "'" || c == "{" || c == "[") && key_assigns()) {
    value_character(c, blank);
  } else {
    key_ += c;
  }
}

// `key=` before a quote or bracket: '=' for ':'.
bool CallArguments::key_assigns() {
  const std::string_view assigned = python_rstrip(key_);
  if (!assigned.ends_with('=')) return false;
  key_ = std::string(python_strip(assigned.substr(0, assigned.size() - 1)));
  state_ = State::kValue;
  return true;
}

// A bare key without ':'. `key=value` is taken as meant; anything else is dropped.
void CallArguments::drop_key() {
  const std::size_t sign = key_.find('=');
  if (sign != std::string::npos) {
    const std::string value(python_strip(std::string_view(key_).substr(sign + 1)));
    key_ = std::string(python_strip(std::string_view(key_).substr(0, sign)));
    if (!key_.empty() && !value.empty()) {
      bare_ = value;
      end_bare();
    }
  } else if (!key_.empty()) {
    diagnose("a key without a value was dropped");
  }
  key_.clear();
}

void CallArguments::value_character(std::string_view c, bool blank) {
  if (blank) return;
  if (c == "\"" || c == "'") return begin_string(Quote{c.front()});
  if (c == "{" || c == "[") return begin_container(c.front());
  if (c == "," || c == "}" || c == "]") {
    if (!in_array()) {  // a key with ':' and nothing after it
      begin_value();
      out_ += "null";
      clean_ = false;
    }
    state_ = State::kAfterValue;
    return after_value(c, blank);
  }
  bare_ = c;
  state_ = State::kBare;
}

void CallArguments::after_value(std::string_view c, bool blank) {
  state_ = State::kAfterValue;
  if (blank) return;
  if (c == ",") return next_member();
  if (c == "}" || c == "]") return end_containers(c.front());
  clean_ = false;
  next_member();  // a missing comma: nothing that follows is lost
  character(c, blank);
}

void CallArguments::next_member() {
  state_ = in_array() ? State::kValue : State::kKey;
}

void CallArguments::skipped_character(char c) {
  if (c == '"' || c == '\'') return skipped_quote(Quote{c});
  if (quote_ != Quote::kNone) return;
  if (c == '{' || c == '[') ++skipped_;
  if ((c == '}' || c == ']') && --skipped_ == 0) state_ = State::kAfterValue;
}

void CallArguments::skipped_quote(Quote quote) {
  if (quote_ == Quote::kNone) {
    quote_ = quote;
  } else if (quote_ == quote) {
    quote_ = Quote::kNone;
  }
}

// Reads a part of a string or of a key in quotes; returns its length in bytes.
std::size_t CallArguments::string_text(std::string_view text) {
  if (!escape_.empty()) {
    const char c = text.front();
    if (escape_.size() >= 2 && !is_hex(c)) {  // \u with too few digits
      end_escape();
      return 0;
    }
    if (static_cast<unsigned char>(c) >= 0x80) {  // no escape begins so
      end_escape();
      return 0;
    }
    escape_character(c);
    return 1;
  }
  if (quote_ == Quote::kToken) {
    append_string(text);
    return text.size();
  }
  const char closing = static_cast<char>(quote_);
  if (triple_ == Triple::kYes) return triple_text(text);
  if (triple_ != Triple::kNo) {
    if (text.front() == closing) {
      triple_ = triple_ == Triple::kOneQuote ? Triple::kTwoQuotes : Triple::kYes;
      return 1;
    }
    if (triple_ == Triple::kTwoQuotes) {
      end_string();  // an empty one
      return 0;
    }
    triple_ = Triple::kNo;
  }
  const std::size_t stop = std::min(text.find_first_of(closing == '"' ? "\"\\" : "'\\"), text.size());
  if (stop > 0) append_string(text.substr(0, stop));
  if (stop == text.size()) return stop;
  if (text[stop] == '\\') {
    escape_.assign(1, '\\');
  } else {
    end_string();
  }
  return stop + 1;
}

// Likewise, of a string between triple quotes.
std::size_t CallArguments::triple_text(std::string_view text) {
  const char closing = static_cast<char>(quote_);
  if (closing_.active()) {
    const Utf8Char c = utf8_next(text, 0);
    apply(closing_.character(text.substr(0, c.bytes), is_python_space(c.code), place()));
    return c.bytes;
  }
  const std::size_t stop = std::min(text.find(closing), text.size());
  if (stop > 0) append_string(text.substr(0, stop));
  if (stop == text.size()) return stop;
  closing_.begin(closing, place());
  return stop + 1;
}

void CallArguments::apply(ClosingQuotes::Verdict verdict) {
  if (verdict == ClosingQuotes::Verdict::kOpen) return;
  append_string(std::string(closing_.text_quotes(), static_cast<char>(quote_)));
  const std::string rest(closing_.rest());
  closing_.clear();
  if (verdict == ClosingQuotes::Verdict::kCloses) end_string();
  read(rest);
}

void CallArguments::escape_character(char c) {
  escape_ += c;
  if (escape_.size() == 2 && c == 'u') return;
  if (escape_.size() == 2) {
    constexpr std::string_view kLetters = "nrtbf\"'\\/";
    constexpr std::string_view kMeanings = "\n\r\t\b\f\"'\\/";
    const std::size_t which = kLetters.find(c);
    const std::string meaning = which != std::string_view::npos ? std::string(1, kMeanings[which]) : escape_;
    escape_.clear();
    return append_string(meaning);
  }
  if (escape_.size() < 6) return;
  const auto code = static_cast<char32_t>(std::stoul(escape_.substr(2), nullptr, 16));
  escape_.clear();
  append_code(code);
}

// A UTF-16 unit of a \u escape: pairs are joined, a lone half becomes U+FFFD.
void CallArguments::append_code(char32_t code) {
  std::string utf8;
  if (code >= 0xDC00 && code < 0xE000 && high_surrogate_ != 0) {
    append_utf8(utf8, 0x10000 + ((high_surrogate_ - 0xD800) << 10) + (code - 0xDC00));
    high_surrogate_ = 0;
  } else if (code >= 0xD800 && code < 0xDC00) {
    append_string({});  // ends an earlier half
    high_surrogate_ = code;
    return;
  } else {
    append_utf8(utf8, code >= 0xD800 && code < 0xE000 ? U'\uFFFD' : code);
  }
  append_string(utf8);
}

// An escape cut off by something else stands for itself.
void CallArguments::end_escape() {
  if (!escape_.empty()) append_string(std::exchange(escape_, {}));
}

void CallArguments::append_string(std::string_view text) {
  const auto append = [this](std::string_view part) {
    if (state_ == State::kQuotedKey) {
      key_ += part;
    } else if (holding_) {
      append_held(part);
    } else {
      append_json_escaped(out_, part);
    }
  };
  if (high_surrogate_ != 0) {
    high_surrogate_ = 0;
    append(kReplacementCharacter);
  }
  append(text);
}

// Writes what stands before a value: the comma, and in an object the key.
void CallArguments::begin_value() {
  const ArgumentType* outer = types_.back();
  value_type_ = outer == nullptr ? nullptr : in_array() ? outer->item() : outer->property(key_);
  if (!std::exchange(first_, false)) out_ += ',';
  if (in_array()) return;
  value_key_ = key_;
  out_ += '"';
  append_json_escaped(out_, key_);
  out_ += "\":";
  key_.clear();
}

void CallArguments::begin_string(Quote quote) {
  begin_value();
  holding_ = !value_takes(ArgumentType::kString);
  if (!holding_) out_ += '"';
  quote_ = quote;
  triple_ = quote == Quote::kToken ? Triple::kNo : Triple::kOneQuote;
  state_ = State::kString;
}

void CallArguments::end_string() {
  end_escape();
  append_string({});
  quote_ = Quote::kNone;
  triple_ = Triple::kNo;
  if (state_ == State::kQuotedKey) {
    key_ = std::string(python_strip(key_));
    state_ = State::kAfterKey;
  } else {
    if (std::exchange(holding_, false)) {
      out_ += typed_json(held_, true);
      held_.clear();
    } else {
      out_ += '"';
    }
    state_ = State::kAfterValue;
  }
}

// A string that its schema may make something else waits, as long as it may.
void CallArguments::append_held(std::string_view text) {
  held_ += text;
  if (may_be_retyped(held_)) return;
  holding_ = false;
  diagnose("does not fit its declared type");
  out_ += '"';
  append_json_escaped(out_, held_);
  held_.clear();
}

// Never true again for a text that has grown once it is false: what a string becomes does not depend on how
// it was cut.
bool CallArguments::may_be_retyped(std::string_view text) const {
  const std::string_view begun = python_lstrip(text);
  const bool container = !in_text_ && !begun.empty() && (begun.front() == '{' || begun.front() == '[') &&
                         value_takes(set_of_bracket(begun.front()));
  return container || (value_takes(kScalars) && text.size() <= kLongestScalar) || begun.empty();
}

// The JSON of a bare value, or of a string where text is not declared.
std::string CallArguments::typed_json(std::string_view text, bool quoted) {
  const std::string_view value = python_strip(text);
  const std::string_view word = json_literal(value);
  const bool text_declared = value_type_ != nullptr && value_takes(ArgumentType::kString);
  const auto as_text = [&] {
    std::string json(1, '"');
    append_json_escaped(json, quoted ? text : value);
    return json + '"';
  };
  if (may_be_retyped(text) || !quoted) {
    // A bare null means null whatever is declared; a quoted one only where null is.
    if (word == "null" && (!quoted || value_takes(ArgumentType::kNull))) return "null";
    const std::string_view number = json_number_in(value, !value_takes(ArgumentType::kNumber));
    const bool lenient = !value_takes(ArgumentType::kString);  // other spellings than JSON's and Python's
    if (value_takes(ArgumentType::kBoolean)) {
      const std::string_view known = lenient ? json_boolean_in(value) : word;
      if (!known.empty() && known != "null") return std::string(known);
    }
    if (value_takes(ArgumentType::kNumber | ArgumentType::kInteger) && !number.empty() &&
        (lenient || number.size() == value.size())) {
      return std::string(number);
    }
    if (quoted) {
      if (std::string json = container_json(value); !json.empty()) return json;
    }
  }
  if (text_declared) return as_text();
  if (value_type_ != nullptr) {
    diagnose("does not fit its declared type");
    if (!quoted && !word.empty()) return std::string(word);
    if (!quoted && is_json_number(value)) return std::string(value);
  }
  return as_text();
}

// The JSON of a declared container that stands in a string, in any of the spellings; empty if it is none.
std::string CallArguments::container_json(std::string_view text) {
  if (text.empty() || in_text_ || (text.front() != '{' && text.front() != '[')) return {};
  if (!value_takes(set_of_bracket(text.front()))) return {};
  CallArguments inner(value_type_, text.front(), true);
  inner.in_text_ = true;
  const std::string_view body = text.substr(1);
  if (inner.read(body) != body.size() || !inner.done() || !inner.clean_) return {};
  for (std::string& line : inner.diagnostics_) {
    if (diagnostics_.size() < kMostDiagnostics) diagnostics_.push_back(std::move(line));
  }
  return inner.take();
}

void CallArguments::diagnose(const char* problem) {
  clean_ = false;
  if (diagnostics_.size() >= kMostDiagnostics) return;
  std::string line("argument \"");
  append_json_escaped(line, value_key_);
  diagnostics_.push_back(line + "\": " + problem);
}

void CallArguments::begin_container(char bracket) {
  begin_value();
  if (!value_takes(set_of_bracket(bracket))) {
    if (value_takes(ArgumentType::kString)) return begin_capture(bracket);
    diagnose("does not fit its declared type");
  }
  if (stack_.size() >= kMaxJsonDepth) {
    diagnose("is nested too deeply and became null");
    out_ += "null";
    skipped_ = 1;
    state_ = State::kSkipped;
    return;
  }
  out_ += bracket;
  stack_ += bracket;
  types_.push_back(value_type_);
  first_ = true;
  next_member();
}

// A container where text is declared is that text, as spelled. Only its end has to be found; as with bare
// text, what follows up to the next comma or bracket belongs to it ("[a-z]+" is a text too).
void CallArguments::begin_capture(char bracket) {
  inner_.reset(new CallArguments(nullptr, bracket, true));
  captured_marks_ = false;
  bare_ = bracket;
  state_ = State::kCaptured;
}

void CallArguments::captured(std::string_view text) {
  const bool closes_outer = (text == "}" || text == "]") && inner_->ignores(text.front());
  if (closes_outer) {
    end_capture();
    return character(text, false);
  }
  inner_->text(text);
  bare_ += text;
  if (inner_->done()) end_capture();
}

// Whether a closing bracket here would close nothing.
bool CallArguments::ignores(char bracket) const {
  return state_ != State::kString && state_ != State::kQuotedKey && state_ != State::kSkipped &&
         stack_.find(bracket == '}' ? '{' : '[') == std::string::npos;
}

void CallArguments::end_capture() {
  inner_->end();
  if (captured_marks_) bare_ = inner_->take();  // the format's own quotes are no text
  inner_.reset();
  state_ = State::kBare;
  value_begun_ = true;
}

// A closing bracket closes whatever is open inside its container; ']' without an open array is ignored.
void CallArguments::end_containers(char bracket) {
  const char opening = bracket == '}' ? '{' : '[';
  if (stack_.find(opening) == std::string::npos) {
    clean_ = false;
    return;
  }
  for (bool found = false; !found; stack_.pop_back(), types_.pop_back()) {
    found = stack_.back() == opening;
    if (!found) clean_ = false;
    out_ += stack_.back() == '{' ? '}' : ']';
  }
  first_ = false;
  state_ = stack_.empty() ? State::kDone : State::kAfterValue;
}

void CallArguments::end_bare() {
  if (!std::exchange(value_begun_, false)) begin_value();
  out_ += typed_json(bare_, false);
  bare_.clear();
  state_ = State::kAfterValue;
}

}  // namespace gem
