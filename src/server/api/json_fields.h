// Reading a request's fields: strict types, ranges, and refusals that name the field and what was found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/api/api_error.h"
#include "text/json_value.h"

namespace gem::server {

// A body with more values than this (each array item and object member counts) is refused before it is built:
// a value takes about 100 bytes of memory and as few as two of the body. A vocabulary's logit_bias (262,144)
// and a full context of token ids fit four times.
inline constexpr std::size_t kMaxJsonValues = 1'000'000;

// The text as a JSON object. ApiError (400) with the byte where it is not JSON, for text that is not UTF-8,
// for more than kMaxJsonValues, and for what is no object.
JsonValue parse_object(std::string_view text);

// What a value is, for messages: "abc" (cut to a few words), 12, true, null, an array, an object.
std::string describe(const JsonValue& value);

// Refuses a field: 400 "Field 'NAME': MESSAGE", with NAME as the error's param.
[[noreturn]] void refuse_field(std::string_view name, std::string_view message);

namespace detail {
[[noreturn]] void rethrow_naming_field(std::string_view field, const Error& error);
}

// Calls `work`; an Error(kUsage) whose text begins with a place inside `field` ("messages[2].role: must be
// …") is thrown on as the refusal of that place, any other as the refusal of `field`.
template <typename Work>
auto naming_field(std::string_view field, Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    detail::rethrow_naming_field(field, error);
  }
}

// The members of an object. Null counts as absent everywhere; unknown members are nobody's business.
// Every reader throws ApiError for a value of another type or out of range.
class FieldReader {
 public:
  // `path`: where the object is in the body ("stream_options"), empty for the body itself. The object must
  // outlive the reader.
  explicit FieldReader(const JsonValue& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  const JsonValue* find(std::string_view key) const;  // nullptr: absent or null
  bool has(std::string_view key) const { return find(key) != nullptr; }

  std::optional<bool> boolean(std::string_view key) const;
  // Digits of any length are judged exactly; 5.0 and 1e3 count as integers.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  // Any 64-bit integer, signed or unsigned, as its bits; -1 is UINT64_MAX.
  std::optional<std::uint64_t> bits64(std::string_view key) const;
  std::optional<double> number(std::string_view key, double low, double high) const;
  std::optional<std::string> text(std::string_view key) const;
  const JsonValue* array(std::string_view key) const;
  const JsonValue* object(std::string_view key) const;
  // The members of the object there.
  std::optional<FieldReader> nested(std::string_view key) const;

  // The place of a member, for refuse_field.
  std::string path(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, std::string_view message) const;

 private:
  [[noreturn]] void expected(std::string_view key, std::string_view what, const JsonValue& found) const;

  const JsonValue& object_;
  std::string path_;
};

// A JSON number as an integer; nothing when it is none, or does not fit.
std::optional<std::int64_t> as_integer(const JsonValue& value);
// A JSON number as a double; nothing when it is none, or its magnitude is beyond a double's.
std::optional<double> as_number(const JsonValue& value);

}  // namespace gem::server
