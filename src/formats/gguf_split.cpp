// Opening a GGUF path: one file, or the first part of a split set.
//
// The parts of a set are named "NAME-00001-of-0000N.gguf", and each says in its metadata which part it is
// (split.no, from 0), of how many (split.count), and how many tensors the set has (split.tensors.count). The
// first part holds the metadata; the others repeat at most parts of it.
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/gguf.h"

namespace gem {
namespace {

constexpr std::string_view kNo = "split.no";
constexpr std::string_view kCount = "split.count";
constexpr std::string_view kTensors = "split.tensors.count";

std::string part_suffix(std::int64_t part, std::int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", part + 1, count);
}

std::int64_t split_key(const Checkpoint& part, const std::string& path, std::string_view key) {
  const auto value = part.integer(key);
  if (!value)
    fail(ErrorCode::kBadFile, "{}: key {} is missing; expected it in each part of a split set", path, key);
  return *value;
}

Checkpoint open_one(const std::string& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  Checkpoint checkpoint;
  checkpoint.add_file(path, file);
  read_gguf(file->bytes(), path, checkpoint);
  return checkpoint;
}

void expect(const Checkpoint& part, const std::string& path, std::string_view key, std::int64_t expected,
            const std::string& first) {
  const std::int64_t found = split_key(part, path, key);
  if (found != expected)
    fail(ErrorCode::kBadFile, "{}: {} is {}; expected {} to continue {}", path, key, found, expected, first);
}

// A later part may repeat the metadata of the first, but not contradict it: then it is of another set.
void expect_same_metadata(const Checkpoint& first, const Checkpoint& part, const std::string& path) {
  for (const auto& [key, value] : part.metadata()) {
    if (key == kNo || key == "general.alignment") continue;
    const MetadataValue* of_first = first.find(key);
    if (of_first != nullptr && *of_first != value)
      fail(ErrorCode::kBadFile, "{}: the value of key {} differs from that in {}; expected parts of one set",
           path, key, first.files().front());
  }
}

}  // namespace

Checkpoint open_gguf(const std::string& path) {
  Checkpoint checkpoint = open_one(path);
  const std::int64_t count = checkpoint.integer(kCount).value_or(1);
  if (count == 0 || count == 1) return checkpoint;
  if (count < 0 || count > static_cast<std::int64_t>(GgufLimits::kSplitFiles))
    fail(ErrorCode::kBadFile, "{}: {} is {}; expected 1 to {}", path, kCount, count, GgufLimits::kSplitFiles);
  const std::int64_t no = split_key(checkpoint, path, kNo);
  if (no < 0 || no >= count)
    fail(ErrorCode::kBadFile, "{}: {} is {}; expected 0 to {}", path, kNo, no, count - 1);
  const std::string suffix = part_suffix(no, count);
  if (!path.ends_with(suffix))
    fail(ErrorCode::kBadFile,
         "{}: this is part {} of {} of a split set; expected a file name that ends in {}", path, no + 1,
         count, suffix);
  const std::string prefix = path.substr(0, path.size() - suffix.size());
  if (no != 0)
    fail(ErrorCode::kBadFile, "{}: this is part {} of {} of a split set; open the first part, {}", path,
         no + 1, count, prefix + part_suffix(0, count));

  const std::int64_t n_tensors = split_key(checkpoint, path, kTensors);
  for (std::int64_t i = 1; i < count; ++i) {
    const std::string part_path = prefix + part_suffix(i, count);
    const std::shared_ptr<const MappedFile> file = MappedFile::open(part_path);
    Checkpoint part;
    read_gguf(file->bytes(), part_path, part);
    expect(part, part_path, kNo, i, path);
    expect(part, part_path, kCount, count, path);
    expect(part, part_path, kTensors, n_tensors, path);
    expect_same_metadata(checkpoint, part, part_path);
    for (const TensorView& tensor : part.tensors()) {
      if (checkpoint.tensor(tensor.name) != nullptr)
        fail(ErrorCode::kBadFile, "{}: tensor {} is in an earlier part already; expected each name once",
             part_path, tensor.name);
      checkpoint.add_tensor(tensor);
    }
    checkpoint.add_file(part_path, file);
  }
  if (checkpoint.tensors().size() != static_cast<std::uint64_t>(n_tensors))
    fail(ErrorCode::kBadFile, "{}: the {} parts hold {} tensors; expected {} ({})", path, count,
         checkpoint.tensors().size(), n_tensors, kTensors);
  return checkpoint;
}

}  // namespace gem
