#include "text/json_value.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace gem {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The length of the JSON number `text` begins with; 0 if it begins with none.
std::size_t number_length(std::string_view text) {
  std::size_t at = 0;
  const auto digits = [&] {
    const std::size_t first = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at > first;
  };
  if (at < text.size() && text[at] == '-') ++at;
  if (at < text.size() && text[at] == '0') {
    ++at;
  } else if (!digits()) {
    return 0;
  }
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!digits()) return 0;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (!digits()) return 0;
  }
  return at;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  JsonValue document() {
    JsonValue result = value(0);
    blanks();
    if (at_ != text_.size()) refuse("nothing more");
    return result;
  }

 private:
  [[noreturn]] void refuse(std::string_view expected) const {
    if (at_ >= text_.size()) fail(ErrorCode::kUsage, "not JSON: ends at byte {}, expected {}", at_, expected);
    fail(ErrorCode::kUsage, "not JSON at byte {}: expected {}", at_, expected);
  }

  void blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  bool accept(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool accept(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  JsonValue value(std::size_t depth) {
    blanks();
    JsonValue result;
    if (accept('"')) {
      result.kind = JsonValue::Kind::kString;
      result.text = string();
    } else if (accept('{')) {
      if (depth >= kMaxJsonDepth) refuse(fmt::format("at most {} nested containers", kMaxJsonDepth));
      result.kind = JsonValue::Kind::kObject;
      members(result, depth + 1);
    } else if (accept('[')) {
      if (depth >= kMaxJsonDepth) refuse(fmt::format("at most {} nested containers", kMaxJsonDepth));
      result.kind = JsonValue::Kind::kArray;
      items(result, depth + 1);
    } else if (accept("true")) {
      result.kind = JsonValue::Kind::kBoolean;
      result.boolean = true;
    } else if (accept("false")) {
      result.kind = JsonValue::Kind::kBoolean;
    } else if (!accept("null")) {
      const std::size_t length = number_length(text_.substr(at_));
      if (length == 0) refuse("a value");
      result.kind = JsonValue::Kind::kNumber;
      result.text = text_.substr(at_, length);
      at_ += length;
    }
    return result;
  }

  void items(JsonValue& array, std::size_t depth) {
    blanks();
    if (accept(']')) return;
    do {
      array.items.push_back(value(depth));
      blanks();
    } while (accept(','));
    if (!accept(']')) refuse("',' or ']'");
  }

  void members(JsonValue& object, std::size_t depth) {
    blanks();
    if (accept('}')) return;
    std::unordered_map<std::string, std::size_t> place;
    do {
      blanks();
      if (!accept('"')) refuse("a key in quotes");
      std::string key = string();
      blanks();
      if (!accept(':')) refuse("':'");
      JsonValue member = value(depth);
      const auto [found, fresh] = place.try_emplace(key, object.members.size());
      if (fresh) {
        object.members.push_back({std::move(key), std::move(member)});
      } else {
        object.members[found->second].value = std::move(member);
      }
      blanks();
    } while (accept(','));
    if (!accept('}')) refuse("',' or '}'");
  }

  // The text up to the closing quote; the opening one has been read.
  std::string string() {
    std::string out;
    for (;;) {
      if (at_ >= text_.size()) refuse("a closing quote");
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return out;
      }
      if (c == '\\') {
        ++at_;
        escape(out);
        continue;
      }
      if (static_cast<unsigned char>(c) < 0x20) refuse("no bare control character in a string");
      const Utf8Char next = utf8_next(text_, at_);
      if (next.state != Utf8State::kComplete) refuse("valid UTF-8");
      out.append(text_, at_, next.bytes);
      at_ += next.bytes;
    }
  }

  void escape(std::string& out) {
    if (at_ >= text_.size()) refuse("an escape");
    const char c = text_[at_++];
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out += c;
        return;
      case 'b':
        out += '\b';
        return;
      case 'f':
        out += '\f';
        return;
      case 'n':
        out += '\n';
        return;
      case 'r':
        out += '\r';
        return;
      case 't':
        out += '\t';
        return;
      case 'u':
        break;
      default:
        --at_;
        refuse("an escape");
    }
    char32_t code = hex4();
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      const std::size_t before = at_;
      at_ += 2;
      const char32_t low = hex4();
      if (low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = before;  // not a pair: the second escape stands for itself
      }
    }
    if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;
    append_utf8(out, code);
  }

  char32_t hex4() {
    char32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      char32_t digit = 0;
      if (is_digit(c)) {
        digit = static_cast<char32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<char32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<char32_t>(c - 'A' + 10);
      } else {
        refuse("four hexadecimal digits");
      }
      code = (code << 4) | digit;
      ++at_;
    }
    return code;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

JsonValue convert(const nlohmann::ordered_json& json, std::size_t depth) {
  using Type = nlohmann::ordered_json::value_t;
  if (json.is_structured() && depth >= kMaxJsonDepth) {
    fail(ErrorCode::kUsage, "JSON nested deeper than {} containers", kMaxJsonDepth);
  }
  JsonValue value;
  switch (json.type()) {
    case Type::boolean:
      value.kind = JsonValue::Kind::kBoolean;
      value.boolean = json.get<bool>();
      break;
    case Type::number_integer:
      value.kind = JsonValue::Kind::kNumber;
      value.text = std::to_string(json.get<std::int64_t>());
      break;
    case Type::number_unsigned:
      value.kind = JsonValue::Kind::kNumber;
      value.text = std::to_string(json.get<std::uint64_t>());
      break;
    case Type::number_float:
      value.kind = JsonValue::Kind::kNumber;
      value.text = python_float_repr(json.get<double>());
      break;
    case Type::string:
      return JsonValue::string(json.get_ref<const std::string&>());
    case Type::array:
      value.kind = JsonValue::Kind::kArray;
      value.items.reserve(json.size());
      for (const auto& item : json) value.items.push_back(convert(item, depth + 1));
      break;
    case Type::object:
      value.kind = JsonValue::Kind::kObject;
      value.members.reserve(json.size());
      for (const auto& [key, member] : json.items())
        value.members.push_back({key, convert(member, depth + 1)});
      break;
    case Type::null:
    case Type::binary:
    case Type::discarded:
      break;
  }
  return value;
}

void append_json(std::string& out, const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      out += "null";
      return;
    case JsonValue::Kind::kBoolean:
      out += value.boolean ? "true" : "false";
      return;
    case JsonValue::Kind::kNumber:
      out += value.text;
      return;
    case JsonValue::Kind::kString:
      out += '"';
      append_json_escaped(out, value.text);
      out += '"';
      return;
    case JsonValue::Kind::kArray: {
      char before = '[';
      for (const JsonValue& item : value.items) {
        out += std::exchange(before, ',');
        append_json(out, item);
      }
      out += value.items.empty() ? "[]" : "]";
      return;
    }
    case JsonValue::Kind::kObject: {
      char before = '{';
      for (const JsonMember& member : value.members) {
        out += std::exchange(before, ',');
        out += '"';
        append_json_escaped(out, member.key);
        out += "\":";
        append_json(out, member.value);
      }
      out += value.members.empty() ? "{}" : "}";
      return;
    }
  }
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

JsonValue JsonValue::string(std::string_view text) {
  JsonValue value;
  value.kind = Kind::kString;
  value.text = text;
  return value;
}

JsonValue JsonValue::object() {
  JsonValue value;
  value.kind = Kind::kObject;
  return value;
}

JsonValue parse_json(std::string_view text) {
  return Parser(text).document();
}

JsonValue to_json_value(const nlohmann::ordered_json& json) {
  return convert(json, 0);
}

std::string to_json_text(const JsonValue& value) {
  std::string out;
  append_json(out, value);
  return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
  std::size_t plain = 0;  // start of the run not yet copied
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, plain, i - plain);
    plain = i + 1;
    out += '\\';
    switch (byte) {
      case '"':
      case '\\':
        out += text[i];
        break;
      case '\b':
        out += 'b';
        break;
      case '\f':
        out += 'f';
        break;
      case '\n':
        out += 'n';
        break;
      case '\r':
        out += 'r';
        break;
      case '\t':
        out += 't';
        break;
      default:
        out += fmt::format("u{:04x}", static_cast<unsigned>(byte));
    }
  }
  out.append(text, plain);
}

bool is_json_number(std::string_view text) {
  return !text.empty() && number_length(text) == text.size();
}

void append_utf8(std::string& out, char32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80u | ((code >> shift) & 0x3Fu)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0u | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0u | (code >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0u | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace gem
