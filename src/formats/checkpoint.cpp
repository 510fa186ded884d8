#include "formats/checkpoint.h"

#include <filesystem>
#include <functional>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/gguf.h"
#include "formats/hf_checkpoint.h"

namespace gem {
namespace {

std::string_view kind_of(const MetadataValue& value) {
  struct Namer {
    std::string_view operator()(std::int64_t) const { return "an integer"; }
    std::string_view operator()(std::uint64_t) const { return "an integer above 2^63-1"; }
    std::string_view operator()(double) const { return "a floating-point number"; }
    std::string_view operator()(bool) const { return "a boolean"; }
    std::string_view operator()(std::string_view) const { return "a string"; }
    std::string_view operator()(const MetadataArray& array) const {
      constexpr std::string_view kNames[] = {"an array of integers", "an array of integers up to 2^64-1",
                                             "an array of floating-point numbers", "an array of booleans",
                                             "an array of strings"};
      return kNames[array.index()];
    }
  };
  return std::visit(Namer{}, value);
}

[[noreturn]] void fail_kind(std::string_view key, const MetadataValue& value, std::string_view expected) {
  fail(ErrorCode::kBadFile, "metadata key {} is {}; expected {}", key, kind_of(value), expected);
}

}  // namespace

const MetadataValue* Checkpoint::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> Checkpoint::integer(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<std::int64_t>(value)) return *number;
  fail_kind(key, *value, "an integer");
}

std::optional<double> Checkpoint::number(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<std::uint64_t>(value)) return static_cast<double>(*number);
  fail_kind(key, *value, "a number");
}

std::optional<bool> Checkpoint::boolean(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  fail_kind(key, *value, "a boolean");
}

std::optional<std::string_view> Checkpoint::string(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string_view>(value)) return *text;
  fail_kind(key, *value, "a string");
}

std::optional<std::vector<std::int64_t>> Checkpoint::integers(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<std::int64_t>(value)) return std::vector<std::int64_t>{*number};
  if (const auto* array = std::get_if<MetadataArray>(value))
    if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(array)) return *numbers;
  fail_kind(key, *value, "an integer or an array of integers");
}

std::optional<std::vector<bool>> Checkpoint::booleans(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(value)) return std::vector<bool>(1, *flag);
  if (const auto* array = std::get_if<MetadataArray>(value))
    if (const auto* flags = std::get_if<std::vector<bool>>(array)) return *flags;
  fail_kind(key, *value, "a boolean or an array of booleans");
}

const std::vector<std::string_view>* Checkpoint::strings(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) return nullptr;
  if (const auto* array = std::get_if<MetadataArray>(value))
    if (const auto* texts = std::get_if<std::vector<std::string_view>>(array)) return texts;
  fail_kind(key, *value, "an array of strings");
}

const TensorView* Checkpoint::tensor(std::string_view name) const {
  const auto found = tensor_index_.find(std::string(name));
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

void Checkpoint::add_metadata(std::string key, MetadataValue value) {
  const auto [place, added] = metadata_.try_emplace(std::move(key), std::move(value));
  if (!added) fail(ErrorCode::kBadFile, "metadata key {} occurs twice; expected each key once", place->first);
}

void Checkpoint::add_tensor(TensorView tensor) {
  if (!tensor_index_.emplace(tensor.name, tensors_.size()).second)
    fail(ErrorCode::kBadFile, "tensor {} occurs twice; expected each name once", tensor.name);
  tensors_.push_back(std::move(tensor));
}

void Checkpoint::add_file(std::string path, std::shared_ptr<const MappedFile> file) {
  file_bytes_ += file->bytes().size();
  files_.push_back(std::move(path));
  mappings_.push_back(std::move(file));
}

std::string_view Checkpoint::keep(std::string text) {
  kept_.push_back(std::make_unique<std::string>(std::move(text)));
  return *kept_.back();
}

void Checkpoint::set_metadata(std::string key, MetadataValue value) {
  metadata_.insert_or_assign(std::move(key), std::move(value));
}

Checkpoint open_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return open_hf(path);
  if (path.ends_with(".safetensors") || path.ends_with(".json"))
    fail(ErrorCode::kBadFile, "{} is one file of a checkpoint; name the folder that holds config.json", path);
  return open_gguf(path);
}

void Checkpoint::release(std::span<const std::byte> bytes) const {
  const std::less_equal<const std::byte*> not_after;  // defined for pointers into different objects too
  for (const auto& mapping : mappings_) {
    const std::span<const std::byte> all = mapping->bytes();
    if (not_after(all.data(), bytes.data()) &&
        not_after(bytes.data() + bytes.size(), all.data() + all.size()))
      mapping->release(bytes);
  }
}

}  // namespace gem
