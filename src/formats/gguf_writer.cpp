#include "formats/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/output_file.h"
#include "formats/gguf.h"
#include "formats/names.h"

namespace gem {
namespace {

constexpr std::uint32_t kArray = 9;

template <typename T>
constexpr std::uint32_t value_type() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return 0;
  if constexpr (std::is_same_v<T, std::int8_t>) return 1;
  if constexpr (std::is_same_v<T, std::uint16_t>) return 2;
  if constexpr (std::is_same_v<T, std::int16_t>) return 3;
  if constexpr (std::is_same_v<T, std::uint32_t>) return 4;
  if constexpr (std::is_same_v<T, std::int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>) return 8;
  if constexpr (std::is_same_v<T, std::uint64_t>) return 10;
  if constexpr (std::is_same_v<T, std::int64_t>) return 11;
  if constexpr (std::is_same_v<T, double>) return 12;
}

template <typename T>
void append(std::string& out, const T& value) {
  if constexpr (std::is_convertible_v<T, std::string_view>) {
    const std::string_view text = value;
    append(out, static_cast<std::uint64_t>(text.size()));
    out += text;
  } else if constexpr (std::is_same_v<T, bool>) {
    out += static_cast<char>(value ? 1 : 0);
  } else {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

template <typename T>
struct Encoder {
  static void encode(std::string& out, const T& value) {
    append(out, value_type<T>());
    append(out, value);
  }
};

template <typename T>
struct Encoder<std::vector<T>> {
  static void encode(std::string& out, const std::vector<T>& values) {
    append(out, kArray);
    append(out, value_type<T>());
    append(out, static_cast<std::uint64_t>(values.size()));
    for (const auto& value : values) append(out, static_cast<const T&>(value));
  }
};

template <typename To, typename From>
bool fits(const std::vector<From>& values) {
  return std::all_of(values.begin(), values.end(), [](From v) { return std::in_range<To>(v); });
}

template <typename To, typename From>
std::vector<To> converted(const std::vector<From>& values) {
  std::vector<To> result;
  result.reserve(values.size());
  for (const From value : values) result.push_back(static_cast<To>(value));
  return result;
}

bool exact_as_float(double value) {
  return value != value || static_cast<double>(static_cast<float>(value)) == value;
}

void check_name(std::string_view kind, std::string_view name, std::uint64_t limit) {
  if (name.empty() || name.size() > limit)
    fail(ErrorCode::kUsage, "a GGUF {} of {} bytes; expected 1 to {}", kind, name.size(), limit);
  if (!is_utf8(name) || name.find('\0') != std::string_view::npos)
    fail(ErrorCode::kUsage, "a GGUF {} that is not UTF-8 text without NUL", kind);
}

}  // namespace

GgufWriter::GgufWriter(std::uint32_t alignment) : alignment_(alignment) {
  if (!std::has_single_bit(alignment) || alignment > GgufLimits::kAlignment)
    fail(ErrorCode::kUsage, "GGUF alignment {}; expected a power of two up to {}", alignment,
         GgufLimits::kAlignment);
  if (alignment != 32) add("general.alignment", alignment);
}

void GgufWriter::begin_key(std::string_view key) {
  check_name("key", key, GgufLimits::kKeyBytes);
  if (!used_keys_.insert(std::string(key)).second)
    fail(ErrorCode::kUsage, "GGUF key {} is given twice", shown(key));
  append(metadata_, key);
  ++keys_;
}

template <typename T>
void GgufWriter::add(std::string_view key, const T& value) {
  if (key == "general.alignment" && keys_ > 0)
    fail(ErrorCode::kUsage, "GGUF key general.alignment is set by the writer's constructor");
  begin_key(key);
  Encoder<T>::encode(metadata_, value);
}

template void GgufWriter::add(std::string_view, const std::uint8_t&);
template void GgufWriter::add(std::string_view, const std::int8_t&);
template void GgufWriter::add(std::string_view, const std::uint16_t&);
template void GgufWriter::add(std::string_view, const std::int16_t&);
template void GgufWriter::add(std::string_view, const std::uint32_t&);
template void GgufWriter::add(std::string_view, const std::int32_t&);
template void GgufWriter::add(std::string_view, const std::uint64_t&);
template void GgufWriter::add(std::string_view, const std::int64_t&);
template void GgufWriter::add(std::string_view, const float&);
template void GgufWriter::add(std::string_view, const double&);
template void GgufWriter::add(std::string_view, const bool&);
template void GgufWriter::add(std::string_view, const std::string&);
template void GgufWriter::add(std::string_view, const std::string_view&);
template void GgufWriter::add(std::string_view, const std::vector<std::uint8_t>&);
template void GgufWriter::add(std::string_view, const std::vector<std::int8_t>&);
template void GgufWriter::add(std::string_view, const std::vector<std::uint16_t>&);
template void GgufWriter::add(std::string_view, const std::vector<std::int16_t>&);
template void GgufWriter::add(std::string_view, const std::vector<std::uint32_t>&);
template void GgufWriter::add(std::string_view, const std::vector<std::int32_t>&);
template void GgufWriter::add(std::string_view, const std::vector<std::uint64_t>&);
template void GgufWriter::add(std::string_view, const std::vector<std::int64_t>&);
template void GgufWriter::add(std::string_view, const std::vector<float>&);
template void GgufWriter::add(std::string_view, const std::vector<double>&);
template void GgufWriter::add(std::string_view, const std::vector<bool>&);
template void GgufWriter::add(std::string_view, const std::vector<std::string>&);
template void GgufWriter::add(std::string_view, const std::vector<std::string_view>&);

void GgufWriter::add_value(std::string_view key, const MetadataValue& value) {
  struct Visitor {
    GgufWriter& writer;
    std::string_view key;

    void operator()(std::int64_t v) const {
      if (std::in_range<std::uint32_t>(v)) return writer.add(key, static_cast<std::uint32_t>(v));
      if (std::in_range<std::int32_t>(v)) return writer.add(key, static_cast<std::int32_t>(v));
      writer.add(key, v);
    }
    void operator()(double v) const {
      if (exact_as_float(v)) return writer.add(key, static_cast<float>(v));
      writer.add(key, v);
    }
    void operator()(std::uint64_t v) const { writer.add(key, v); }
    void operator()(bool v) const { writer.add(key, v); }
    void operator()(std::string_view v) const { writer.add(key, v); }
    void operator()(const MetadataArray& array) const { std::visit(*this, array); }
    void operator()(const std::vector<std::int64_t>& v) const {
      if (fits<std::int32_t>(v))
        return writer.add(key, converted<std::int32_t>(v));  // as token_type is written
      if (fits<std::uint32_t>(v)) return writer.add(key, converted<std::uint32_t>(v));
      writer.add(key, v);
    }
    void operator()(const std::vector<double>& v) const {
      if (std::all_of(v.begin(), v.end(), exact_as_float)) return writer.add(key, converted<float>(v));
      writer.add(key, v);
    }
    void operator()(const std::vector<std::uint64_t>& v) const { writer.add(key, v); }
    void operator()(const std::vector<bool>& v) const { writer.add(key, v); }
    void operator()(const std::vector<std::string_view>& v) const { writer.add(key, v); }
  };
  std::visit(Visitor{*this, key}, value);
}

void GgufWriter::add_tensor(std::string name, StorageType type, std::vector<std::uint64_t> shape) {
  check_name("tensor name", name, GgufLimits::kNameBytes);
  if (!used_names_.insert(name).second) fail(ErrorCode::kUsage, "GGUF tensor {} is given twice", name);
  if (shape.empty() || shape.size() > 4)
    fail(ErrorCode::kUsage, "GGUF tensor {} has {} dimensions; expected 1 to 4", name, shape.size());
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : shape) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (extent == 0 || extent > kMost / elements)
      fail(ErrorCode::kUsage, "GGUF tensor {} has extent {}; expected 1 to 2^63-1 elements in all", name,
           extent);
    elements *= extent;
  }
  const StorageInfo& storage = storage_info(type);
  const auto bytes = storage_bytes(type, elements);
  if (shape.back() % storage.block_elements != 0 || !bytes)
    fail(ErrorCode::kUsage, "GGUF tensor {} has rows of {} elements; expected a multiple of {} for type {}",
         name, shape.back(), storage.block_elements, storage.name);
  const std::uint64_t end = data_bytes_ + *bytes;  // padded, it must not pass 2^64
  if (end < data_bytes_ || end > std::numeric_limits<std::uint64_t>::max() - alignment_)
    fail(ErrorCode::kUsage, "GGUF tensor {} makes the file exceed 2^64 bytes", name);
  tensors_.push_back({std::move(name), type, std::move(shape), *bytes, data_bytes_});
  data_bytes_ = (end + alignment_ - 1) & ~std::uint64_t{alignment_ - 1};
}

std::string GgufWriter::header() const {
  std::string out = "GGUF";
  append(out, std::uint32_t{3});
  append(out, static_cast<std::uint64_t>(tensors_.size()));
  append(out, keys_);
  out += metadata_;
  for (const Tensor& tensor : tensors_) {
    append(out, tensor.name);
    append(out, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent) append(out, *extent);
    append(out, storage_info(tensor.type).ggml_id);
    append(out, tensor.offset);
  }
  out.append((alignment_ - out.size() % alignment_) % alignment_, '\0');
  return out;
}

std::uint64_t GgufWriter::file_bytes() const {
  return header().size() + data_bytes_;
}

void GgufWriter::write(const std::string& path, const Producer& produce) const {
  OutputFile file(path);
  const std::string head = header();
  file.write(head);
  for (const Tensor& tensor : tensors_) {
    std::uint64_t given = 0;
    produce(tensor, [&](std::span<const std::byte> bytes) {
      if (bytes.size() > tensor.bytes - given)
        fail(ErrorCode::kFailed, "{}: tensor {} is given more than its {} bytes", path, tensor.name,
             tensor.bytes);
      given += bytes.size();
      file.write(bytes);
    });
    if (given != tensor.bytes)
      fail(ErrorCode::kFailed, "{}: tensor {} is given {} bytes; expected {}", path, tensor.name, given,
           tensor.bytes);
    file.write_zeros((alignment_ - tensor.bytes % alignment_) % alignment_);
  }
  file.commit();
}

}  // namespace gem
