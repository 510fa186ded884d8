#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/numbers.h"
#include "base/output_file.h"
#include "formats/names.h"
#include "formats/safetensors_header.h"

namespace gem {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

// The format's own limit, so that a header cannot ask for more.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct DtypeInfo {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<DtypeInfo, 15> kDtypes = {{{"BOOL", 1},
                                                {"U8", 1},
                                                {"I8", 1},
                                                {"F8_E4M3", 1},
                                                {"F8_E5M2", 1},
                                                {"U16", 2},
                                                {"I16", 2},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"U32", 4},
                                                {"I32", 4},
                                                {"F32", 4},
                                                {"U64", 8},
                                                {"I64", 8},
                                                {"F64", 8}}};

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  return std::nullopt;
}

// dtype_bytes times the product of `shape`; nothing on overflow.
std::optional<std::uint64_t> bytes_of(Dtype dtype, const std::vector<std::uint64_t>& shape) {
  std::uint64_t bytes = dtype_bytes(dtype);
  for (const std::uint64_t extent : shape) {
    if (extent != 0 && bytes > std::numeric_limits<std::uint64_t>::max() / extent) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

template <typename T, typename Out, typename Convert>
void copy_elements(std::span<const std::byte> bytes, std::vector<Out>& out, const Convert& convert) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + i, sizeof value);
    out.push_back(convert(value));
  }
}

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  return kDtypes[static_cast<std::size_t>(dtype)].name;
}
std::uint64_t dtype_bytes(Dtype dtype) {
  return kDtypes[static_cast<std::size_t>(dtype)].bytes;
}

std::uint64_t SafetensorsView::elements() const {
  return bytes.size() / dtype_bytes(dtype);
}

std::vector<float> SafetensorsView::floats() const {
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(elements()));
  if (dtype == Dtype::kF32) {
    copy_elements<float>(bytes, out, [](float v) { return v; });
  } else if (dtype == Dtype::kF16) {
    copy_elements<std::uint16_t>(bytes, out, f16_to_f32);
  } else if (dtype == Dtype::kBF16) {
    copy_elements<std::uint16_t>(bytes, out, bf16_to_f32);
  } else {
    fail(ErrorCode::kBadFile, "tensor {} has type {}; expected F32, F16 or BF16", name, dtype_name(dtype));
  }
  return out;
}

std::vector<std::int64_t> SafetensorsView::integers() const {
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(elements()));
  const auto widen = [](auto v) { return static_cast<std::int64_t>(v); };
  const auto narrow = [this](std::uint64_t v) {
    if ((v >> 63) != 0) fail(ErrorCode::kBadFile, "tensor {} holds {}; expected at most 2^63-1", name, v);
    return static_cast<std::int64_t>(v);
  };
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kU8:
      copy_elements<std::uint8_t>(bytes, out, widen);
      break;
    case Dtype::kI8:
      copy_elements<std::int8_t>(bytes, out, widen);
      break;
    case Dtype::kU16:
      copy_elements<std::uint16_t>(bytes, out, widen);
      break;
    case Dtype::kI16:
      copy_elements<std::int16_t>(bytes, out, widen);
      break;
    case Dtype::kU32:
      copy_elements<std::uint32_t>(bytes, out, widen);
      break;
    case Dtype::kI32:
      copy_elements<std::int32_t>(bytes, out, widen);
      break;
    case Dtype::kU64:
      copy_elements<std::uint64_t>(bytes, out, narrow);
      break;
    case Dtype::kI64:
      copy_elements<std::int64_t>(bytes, out, widen);
      break;
    default:
      fail(ErrorCode::kBadFile, "tensor {} has type {}; expected integers", name, dtype_name(dtype));
  }
  return out;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& where) {
  constexpr std::uint64_t kLengthBytes = 8;
  if (bytes.size() < kLengthBytes)
    fail(ErrorCode::kBadFile, "{}: the file has {} bytes; expected at least the 8 of the header length",
         where, bytes.size());
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - kLengthBytes)
    fail(ErrorCode::kBadFile, "{}: header length {} exceeds the {} bytes left in the file", where, length,
         bytes.size() - kLengthBytes);
  if (length > kMaxHeaderBytes)
    fail(ErrorCode::kBadFile, "{}: header length {} exceeds the format's limit of {}", where, length,
         kMaxHeaderBytes);
  const std::span<const std::byte> data = bytes.subspan(static_cast<std::size_t>(kLengthBytes + length));

  SafetensorsHeader header = parse_safetensors_header(
      {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, static_cast<std::size_t>(length)}, where);
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  SafetensorsFile file;
  file.where_ = where;
  file.metadata_ = std::move(header.metadata);
  file.tensors_.reserve(header.tensors.size());
  std::uint64_t expected = 0;
  for (SafetensorsHeader::Tensor& entry : header.tensors) {
    SafetensorsView view;
    const std::string name = shown(entry.name);
    const auto dtype = dtype_from_name(entry.dtype);
    if (!dtype)
      fail(ErrorCode::kBadFile, "{}: tensor {} has unknown dtype {}", where, name, shown(entry.dtype));
    const auto size = bytes_of(*dtype, entry.shape);
    if (!size)
      fail(ErrorCode::kBadFile, "{}: tensor {} has more than 2^64-1 bytes by its shape", where, name);
    if (entry.begin > entry.end)
      fail(ErrorCode::kBadFile, "{}: tensor {} has data_offsets [{}, {}]; expected begin <= end", where, name,
           entry.begin, entry.end);
    if (entry.end - entry.begin != *size)
      fail(ErrorCode::kBadFile,
           "{}: tensor {} has {} bytes by its data_offsets; expected {} by dtype and shape", where, name,
           entry.end - entry.begin, *size);
    if (entry.begin != expected)
      fail(ErrorCode::kBadFile, "{}: tensor {} begins at data byte {}; expected {} ({})", where, name,
           entry.begin, expected,
           entry.begin < expected ? "tensors must not overlap" : "no holes between tensors");
    if (entry.end > data.size())
      fail(ErrorCode::kBadFile, "{}: tensor {} ends at data byte {}, but the file has {} bytes of data",
           where, name, entry.end, data.size());
    expected = entry.end;
    view.name = std::move(entry.name);
    view.dtype = *dtype;
    view.shape = std::move(entry.shape);
    view.bytes = data.subspan(static_cast<std::size_t>(entry.begin), static_cast<std::size_t>(*size));
    file.tensors_.push_back(std::move(view));
  }
  if (expected != data.size())
    fail(ErrorCode::kBadFile, "{}: the tensors end at data byte {}, but the file has {} bytes of data", where,
         expected, data.size());
  return file;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  std::shared_ptr<const MappedFile> mapped = MappedFile::open(path);
  SafetensorsFile file = parse(mapped->bytes(), path);
  file.file_ = std::move(mapped);
  return file;
}

const SafetensorsView* SafetensorsFile::find(std::string_view name) const {
  for (const SafetensorsView& view : tensors_)
    if (view.name == name) return &view;
  return nullptr;
}

const SafetensorsView& SafetensorsFile::at(std::string_view name) const {
  const SafetensorsView* view = find(name);
  if (view == nullptr) fail(ErrorCode::kBadFile, "{}: there is no tensor {}", where_, name);
  return *view;
}

std::uint64_t SafetensorsPlan::bytes() const {
  const auto size = bytes_of(dtype, shape);
  if (!size) fail(ErrorCode::kUsage, "tensor {} has more than 2^64-1 bytes by its shape", name);
  return *size;
}

void write_safetensors(const std::string& path, const std::vector<SafetensorsPlan>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void(const SafetensorsPlan&, const SafetensorsSink&)>& produce) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const SafetensorsPlan& tensor : tensors) {
    if (tensor.name == "__metadata__" || header.contains(tensor.name))
      fail(ErrorCode::kUsage, "tensor name {} is reserved or given twice", tensor.name);
    const std::uint64_t end = offset + tensor.bytes();
    header[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data is aligned to 8
  const std::uint64_t length = text.size();
  OutputFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const SafetensorsPlan& tensor : tensors) {
    const std::uint64_t before = file.written();
    produce(tensor, [&](std::span<const std::byte> bytes) { file.write(bytes); });
    if (file.written() - before != tensor.bytes())
      fail(ErrorCode::kFailed, "{}: tensor {} is given {} bytes; expected {}", path, tensor.name,
           file.written() - before, tensor.bytes());
  }
  file.commit();
}

void write_safetensors(const std::string& path, const std::vector<SafetensorsEntry>& entries) {
  std::vector<SafetensorsPlan> plans;
  for (const SafetensorsEntry& entry : entries) {
    plans.push_back({entry.name, entry.dtype, entry.shape});
    if (const auto size = bytes_of(entry.dtype, entry.shape); size != entry.bytes.size())
      fail(ErrorCode::kUsage, "tensor {} is given {} bytes; its shape has {}", entry.name, entry.bytes.size(),
           size.value_or(0));
  }
  std::size_t next = 0;
  write_safetensors(path, plans, {}, [&](const SafetensorsPlan&, const SafetensorsSink& sink) {
    sink(entries[next++].bytes);
  });
}

}  // namespace gem
