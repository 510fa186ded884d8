// A JSON value that keeps what the prompt format needs and ordinary JSON trees lose: integers of any length,
// the spelling of numbers, and the order of keys.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gem {

struct JsonMember;

struct JsonValue {
  enum class Kind { kNull, kBoolean, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text;              // kString: the UTF-8 text; kNumber: the number as spelled
  std::vector<JsonValue> items;  // kArray
  std::vector<JsonMember>
      members;  // kObject, in order of first appearance; a repeated key keeps its last value

  bool is_null() const { return kind == Kind::kNull; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_object() const { return kind == Kind::kObject; }

  // The member of that name, or null where this is no object or has none.
  const JsonValue* find(std::string_view key) const;

  static JsonValue string(std::string_view text);
  static JsonValue object();
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// Containers nested deeper than this are refused everywhere in the text layer.
inline constexpr std::size_t kMaxJsonDepth = 256;

// Strict RFC 8259 over valid UTF-8; a lone surrogate escape becomes U+FFFD. Throws Error(kUsage) naming the
// byte.
JsonValue parse_json(std::string_view text);

// The same value from an nlohmann tree (whose integers beyond 64 bits are already rounded to doubles). Throws
// Error(kUsage) when nested deeper than kMaxJsonDepth.
JsonValue to_json_value(const nlohmann::ordered_json& json);

// Compact JSON; numbers as spelled, strings by append_json_escaped.
std::string to_json_text(const JsonValue& value);

// Appends the inside of a JSON string: only quote, backslash and control characters are escaped.
void append_json_escaped(std::string& out, std::string_view text);

// What JSON (RFC 8259) admits as a number, e.g. "-0.5e+10", not "01", "1." or "+1".
bool is_json_number(std::string_view text);

// Appends a code point (a Unicode scalar value) as UTF-8.
void append_utf8(std::string& out, char32_t code);

}  // namespace gem
