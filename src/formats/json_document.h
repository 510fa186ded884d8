// The small JSON files beside a checkpoint (config.json, an index, generation_config.json): read strictly,
// with messages that name the file, the field and what was expected.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gem {

inline constexpr std::size_t kMaxJsonDocument = 16 << 20;  // bytes; published ones have some 100 KB

// Error(kBadFile) for anything but one JSON object of at most kMaxJsonDocument bytes and 32 levels, each key
// of an object once.
nlohmann::json parse_json_object(std::string_view text, const std::string& where);

// The fields of one object. A field that is absent or null is "not there". All look-ups throw Error(kBadFile)
// for a value of another type, and Error(kRefused) for a number outside its range: integers are checked
// before they are narrowed.
class JsonFields {
 public:
  // `object` must outlive this; `where` is the file and the path to the object: "DIR/config.json".
  JsonFields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const nlohmann::json* find(std::string_view key) const;  // nullptr when not there
  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::string name(std::string_view key) const { return where_ + ": " + path_ + std::string(key); }

  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  std::int64_t needed_integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  std::optional<double> number(std::string_view key, double low, double high) const;
  double needed_number(std::string_view key, double low, double high) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  // A number counts as a list of one.
  std::optional<std::vector<std::int64_t>> integers(std::string_view key, std::int64_t low,
                                                    std::int64_t high) const;
  std::optional<std::vector<std::string>> strings(std::string_view key) const;
  std::optional<JsonFields> object(std::string_view key) const;
  JsonFields needed_object(std::string_view key) const;

  const nlohmann::json& json() const { return object_; }
  [[noreturn]] void fail_type(std::string_view key, std::string_view expected) const;
  [[noreturn]] void fail_missing(std::string_view key) const;

 private:
  JsonFields(const nlohmann::json& object, std::string where, std::string path)
      : object_(object), where_(std::move(where)), path_(std::move(path)) {}
  std::int64_t checked(std::string_view key, const nlohmann::json& value, std::int64_t low,
                       std::int64_t high) const;

  const nlohmann::json& object_;
  std::string where_;
  std::string path_;  // "text_config.", for names in messages
};

}  // namespace gem
