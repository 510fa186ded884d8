#include "text/closing_quotes.h"

#include "text/python_text.h"

namespace gem {
namespace {

// No argument has a longer name; bounds what is held.
constexpr std::size_t kLongestKey = 128;

bool in_bare_key(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == '$' || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

void ClosingQuotes::begin(char quote, const Place& place) {
  state_ = State::kQuotes;
  quote_ = quote;
  held_.assign(1, quote);
  quotes_ = 1;
  depth_ = place.stack.size();
}

ClosingQuotes::Verdict ClosingQuotes::verdict(bool closes) {
  text_quotes_ = closes ? quotes_ - 3 : quotes_;
  return closes ? Verdict::kCloses : Verdict::kNoClose;
}

ClosingQuotes::Verdict ClosingQuotes::character(std::string_view c, bool blank, const Place& place) {
  held_ += c;
  const bool assigns = c == ":" || c == "=";
  switch (state_) {
    case State::kQuotes:
      if (c.front() == quote_) {
        ++quotes_;
        return Verdict::kOpen;
      }
      if (quotes_ < 3) return verdict(false);
      state_ = State::kAfterValue;
      return after_value(c, blank, place);
    case State::kAfterValue:
      return after_value(c, blank, place);
    case State::kMember:
      return member(c, blank, place);
    case State::kBareKey:
      if (blank) {
        state_ = State::kAfterBareKey;
        return Verdict::kOpen;
      }
      if (assigns) return verdict(c == ":" || declared(place));
      return in_bare_key(c.front()) && held_.size() - key_begin_ <= kLongestKey ? Verdict::kOpen
                                                                                : verdict(false);
    case State::kAfterBareKey:
      if (blank) return Verdict::kOpen;
      return verdict(c == ":" || (c == "=" && declared(place)));
    case State::kQuotedKey:
      if (c.front() == key_quote_) {
        if (held_.size() > key_begin_ + key_quotes_ + 1) {
          state_ = State::kAfterQuotedKey;
        } else if (++key_quotes_ > 3) {
          return verdict(false);
        }
        return Verdict::kOpen;
      }
      if (c == "\n" || key_quotes_ == 2 || held_.size() - key_begin_ > kLongestKey) return verdict(false);
      return Verdict::kOpen;
    case State::kAfterQuotedKey:
      if (assigns) return verdict(true);
      if (c.front() == key_quote_ && key_quotes_ > 1) {
        --key_quotes_;
        return Verdict::kOpen;
      }
      return blank ? Verdict::kOpen : verdict(false);
    case State::kAllClosed:
      // A bracket too many is what models write; other text is rather the argument's.
      return blank || c == "}" || c == "]" ? Verdict::kOpen : verdict(false);
  }
  return verdict(false);
}

ClosingQuotes::Verdict ClosingQuotes::after_value(std::string_view c, bool blank, const Place& place) {
  if (blank) return Verdict::kOpen;
  if (c == ",") {
    if (place.stack[depth_ - 1] == '[') return verdict(true);
    state_ = State::kMember;
    return Verdict::kOpen;
  }
  return c == "}" || c == "]" ? close_containers(c.front(), place) : verdict(false);
}

ClosingQuotes::Verdict ClosingQuotes::member(std::string_view c, bool blank, const Place& place) {
  if (blank) return Verdict::kOpen;
  if (c == "}") return close_containers('}', place);  // a trailing comma
  key_begin_ = held_.size() - c.size();
  if (c == "\"" || c == "'") {
    key_quote_ = c.front();
    key_quotes_ = 1;
    state_ = State::kQuotedKey;
    return Verdict::kOpen;
  }
  state_ = State::kBareKey;
  return in_bare_key(c.front()) ? Verdict::kOpen : verdict(false);
}

// As CallArguments::end_containers.
ClosingQuotes::Verdict ClosingQuotes::close_containers(char bracket, const Place& place) {
  const std::size_t opening = place.stack.substr(0, depth_).rfind(bracket == '}' ? '{' : '[');
  if (opening == std::string_view::npos) return verdict(false);
  depth_ = opening;
  state_ = depth_ == 0 ? State::kAllClosed : State::kAfterValue;
  return depth_ == 0 && place.outermost_ends ? verdict(true) : Verdict::kOpen;
}

// Whether the bare key before '=' is a member that the object declares.
bool ClosingQuotes::declared(const Place& place) const {
  const ArgumentType* object = place.types[depth_ - 1];
  const std::string_view held = held_;
  return object != nullptr &&
         object->declares(python_strip(held.substr(key_begin_, held.size() - key_begin_ - 1)));
}

ClosingQuotes::Verdict ClosingQuotes::quote_token() {
  return verdict(state_ == State::kMember);
}

ClosingQuotes::Verdict ClosingQuotes::end() {
  return verdict(quotes_ >= 3);
}

}  // namespace gem
