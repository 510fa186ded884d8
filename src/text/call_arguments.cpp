#include "text/call_arguments.h"

#include <algorithm>
#include <array>

#include "text/json_value.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace gem {
namespace {

constexpr std::string_view kQuoteSpelling = "<|\"|>";

// The JSON literal a bare word stands for; empty if it is none.
std::string_view literal(std::string_view word) {
  struct Literal {
    std::string_view word;
    std::string_view json;
  };
  static constexpr std::array kLiterals = std::to_array<Literal>({
      {"true", "true"},
      {"True", "true"},
      {"false", "false"},
      {"False", "false"},
      {"null", "null"},
      {"None", "null"},
      {"nil", "null"},
      {"NULL", "null"},
  });
  for (const Literal& known : kLiterals) {
    if (word == known.word) return known.json;
  }
  return {};
}

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

void CallArguments::text(std::string_view utf8) {
  while (!utf8.empty() && state_ != State::kDone) {
    if (state_ == State::kString || state_ == State::kQuotedKey) {
      utf8.remove_prefix(string_text(utf8));
      continue;
    }
    const Utf8Char c = utf8_next(utf8, 0);
    character(utf8.substr(0, c.bytes), is_python_space(c.code));
    utf8.remove_prefix(c.bytes);
  }
}

void CallArguments::quote() {
  switch (state_) {
    case State::kString:
    case State::kQuotedKey:
      if (quote_ == Quote::kToken) return end_string();
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
      if (in_array()) begin_string(Quote::kToken);
      return;
    case State::kSkipped:
      return skipped_quote(Quote::kToken);
    case State::kAfterKey:
    case State::kDone:
      return;
  }
}

void CallArguments::foreign(std::string_view spelling) {
  if (state_ != State::kString && state_ != State::kQuotedKey) return;
  end_escape();
  append_string(spelling);
}

void CallArguments::end() {
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
    case State::kQuotedKey:
    case State::kAfterKey:
    case State::kValue:
    case State::kAfterValue:
    case State::kSkipped:
    case State::kDone:
      break;
  }
  for (; !stack_.empty(); stack_.pop_back()) out_ += stack_.back() == '{' ? '}' : ']';
  state_ = State::kDone;
}

void CallArguments::character(std::string_view c, bool blank) {
  switch (state_) {
    case State::kKey:
      return key_character(c, blank);
    case State::kAfterKey:
      if (c == ":" || c == "=") state_ = State::kValue;
      if (c == "," || c == "}" || c == "]") {
        key_.clear();  // no value
        state_ = State::kAfterValue;
        after_value(c, blank);
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
    case State::kString:
    case State::kQuotedKey:
    case State::kDone:
      return;
  }
}

void CallArguments::key_character(std::string_view c, bool blank) {
  if (c == ":") {
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
  const std::size_t stop = std::min(text.find_first_of(closing == '"' ? "\"\\" : "'\\"), text.size());
  if (stop > 0) append_string(text.substr(0, stop));
  if (stop == text.size()) return stop;
  if (text[stop] == '\\') {
    escape_ = "\\";
  } else {
    end_string();
  }
  return stop + 1;
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
  if (!std::exchange(first_, false)) out_ += ',';
  if (in_array()) return;
  out_ += '"';
  append_json_escaped(out_, key_);
  out_ += "\":";
  key_.clear();
}

void CallArguments::begin_string(Quote quote) {
  begin_value();
  out_ += '"';
  quote_ = quote;
  state_ = State::kString;
}

void CallArguments::end_string() {
  end_escape();
  append_string({});
  quote_ = Quote::kNone;
  if (state_ == State::kQuotedKey) {
    key_ = std::string(python_strip(key_));
    state_ = State::kAfterKey;
  } else {
    out_ += '"';
    state_ = State::kAfterValue;
  }
}

void CallArguments::begin_container(char bracket) {
  begin_value();
  if (stack_.size() >= kMaxJsonDepth) {
    out_ += "null";
    skipped_ = 1;
    state_ = State::kSkipped;
    return;
  }
  out_ += bracket;
  stack_ += bracket;
  first_ = true;
  next_member();
}

// A closing bracket closes whatever is open inside its container; ']' without an open array is ignored.
void CallArguments::end_containers(char bracket) {
  const char opening = bracket == '}' ? '{' : '[';
  if (stack_.find(opening) == std::string::npos) return;
  for (bool found = false; !found; stack_.pop_back()) {
    found = stack_.back() == opening;
    out_ += stack_.back() == '{' ? '}' : ']';
  }
  first_ = false;
  state_ = stack_.empty() ? State::kDone : State::kAfterValue;
}

void CallArguments::end_bare() {
  const std::string_view value = python_strip(bare_);
  begin_value();
  if (const std::string_view json = literal(value); !json.empty()) {
    out_ += json;
  } else if (is_json_number(value)) {
    out_ += value;
  } else {
    out_ += '"';
    append_json_escaped(out_, value);
    out_ += '"';
  }
  bare_.clear();
  state_ = State::kAfterValue;
}

}  // namespace gem
