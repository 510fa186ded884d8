#include "server/api/json_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "server/api/api.h"
#include "text/utf8.h"

namespace gem::server {
namespace {

ApiError bad_body(std::string message) {
  return ApiError::bad_field({}, std::move(message));
}

// Items and members, told by their separators; exact for what is JSON, good enough for what is not.
std::size_t count_values(std::string_view text) {
  std::size_t count = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == ',' || c == '[' || c == '{') {
      ++count;
    }
  }
  return count;
}

std::optional<std::size_t> first_bad_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_next(text, at);
    if (c.state != Utf8State::kComplete) return at;
    at += c.bytes;
  }
  return std::nullopt;
}

// Long values are cut for messages, at a character.
std::string excerpt(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  std::size_t end = 0;
  while (end < most) {
    const std::size_t next = end + utf8_next(text, end).bytes;
    if (next > most) break;
    end = next;
  }
  return std::string(text.substr(0, end)) + "…";
}

// The integer that a JSON number without fraction and exponent spells.
template <typename Int>
std::optional<Int> exact(std::string_view digits) {
  Int value{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

bool is_plain_integer(const JsonValue& value) {
  return value.kind == JsonValue::Kind::kNumber && value.text.find_first_of(".eE") == std::string::npos;
}

}  // namespace

JsonValue parse_object(std::string_view text) {
  if (text.empty()) throw bad_body("the request has no body, expected a JSON object");
  if (const auto at = first_bad_utf8(text))
    throw bad_body(fmt::format("the body is not valid UTF-8 at byte {}", *at));
  if (const std::size_t values = count_values(text); values > kMaxJsonValues) {
    throw bad_body(fmt::format("the body holds {} JSON values, at most {} are read", values, kMaxJsonValues));
  }
  JsonValue value;
  try {
    value = parse_json(text);
  } catch (const Error& error) {
    throw bad_body(fmt::format("the body is {}", error.what()));
  }
  if (!value.is_object())
    throw bad_body(fmt::format("the body is {}, expected a JSON object", describe(value)));
  return value;
}

JsonValue parse_body(const HttpRequest& request) {
  return parse_object(request.body);
}

std::string describe(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBoolean:
      return value.boolean ? "true" : "false";
    case JsonValue::Kind::kNumber:
      return excerpt(value.text, 40);
    case JsonValue::Kind::kString:
      return to_json_text(JsonValue::string(excerpt(value.text, 60)));
    case JsonValue::Kind::kArray:
      return value.items.empty() ? "an empty array" : "an array";
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "a value";
}

void refuse_field(std::string_view name, std::string_view message) {
  throw ApiError::bad_field(std::string(name), fmt::format("Field '{}': {}", name, message));
}

void detail::rethrow_naming_field(std::string_view field, const Error& error) {
  if (error.code() != ErrorCode::kUsage && error.code() != ErrorCode::kTooLarge) throw ApiError::from(error);
  const std::string_view text = error.what();
  const std::size_t colon = text.find(": ");
  const std::string_view place = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  // "messages[2].content" is a place, `tool "f", parameters` is not; it stays in the message.
  const bool named =
      place.starts_with(field) &&
      (place.size() == field.size() || place[field.size()] == '[' || place[field.size()] == '.') &&
      place.find(' ') == std::string_view::npos;
  if (named) refuse_field(place, text.substr(colon + 2));
  refuse_field(field, text);
}

std::optional<std::int64_t> as_integer(const JsonValue& value) {
  if (is_plain_integer(value)) return exact<std::int64_t>(value.text);
  const std::optional<double> number = as_number(value);
  // Up to 2^53 a double is the number that was written.
  if (!number || std::abs(*number) > 0x1p53 || *number != std::trunc(*number)) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::optional<double> as_number(const JsonValue& value) {
  if (value.kind != JsonValue::Kind::kNumber) return std::nullopt;
  double number = 0;
  const std::string& s = value.text;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), number);
  if (error == std::errc::result_out_of_range) {
    // Too small for a double is 0; too large is refused. from_chars leaves the value alone in both cases:
    // the exponent's sign tells.
    const std::size_t e = s.find_first_of("eE");
    const bool tiny = e != std::string::npos ? s[e + 1] == '-' : s.find('.') < 3;
    if (tiny) return 0.0;
    return std::nullopt;
  }
  if (error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return number;
}

const JsonValue* FieldReader::find(std::string_view key) const {
  const JsonValue* value = object_.find(key);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

std::string FieldReader::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void FieldReader::refuse(std::string_view key, std::string_view message) const {
  refuse_field(path(key), message);
}

void FieldReader::expected(std::string_view key, std::string_view what, const JsonValue& found) const {
  refuse(key, fmt::format("expected {}, found {}", what, describe(found)));
}

std::optional<bool> FieldReader::boolean(std::string_view key) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != JsonValue::Kind::kBoolean) expected(key, "true or false", *value);
  return value->boolean;
}

std::optional<std::int64_t> FieldReader::integer(std::string_view key, std::int64_t low,
                                                 std::int64_t high) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> found = as_integer(*value);
  if (found && *found >= low && *found <= high) return found;
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (low == kMin && high == kMax) expected(key, "a 64-bit integer", *value);
  if (high == kMax) expected(key, fmt::format("an integer of at least {}", low), *value);
  if (low == kMin) expected(key, fmt::format("an integer of at most {}", high), *value);
  expected(key, fmt::format("an integer from {} to {}", low, high), *value);
}

std::optional<std::uint64_t> FieldReader::bits64(std::string_view key) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (is_plain_integer(*value)) {
    if (const auto large = exact<std::uint64_t>(value->text)) return large;
  }
  if (const auto signed_value = as_integer(*value)) return static_cast<std::uint64_t>(*signed_value);
  expected(key, "a 64-bit integer", *value);
}

std::optional<double> FieldReader::number(std::string_view key, double low, double high) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> found = as_number(*value);
  if (found && *found >= low && *found <= high) return found;
  if (std::isinf(high) && std::isinf(low)) expected(key, "a number", *value);
  if (std::isinf(high)) expected(key, fmt::format("a number of at least {}", low), *value);
  if (std::isinf(low)) expected(key, fmt::format("a number of at most {}", high), *value);
  expected(key, fmt::format("a number from {} to {}", low, high), *value);
}

std::optional<std::string> FieldReader::text(std::string_view key) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) expected(key, "a string", *value);
  return value->text;
}

const JsonValue* FieldReader::array(std::string_view key) const {
  const JsonValue* value = find(key);
  if (value != nullptr && !value->is_array()) expected(key, "an array", *value);
  return value;
}

const JsonValue* FieldReader::object(std::string_view key) const {
  const JsonValue* value = find(key);
  if (value != nullptr && !value->is_object()) expected(key, "an object", *value);
  return value;
}

std::optional<FieldReader> FieldReader::nested(std::string_view key) const {
  const JsonValue* value = object(key);
  if (value == nullptr) return std::nullopt;
  return FieldReader(*value, path(key));
}

}  // namespace gem::server
