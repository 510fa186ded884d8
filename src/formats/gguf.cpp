#include "formats/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/names.h"

namespace gem {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as little-endian");

enum ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kValueTypes,
};

// Fewest bytes of one element in the file. A string is at least its length.
constexpr std::array<std::uint64_t, kValueTypes> kValueBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

// Fewest bytes of one key (length, one letter, type, one-byte value) and of one tensor info (length, one
// letter, n_dims, one dimension, type, offset).
constexpr std::uint64_t kKeyMinimum = 8 + 1 + 4 + 1;
constexpr std::uint64_t kTensorMinimum = 8 + 1 + 4 + 8 + 4 + 8;

// The part of a file that is being read, and how messages name it.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return bytes_.size() - position_; }

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kBadFile, "{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
  }

  // `what` is only formatted into a message: "value of key x".
  template <typename T>
  T read(std::string_view what) {
    if (left() < sizeof(T))
      refuse("the file ends at byte {} within {}; expected {} bytes at byte {}", bytes_.size(), what,
             sizeof(T), position_);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof value);
    position_ += sizeof value;
    return value;
  }

  std::string_view read_string(std::string_view what, std::uint64_t limit) {
    const std::uint64_t start = position_;
    const auto length = read<std::uint64_t>(what);
    if (length > left())
      refuse("length {} of {} at byte {} exceeds the {} bytes left in the file", length, what, start, left());
    if (length > limit)
      refuse("length {} of {} at byte {} exceeds the limit; expected at most {} bytes", length, what, start,
             limit);
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + position_,
                                static_cast<std::size_t>(length));
    position_ += length;
    return text;
  }

  // A key or a tensor name: not empty, UTF-8, no NUL (llama.cpp would end the name there).
  std::string_view read_name(std::string_view what, std::uint64_t limit) {
    const std::uint64_t start = position_;
    const std::string_view name = read_string(what, limit);
    if (name.empty()) refuse("{} at byte {} is empty; expected a name", what, start);
    if (name.find('\0') != std::string_view::npos)
      refuse("{} at byte {} holds a NUL byte; expected UTF-8 text without", what, start);
    if (!is_utf8(name)) refuse("{} at byte {} is not valid UTF-8", what, start);
    return name;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
  std::uint64_t position_ = 0;
};

void read_magic(Reader& reader, std::span<const std::byte> bytes) {
  if (bytes.empty()) reader.refuse("the file is empty; expected a GGUF file");
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0) {
    std::string found;
    for (const std::byte b : bytes.first(std::min<std::size_t>(4, bytes.size())))
      found += fmt::format("{}{:02x}", found.empty() ? "" : " ", static_cast<unsigned>(b));
    reader.refuse("the file begins with {}; expected 47 47 55 46 (\"GGUF\")", found);
  }
  reader.read<std::uint32_t>("the magic");
  const auto version = reader.read<std::uint32_t>("the version");
  if (version != 0 && (version & 0xffffu) == 0)
    reader.refuse("version {:#010x} at byte 4 is of the opposite byte order; expected a little-endian file",
                  version);
  if (version != 2 && version != 3)
    reader.refuse("version {} at byte 4 is not supported; expected 2 or 3", version);
}

std::uint64_t read_count(Reader& reader, std::string_view what, std::uint64_t minimum, std::uint64_t limit) {
  const std::uint64_t start = reader.position();
  const auto count = reader.read<std::int64_t>(what);
  if (count < 0) reader.refuse("{} {} at byte {} is negative", what, count, start);
  const auto unsigned_count = static_cast<std::uint64_t>(count);
  if (unsigned_count > reader.left() / minimum)
    reader.refuse("{} {} at byte {} does not fit; the {} bytes left in the file hold at most {}", what, count,
                  start, reader.left(), reader.left() / minimum);
  if (unsigned_count > limit)
    reader.refuse("{} {} at byte {} exceeds the limit; expected at most {}", what, count, start, limit);
  return unsigned_count;
}

bool read_bool(Reader& reader, std::string_view what) {
  const auto value = reader.read<std::uint8_t>(what);
  if (value > 1)
    reader.refuse("boolean {} in {} at byte {}; expected 0 or 1", value, what, reader.position() - 1);
  return value == 1;
}

// A scalar of type T as the checkpoint keeps it.
template <typename T>
MetadataValue read_scalar(Reader& reader, std::string_view what) {
  const T value = reader.read<T>(what);
  if constexpr (std::is_floating_point_v<T>) return static_cast<double>(value);
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return value;
  }
  return static_cast<std::int64_t>(value);
}

template <typename T>
MetadataValue read_numbers(Reader& reader, std::string_view what, std::uint64_t count) {
  using Kept =
      std::conditional_t<std::is_floating_point_v<T>, double,
                         std::conditional_t<std::is_same_v<T, std::uint64_t>, std::uint64_t, std::int64_t>>;
  std::vector<Kept> values(static_cast<std::size_t>(count));
  for (Kept& value : values) value = static_cast<Kept>(reader.read<T>(what));
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    const auto fits = [](std::uint64_t v) { return (v >> 63) == 0; };
    if (std::all_of(values.begin(), values.end(), fits))
      return MetadataArray(std::vector<std::int64_t>(values.begin(), values.end()));
  }
  return MetadataArray(std::move(values));
}

MetadataValue read_array(Reader& reader, std::string_view what) {
  const std::uint64_t start = reader.position();
  const auto type = reader.read<std::uint32_t>(what);
  if (type == kArray)
    reader.refuse("{} at byte {} is an array of arrays; expected an array of scalars", what, start);
  if (type >= kValueTypes)
    reader.refuse("element type {} of {} at byte {} is unknown; expected 0 to {}", type, what, start,
                  kValueTypes - 1);
  const auto count = reader.read<std::uint64_t>(what);
  if (count > reader.left() / kValueBytes[type])
    reader.refuse(
        "count {} of {} at byte {} does not fit; the {} bytes left in the file hold at most {} elements",
        count, what, start + 4, reader.left(), reader.left() / kValueBytes[type]);
  const std::uint64_t limit =
      kValueBytes[type] < 4 && type != kBool ? GgufLimits::kNarrowArrayElements : GgufLimits::kArrayElements;
  if (count > limit)
    reader.refuse("count {} of {} at byte {} exceeds the limit; expected at most {} elements", count, what,
                  start + 4, limit);
  switch (type) {
    case kU8:
      return read_numbers<std::uint8_t>(reader, what, count);
    case kI8:
      return read_numbers<std::int8_t>(reader, what, count);
    case kU16:
      return read_numbers<std::uint16_t>(reader, what, count);
    case kI16:
      return read_numbers<std::int16_t>(reader, what, count);
    case kU32:
      return read_numbers<std::uint32_t>(reader, what, count);
    case kI32:
      return read_numbers<std::int32_t>(reader, what, count);
    case kF32:
      return read_numbers<float>(reader, what, count);
    case kU64:
      return read_numbers<std::uint64_t>(reader, what, count);
    case kI64:
      return read_numbers<std::int64_t>(reader, what, count);
    case kF64:
      return read_numbers<double>(reader, what, count);
    case kBool: {
      std::vector<bool> flags(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = read_bool(reader, what);
      return MetadataArray(std::move(flags));
    }
    default:
      break;
  }
  std::vector<std::string_view> texts(static_cast<std::size_t>(count));
  for (std::string_view& text : texts) text = reader.read_string(what, GgufLimits::kStringBytes);
  return MetadataArray(std::move(texts));
}

MetadataValue read_value(Reader& reader, std::uint32_t type, std::string_view what) {
  switch (type) {
    case kU8:
      return read_scalar<std::uint8_t>(reader, what);
    case kI8:
      return read_scalar<std::int8_t>(reader, what);
    case kU16:
      return read_scalar<std::uint16_t>(reader, what);
    case kI16:
      return read_scalar<std::int16_t>(reader, what);
    case kU32:
      return read_scalar<std::uint32_t>(reader, what);
    case kI32:
      return read_scalar<std::int32_t>(reader, what);
    case kF32:
      return read_scalar<float>(reader, what);
    case kBool:
      return read_bool(reader, what);
    case kString:
      return reader.read_string(what, GgufLimits::kStringBytes);
    case kArray:
      return read_array(reader, what);
    case kU64:
      return read_scalar<std::uint64_t>(reader, what);
    case kI64:
      return read_scalar<std::int64_t>(reader, what);
    case kF64:
      return read_scalar<double>(reader, what);
    default:
      break;
  }
  reader.refuse("type {} of {} at byte {} is unknown; expected 0 to {}", type, what, reader.position() - 4,
                kValueTypes - 1);
}

// Returns the alignment of the data section.
std::uint64_t read_metadata(Reader& reader, std::uint64_t count, Checkpoint& checkpoint) {
  constexpr std::string_view kAlignmentKey = "general.alignment";
  std::uint64_t alignment = 32;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string which = fmt::format("key {} of {}", i + 1, count);
    const std::uint64_t start = reader.position();
    const std::string_view key = reader.read_name(which, GgufLimits::kKeyBytes);
    if (checkpoint.find(key) != nullptr)
      reader.refuse("key {} at byte {} occurs twice; expected each key once", shown(key), start);
    const std::string what = "the value of key " + shown(key);
    const auto type = reader.read<std::uint32_t>(what);
    MetadataValue value = read_value(reader, type, what);
    if (key == kAlignmentKey) {
      if (type != kU32) reader.refuse("{} has type {}; expected 4 (u32)", key, type);
      alignment = static_cast<std::uint64_t>(std::get<std::int64_t>(value));
      if (!std::has_single_bit(alignment) || alignment > GgufLimits::kAlignment)
        reader.refuse("{} is {}; expected a power of two up to {}", key, alignment, GgufLimits::kAlignment);
    }
    checkpoint.add_metadata(std::string(key), std::move(value));
  }
  return alignment;
}

struct TensorInfo {
  TensorView view;           // bytes not yet set
  std::uint64_t offset = 0;  // from the start of the data section
  std::uint64_t bytes = 0;
};

StorageType read_storage_type(Reader& reader, const std::string& what) {
  const std::uint64_t start = reader.position();
  const auto id = reader.read<std::uint32_t>(what);
  if (const auto type = storage_from_ggml(id)) return *type;
  const std::string_view name = ggml_type_name(id);
  std::string known;
  for (int i = 0; i < kStorageTypes; ++i)
    known += fmt::format("{}{}", i == 0 ? "" : ", ", storage_info(static_cast<StorageType>(i)).name);
  if (name.empty())
    reader.refuse("{} has type id {} at byte {}, which ggml does not have; expected one of {}", what, id,
                  start, known);
  reader.refuse("{} has type {}, which gem does not read; expected one of {}", what, name, known);
}

TensorInfo read_tensor_info(Reader& reader, std::uint64_t index, std::uint64_t count,
                            std::unordered_set<std::string_view>& names) {
  TensorInfo info;
  const std::uint64_t start = reader.position();
  const std::string_view name =
      reader.read_name(fmt::format("the name of tensor {} of {}", index + 1, count), GgufLimits::kNameBytes);
  const std::string what = "tensor " + shown(name);
  if (!names.insert(name).second)
    reader.refuse("{} at byte {} occurs twice; expected each name once", what, start);
  info.view.name = name;

  const auto n_dims = reader.read<std::uint32_t>(what);
  if (n_dims < 1 || n_dims > 4) reader.refuse("{} has {} dimensions; expected 1 to 4", what, n_dims);
  std::array<std::uint64_t, 4> ne{};  // the contiguous axis first
  std::uint64_t elements = 1;
  for (std::uint32_t d = 0; d < n_dims; ++d) {
    const auto extent = reader.read<std::int64_t>(what);
    if (extent < 1) reader.refuse("{} has extent {} in dimension {}; expected at least 1", what, extent, d);
    ne[d] = static_cast<std::uint64_t>(extent);
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (ne[d] > kMost / elements)
      reader.refuse("{} has more than 2^63-1 elements (dimension {} is {})", what, d, extent);
    elements *= ne[d];
  }
  info.view.shape.assign(ne.begin(), ne.begin() + n_dims);
  std::reverse(info.view.shape.begin(), info.view.shape.end());

  info.view.type = read_storage_type(reader, what);
  const StorageInfo& storage = storage_info(info.view.type);
  if (ne[0] % storage.block_elements != 0)
    reader.refuse("{} has rows of {} elements; expected a multiple of {} for type {}", what, ne[0],
                  storage.block_elements, storage.name);
  const auto bytes = storage_bytes(info.view.type, elements);
  if (!bytes)
    reader.refuse("{} has {} elements of type {}: more than 2^64-1 bytes", what, elements, storage.name);
  info.bytes = *bytes;
  info.offset = reader.read<std::uint64_t>(what);
  return info;
}

// Places the tensors. Each begins where the one before ends, rounded up to the alignment, as llama.cpp
// demands: so they can neither overlap nor leave holes, and no sum can overflow because each end lies within
// the file.
void place_tensors(const Reader& reader, std::span<const std::byte> bytes, std::uint64_t alignment,
                   std::vector<TensorInfo>& infos, Checkpoint& checkpoint) {
  const auto round_up = [alignment](std::uint64_t n) { return (n + alignment - 1) & ~(alignment - 1); };
  const std::uint64_t data = round_up(reader.position());
  std::uint64_t expected = 0;
  for (TensorInfo& info : infos) {
    const std::string what = "tensor " + shown(info.view.name);
    if (info.offset != expected)
      reader.refuse(
          "{} has offset {} in the data section; expected {} (tensors follow each other, aligned to {})",
          what, info.offset, expected, alignment);
    const std::uint64_t begin = data + info.offset;
    const std::uint64_t left = begin < bytes.size() ? bytes.size() - begin : 0;
    if (info.bytes > left)
      reader.refuse("{} has {} bytes at byte {}, but the file of {} bytes has {} left there; the file is cut",
                    what, info.bytes, begin, bytes.size(), left);
    info.view.bytes = bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(info.bytes));
    expected = round_up(info.offset + info.bytes);
    checkpoint.add_tensor(std::move(info.view));
  }
}

}  // namespace

std::string_view ggml_type_name(std::uint32_t id) {
  // Empty where ggml has removed the type: 4, 5, 31-33, 36-38.
  constexpr std::array<std::string_view, 43> kNames = {
      "F32",   "F16",    "Q4_0",  "Q4_1", "",     "",        "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
      "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
      "IQ2_S", "IQ4_XS", "I8",    "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16",  "",       "",
      "",      "TQ1_0",  "TQ2_0", "",     "",     "",        "MXFP4",  "NVFP4",   "Q1_0",  "Q2_0"};
  return id < kNames.size() ? kNames[id] : std::string_view{};
}

void read_gguf(std::span<const std::byte> bytes, const std::string& where, Checkpoint& checkpoint) {
  Reader reader(bytes, where);
  read_magic(reader, bytes);
  const std::uint64_t n_tensors =
      read_count(reader, "the tensor count", kTensorMinimum, GgufLimits::kTensors);
  const std::uint64_t n_keys = read_count(reader, "the key count", kKeyMinimum, GgufLimits::kKeys);
  const std::uint64_t alignment = read_metadata(reader, n_keys, checkpoint);
  std::vector<TensorInfo> infos;
  infos.reserve(static_cast<std::size_t>(n_tensors));
  std::unordered_set<std::string_view> names;
  for (std::uint64_t i = 0; i < n_tensors; ++i)
    infos.push_back(read_tensor_info(reader, i, n_tensors, names));
  place_tensors(reader, bytes, alignment, infos, checkpoint);
}

}  // namespace gem
