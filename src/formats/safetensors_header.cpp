#include "formats/safetensors_header.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "formats/names.h"

namespace gem {
namespace {

constexpr std::size_t kMaxDimensions = 8;

// Receives the parser's events. Depth 0 is outside the header, 1 inside it (keys are tensor names), 2 inside
// a tensor (keys are its fields) or inside __metadata__, 3 inside a tensor's shape or data_offsets.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(const std::string& where) : where_(where) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (depth_ == 2) refuse_value("an object");
    ++depth_;
    seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    if (depth_ == 2 && !in_metadata_) header_.tensors.emplace_back().name = name_;
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !in_metadata_ && !(seen_dtype_ && seen_shape_ && seen_offsets_))
      refuse("tensor {} lacks {}", shown(name_),
             !seen_dtype_   ? "dtype"
             : !seen_shape_ ? "shape"
                            : "data_offsets");
    --depth_;
    return true;
  }

  bool key(string_t& text) override {
    field_ = text;
    if (depth_ == 1) {
      name_ = text;
      in_metadata_ = text == "__metadata__";
      if (!names_.insert(text).second) refuse("key {} occurs twice; expected each key once", shown(text));
      return true;
    }
    if (in_metadata_) {
      if (header_.metadata.count(text) != 0)
        refuse("metadata key {} occurs twice; expected each key once", shown(text));
      return true;
    }
    bool* const seen = text == "dtype"          ? &seen_dtype_
                       : text == "shape"        ? &seen_shape_
                       : text == "data_offsets" ? &seen_offsets_
                                                : nullptr;
    if (seen == nullptr)
      refuse("tensor {} has field {}; expected dtype, shape and data_offsets", shown(name_), shown(text));
    if (*seen) refuse("field {} of tensor {} occurs twice; expected each field once", text, shown(name_));
    *seen = true;
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata.emplace(field_, text);
    } else if (depth_ == 2 && field_ == "dtype") {
      header_.tensors.back().dtype = text;
    } else {
      refuse_value("a string");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (in_array_ || depth_ != 2 || in_metadata_ || field_ == "dtype") refuse_value("an array");
    in_array_ = true;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    SafetensorsHeader::Tensor& tensor = header_.tensors.back();
    if (field_ == "shape") {
      tensor.shape = numbers_;
    } else {
      if (numbers_.size() != 2)
        refuse("data_offsets of tensor {} has {} numbers; expected [begin, end]", shown(name_),
               numbers_.size());
      tensor.begin = numbers_[0];
      tensor.end = numbers_[1];
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) refuse_value("a number");
    if (numbers_.size() == kMaxDimensions)
      refuse("{} of tensor {} has more than {} numbers", field_, shown(name_), kMaxDimensions);
    numbers_.push_back(value);
    return true;
  }

  bool number_integer(number_integer_t value) override {
    refuse("{} of tensor {} holds {}; expected whole numbers from 0", field_, shown(name_), value);
  }
  bool number_float(number_float_t, const string_t& text) override {
    refuse("{} of tensor {} holds {}; expected whole numbers from 0 to 2^64-1", field_, shown(name_),
           text.substr(0, 40));
  }
  bool null() override { refuse_value("null"); }
  bool boolean(bool) override { refuse_value("a boolean"); }
  bool binary(binary_t&) override { refuse_value("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    refuse("the header is not valid JSON at its byte {}", position);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kBadFile, "{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
  }

  [[noreturn]] void refuse_value(std::string_view found) const {
    if (depth_ == 0) refuse("the header is {}; expected an object", found);
    if (depth_ == 1) refuse("the entry of tensor {} is {}; expected an object", shown(name_), found);
    if (in_metadata_) refuse("metadata key {} is {}; expected a string", shown(field_), found);
    refuse("{} of tensor {} holds {}; expected {}", field_, shown(name_), found,
           field_ == "dtype" ? "a string" : "an array of whole numbers");
  }

  const std::string& where_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
  bool seen_dtype_ = false;
  bool seen_shape_ = false;
  bool seen_offsets_ = false;
  std::string name_;   // tensor being read
  std::string field_;  // field, or metadata key, being read
  std::vector<std::uint64_t> numbers_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& where) {
  if (text.empty() || text.front() != '{')
    fail(ErrorCode::kBadFile, "{}: the header does not begin with '{{'; expected a JSON object", where);
  // JSON has no NUL byte, but the parser takes one for the end of its input and would ignore what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    fail(ErrorCode::kBadFile, "{}: the header is not valid JSON at its byte {}", where, nul + 1);
  HeaderEvents events(where);
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  return events.take();
}

}  // namespace gem
