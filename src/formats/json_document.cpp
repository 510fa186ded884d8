#include "formats/json_document.h"

#include <cmath>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "formats/names.h"

namespace gem {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;

// What a value is, shortened for a message.
std::string what_is(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  return shown(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

Json parse_json_object(std::string_view text, const std::string& where) {
  if (text.size() > kMaxJsonDocument)
    fail(ErrorCode::kBadFile, "{}: the file has {} bytes; expected at most {}", where, text.size(),
         kMaxJsonDocument);
  // JSON has no NUL byte, but the parser takes one for the end of its input and would ignore what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    fail(ErrorCode::kBadFile, "{}: not valid JSON at byte {}", where, nul + 1);
  std::vector<std::unordered_set<std::string>> keys;  // of the objects that are open, by depth
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const auto level = static_cast<std::size_t>(depth);
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (depth >= kMaxDepth) fail(ErrorCode::kBadFile, "{}: nested deeper than {} levels", where, kMaxDepth);
      if (keys.size() < level + 2) keys.resize(level + 2);
      keys[level + 1].clear();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys[level].insert(key).second)
        fail(ErrorCode::kBadFile, "{}: the key {} occurs twice in one object", where, shown(key));
    }
    return true;
  };
  Json document;
  try {
    document = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& e) {
    fail(ErrorCode::kBadFile, "{}: not valid JSON at byte {}", where, e.byte);
  } catch (const Json::exception&) {  // a number beyond every range
    fail(ErrorCode::kBadFile, "{}: not valid JSON: a number is out of range", where);
  }
  if (!document.is_object())
    fail(ErrorCode::kBadFile, "{}: the file holds {}; expected an object", where, what_is(document));
  return document;
}

void JsonFields::fail_type(std::string_view key, std::string_view expected) const {
  const Json* value = find(key);
  fail(ErrorCode::kBadFile, "{} is {}; expected {}", name(key), value == nullptr ? "null" : what_is(*value),
       expected);
}

void JsonFields::fail_missing(std::string_view key) const {
  fail(ErrorCode::kRefused, "{} is missing", name(key));
}

const Json* JsonFields::find(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t JsonFields::checked(std::string_view key, const Json& value, std::int64_t low,
                                 std::int64_t high) const {
  if (!value.is_number_integer()) fail_type(key, "an integer");
  // Above 2^63 - 1 the tree holds an unsigned number.
  const bool fits = !value.is_number_unsigned() || value.get<std::uint64_t>() >> 63 == 0;
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
    fail(ErrorCode::kRefused, "{} is {}, expected {} to {}", name(key), what_is(value), low, high);
  return value.get<std::int64_t>();
}

std::optional<std::int64_t> JsonFields::integer(std::string_view key, std::int64_t low,
                                                std::int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return checked(key, *value, low, high);
}

std::int64_t JsonFields::needed_integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  const auto value = integer(key, low, high);
  if (!value) fail_missing(key);
  return *value;
}

std::optional<double> JsonFields::number(std::string_view key, double low, double high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail_type(key, "a number");
  const double number = value->get<double>();
  if (!(number >= low && number <= high))
    fail(ErrorCode::kRefused, "{} is {}, expected a number from {} to {}", name(key), number, low, high);
  return number;
}

double JsonFields::needed_number(std::string_view key, double low, double high) const {
  const auto value = number(key, low, high);
  if (!value) fail_missing(key);
  return *value;
}

std::optional<bool> JsonFields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail_type(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail_type(key, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<std::int64_t>> JsonFields::integers(std::string_view key, std::int64_t low,
                                                              std::int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) return std::vector<std::int64_t>{checked(key, *value, low, high)};
  std::vector<std::int64_t> out;
  for (const Json& element : *value) out.push_back(checked(key, element, low, high));
  return out;
}

std::optional<std::vector<std::string>> JsonFields::strings(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) fail_type(key, "an array of strings");
  std::vector<std::string> out;
  for (const Json& element : *value) {
    if (!element.is_string()) fail_type(key, "an array of strings");
    out.push_back(element.get<std::string>());
  }
  return out;
}

std::optional<JsonFields> JsonFields::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail_type(key, "an object");
  return JsonFields(*value, where_, path_ + std::string(key) + ".");
}

JsonFields JsonFields::needed_object(std::string_view key) const {
  auto value = object(key);
  if (!value) fail_missing(key);
  return *value;
}

}  // namespace gem
