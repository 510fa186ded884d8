// A checkpoint: opened files giving metadata and tensor views. Nothing above formats/ knows which container
// it was; a reader of another container fills the same keys (GGUF's: "gemma4.block_count",
// "tokenizer.ggml.tokens"; a tokenizer.json is "tokenizer.huggingface.json").
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/tensor.h"

namespace gem {

class MappedFile;

// One metadata value. Integers of any width are kept as i64 (u64 above 2^63-1 as u64); strings are views into
// the mapping and live as long as the checkpoint.
using MetadataArray = std::variant<std::vector<std::int64_t>, std::vector<std::uint64_t>, std::vector<double>,
                                   std::vector<bool>, std::vector<std::string_view>>;
using MetadataValue =
    std::variant<std::int64_t, std::uint64_t, double, bool, std::string_view, MetadataArray>;

class Checkpoint {
 public:
  Checkpoint() = default;
  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

  const MetadataValue* find(std::string_view key) const;  // nullptr when absent
  // Typed look-ups: nothing when absent; Error(kBadFile) naming the key when the value has another type or
  // does not fit. `integer` accepts any integer width; `number` any float or integer width.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  // A scalar counts as an array of one element.
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<bool>> booleans(std::string_view key) const;
  const std::vector<std::string_view>* strings(std::string_view key) const;  // nullptr when absent

  const std::vector<TensorView>& tensors() const { return tensors_; }  // in file order
  const TensorView* tensor(std::string_view name) const;               // nullptr when absent

  const std::map<std::string, MetadataValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<std::string>& files() const { return files_; }  // paths, in order
  std::uint64_t file_bytes() const { return file_bytes_; }

  // Gives back the memory of tensor bytes that are not read again; bytes outside the mappings are left alone.
  void release(std::span<const std::byte> bytes) const;

  // Readers fill a checkpoint through these; both refuse duplicates with Error(kBadFile).
  void add_metadata(std::string key, MetadataValue value);
  void set_metadata(std::string key, MetadataValue value);  // over what is there
  void add_tensor(TensorView tensor);
  // Keeps the mapping alive as long as the checkpoint.
  void add_file(std::string path, std::shared_ptr<const MappedFile> file);
  // The same for a small file beside the tensors, which is not counted among the files.
  void hold(std::shared_ptr<const MappedFile> file) { held_.push_back(std::move(file)); }
  // Keeps `text` alive as long as the checkpoint and returns a view of it (for readers that must decode
  // strings).
  std::string_view keep(std::string text);

 private:
  std::map<std::string, MetadataValue, std::less<>> metadata_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, std::size_t> tensor_index_;
  std::vector<std::string> files_;
  std::vector<std::shared_ptr<const MappedFile>> mappings_;
  std::vector<std::shared_ptr<const MappedFile>> held_;
  std::vector<std::unique_ptr<std::string>> kept_;
  std::uint64_t file_bytes_ = 0;
};

// Opens a checkpoint by path: a GGUF file (the first of a split set opens all), or a folder with config.json
// and safetensors files as Hugging Face and MLX have them (formats/hf_checkpoint.h). Error(kBadFile) says
// what was found, where, and what was expected.
Checkpoint open_checkpoint(const std::string& path);

}  // namespace gem
