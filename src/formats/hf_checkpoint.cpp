#include "formats/hf_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/hf_config.h"
#include "formats/hf_names.h"
#include "formats/hf_quantization.h"
#include "formats/json_document.h"
#include "formats/names.h"
#include "formats/safetensors.h"

namespace gem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";

bool is_model_file(std::string_view name) {
  return name.starts_with("model") && name.ends_with(kSuffix);
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// The text of a file of the folder, alive as long as the checkpoint; nothing where there is none.
std::optional<std::string_view> side_file(const fs::path& path, Checkpoint& checkpoint) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  auto file = MappedFile::open(path.string());
  const std::string_view text = text_of(*file);
  checkpoint.hold(std::move(file));
  return text;
}

// "model-00002-of-00005.safetensors": every part of such a set must be there.
void check_parts(const fs::path& folder, const std::set<std::string>& names) {
  for (const std::string& name : names) {
    const std::size_t of = name.rfind("-of-");
    if (of == std::string::npos || of < 6) continue;
    const std::string_view digits =
        std::string_view(name).substr(of + 4, name.size() - of - 4 - kSuffix.size());
    unsigned count = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if (error != std::errc() || end != digits.data() + digits.size() || digits.size() != 5) continue;
    const std::string stem = name.substr(0, of - 5);
    for (unsigned part = 1; part <= count; ++part) {
      const std::string expected = fmt::format("{}{:05}-of-{:05}{}", stem, part, count, kSuffix);
      if (!names.contains(expected))
        fail(ErrorCode::kBadFile, "{}: {} is missing; {} is part of a set of {}", folder.string(), expected,
             name, count);
    }
  }
}

// The files that hold the tensors, by name: those of the index, and any other model*.safetensors, as the
// programs that made such folders read them.
std::set<std::string> tensor_files(const fs::path& folder, const std::map<std::string, std::string>& index) {
  std::set<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (is_model_file(name)) names.insert(name);
  }
  if (error) fail(ErrorCode::kBadFile, "cannot read {}: {}", folder.string(), error.message());
  for (const auto& [tensor, file] : index) {
    std::error_code ignored;
    if (!names.contains(file) && !fs::exists(folder / file, ignored))
      fail(ErrorCode::kBadFile, "{}: {} is missing; the index says that it holds {}", folder.string(), file,
           shown(tensor));
    names.insert(file);
  }
  if (names.empty())
    fail(ErrorCode::kBadFile, "{}: there is no model*.safetensors beside config.json", folder.string());
  check_parts(folder, names);
  return names;
}

struct StoredTensor {
  SafetensorsView view;
  std::string file;
};

// The tensors of one file that has opened; those of the index must be where it says.
class Reader {
 public:
  Reader(Checkpoint& checkpoint, const HfConfig& config, const HfQuantization& widths)
      : checkpoint_(checkpoint), config_(config), widths_(widths) {}

  void collect(const std::string& path, const std::string& file_name,
               const std::map<std::string, std::string>& index);
  void add_all();
  std::uint64_t indexed_bytes() const { return indexed_bytes_; }  // of the tensors that the index names
  bool has(const std::string& core) const { return tensors_.contains(core); }

 private:
  const StoredTensor* find(const std::string& core) const {
    const auto found = tensors_.find(core);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  void add_plain(const std::string& core, const StoredTensor& tensor);
  void add_affine(const std::string& module, const StoredTensor& codes, const StoredTensor& scales);
  void check_values() const;
  void check_part(const std::string& core, const StoredTensor& tensor) const;
  static std::string final_name(const std::string& core, const StoredTensor& tensor);

  Checkpoint& checkpoint_;
  const HfConfig& config_;
  const HfQuantization& widths_;
  std::map<std::string, StoredTensor> tensors_;  // by core name
  std::vector<std::string> order_;               // core names, as the files have them
  std::uint64_t indexed_bytes_ = 0;
};

std::string module_of(const std::string& core) {
  return core.substr(0, core.rfind('.'));
}

void Reader::collect(const std::string& path, const std::string& file_name,
                     const std::map<std::string, std::string>& index) {
  auto mapped = MappedFile::open(path);
  const SafetensorsFile file = SafetensorsFile::parse(mapped->bytes(), path);
  std::set<std::string_view> here;
  for (const SafetensorsView& view : file.tensors()) {
    here.insert(view.name);
    const auto entry = index.find(view.name);
    if (entry != index.end() && entry->second != file_name)
      fail(ErrorCode::kBadFile, "{}: tensor {} is here, but the index says that it is in {}", path,
           shown(view.name), entry->second);
    if (entry != index.end()) indexed_bytes_ += view.bytes.size();
    if (view.name.find("self_attn.rotary_emb") != std::string::npos) continue;  // a table of old writers
    std::string core = hf_core_name(view.name);
    const auto [place, added] = tensors_.try_emplace(core, StoredTensor{view, path});
    if (!added)
      fail(ErrorCode::kBadFile, "{}: tensor {} is in {} too (as {}); expected each once", path,
           shown(view.name), place->second.file, shown(place->second.view.name));
    order_.push_back(std::move(core));
  }
  for (const auto& [tensor, named] : index) {
    if (named == file_name && !here.contains(tensor))
      fail(ErrorCode::kBadFile, "{}: tensor {} is missing; the index says that it is here", path,
           shown(tensor));
  }
  checkpoint_.add_file(path, std::move(mapped));
}

std::string Reader::final_name(const std::string& core, const StoredTensor& tensor) {
  if (is_hf_media(core)) return core;
  return gguf_name_of(core).value_or(tensor.view.name);
}

std::optional<StorageType> storage_of(Dtype dtype) {
  if (dtype == Dtype::kF32) return StorageType::kF32;
  if (dtype == Dtype::kF16) return StorageType::kF16;
  if (dtype == Dtype::kBF16) return StorageType::kBF16;
  return std::nullopt;
}

void Reader::add_plain(const std::string& core, const StoredTensor& tensor) {
  const SafetensorsView& view = tensor.view;
  const auto type = storage_of(view.dtype);
  if (!type) {
    if (core == "masked_embedding.token_ordering") return;  // its centroids are refused by name
    fail(ErrorCode::kRefused,
         "{}: tensor {} has dtype {}; expected BF16, F16 or F32, or the codes of a module "
         "with .scales and .biases",
         tensor.file, shown(view.name), dtype_name(view.dtype));
  }
  if (core.ends_with(".weight")) widths_.check_plain(module_of(core));
  TensorView out;
  out.name = final_name(core, tensor);
  out.shape = view.shape;
  out.type = *type;
  out.bytes = view.bytes;
  // Vectors are f32 everywhere else; matrices of f32 are read in place, which must then be aligned.
  const bool widen = view.shape.size() < 2 && *type != StorageType::kF32 && !is_hf_media(core);
  const bool unaligned =
      *type == StorageType::kF32 && reinterpret_cast<std::uintptr_t>(view.bytes.data()) % alignof(float) != 0;
  if (widen || unaligned) {
    std::string copy(view.elements() * sizeof(float), '\0');
    const std::vector<float> values = view.floats();
    std::memcpy(copy.data(), values.data(), copy.size());
    const std::string_view kept = checkpoint_.keep(std::move(copy));
    out.type = StorageType::kF32;
    out.bytes = std::as_bytes(std::span(kept.data(), kept.size()));
  }
  checkpoint_.add_tensor(std::move(out));
}

void Reader::add_affine(const std::string& module, const StoredTensor& codes, const StoredTensor& scales) {
  const auto refuse = [&](const StoredTensor& tensor, const std::string& what) {
    fail(ErrorCode::kRefused, "{}: tensor {} {}", tensor.file, shown(tensor.view.name), what);
  };
  const auto shape_text = [](const SafetensorsView& view) {
    std::string text;
    for (const std::uint64_t extent : view.shape)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
    return "[" + text + "]";
  };
  const StoredTensor* biases = find(module + ".biases");
  if (biases == nullptr)
    refuse(scales, "has no .biases beside it; gem reads MLX's affine mode only, not mxfp4, mxfp8 or nvfp4");
  Affine affine = widths_.of(module);
  if (codes.view.dtype != Dtype::kU32)
    refuse(codes, fmt::format("has dtype {}; expected U32", dtype_name(codes.view.dtype)));
  const auto scale_type = storage_of(scales.view.dtype);
  if (!scale_type)
    refuse(scales, fmt::format("has dtype {}; expected BF16, F16 or F32", dtype_name(scales.view.dtype)));
  if (biases->view.dtype != scales.view.dtype)
    refuse(*biases, fmt::format("has dtype {}; expected {}, as its scales", dtype_name(biases->view.dtype),
                                dtype_name(scales.view.dtype)));
  if (codes.view.shape.size() != 2)
    refuse(codes, fmt::format("has shape {}; expected a matrix", shape_text(codes.view)));
  const std::uint64_t rows = codes.view.shape[0];
  const std::uint64_t words = codes.view.shape[1];
  // In range: the words are in the file.
  if (words * 32 % (std::uint64_t{affine.bits} * affine.group) != 0 || words == 0)
    refuse(codes, fmt::format("has {} words a row, no whole number of groups as {}", words, affine.name()));
  const std::uint64_t cols = words * 32 / affine.bits;
  const std::vector<std::uint64_t> expected = {rows, cols / affine.group};
  for (const StoredTensor* part : {&scales, biases}) {
    if (part->view.shape != expected)
      refuse(*part, fmt::format("has shape {}; expected [{}, {}] for {} columns as {}",
                                shape_text(part->view), expected[0], expected[1], cols, affine.name()));
  }
  affine.scale_type = *scale_type;
  affine.scales = scales.view.bytes.data();
  affine.biases = biases->view.bytes.data();
  TensorView out;
  out.name = final_name(module + ".weight", codes);
  out.type = StorageType::kAffine;
  out.shape = {rows, cols};
  out.bytes = codes.view.bytes;
  out.affine = affine;
  checkpoint_.add_tensor(std::move(out));
}

// The values of full layers come from their keys, and every other layer has its own. Without this a missing
// projection would silently turn a layer into the other kind where any geometry is admitted.
void Reader::check_values() const {
  if (config_.assistant) return;
  for (std::size_t i = 0; i < config_.sliding.size(); ++i) {
    const std::string core = fmt::format("layers.{}.self_attn.v_proj.weight", i);
    if (config_.sliding[i] != has(core))
      fail(ErrorCode::kRefused, "{} is {}; {} layers take their values from {}", core,
           has(core) ? "there" : "missing", config_.sliding[i] ? "sliding" : "full",
           config_.sliding[i] ? "their own projection" : "their keys (attention_k_eq_v)");
  }
}

// Scales and biases stand beside codes.
void Reader::check_part(const std::string& core, const StoredTensor& tensor) const {
  const std::string module = module_of(core);
  if (!has(module + ".weight"))
    fail(ErrorCode::kRefused, "{}: tensor {} has no {}.weight beside it", tensor.file,
         shown(tensor.view.name), shown(module));
  if (!has(module + ".scales"))
    fail(ErrorCode::kRefused, "{}: tensor {} has no {}.scales beside it", tensor.file,
         shown(tensor.view.name), shown(module));
}

void Reader::add_all() {
  check_values();
  for (const std::string& core : order_) {
    const StoredTensor& tensor = tensors_.at(core);
    if (core.ends_with(".scales") || core.ends_with(".biases")) {
      check_part(core, tensor);
      continue;
    }
    const std::string module = module_of(core);
    const StoredTensor* scales = core.ends_with(".weight") ? find(module + ".scales") : nullptr;
    if (scales != nullptr) {
      add_affine(module, tensor, *scales);
    } else {
      add_plain(core, tensor);
    }
  }
  widths_.check_modules([&](const std::string& module) { return has(module + ".weight"); });
}

// The divisors of proportional RoPE, which GGUF files carry as a tensor: 1 for the quarter of the pairs that
// turns, 1e30 for the rest.
void add_rope_divisors(const HfConfig& config, Checkpoint& checkpoint) {
  if (config.full_head_dim == 0) return;
  std::vector<float> divisors(config.full_head_dim / 2, 1e30f);
  std::fill_n(divisors.begin(), divisors.size() / 4, 1.0f);
  std::string bytes(divisors.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), divisors.data(), bytes.size());
  const std::string_view kept = checkpoint.keep(std::move(bytes));
  checkpoint.add_tensor({"rope_freqs.weight",
                         StorageType::kF32,
                         {divisors.size()},
                         std::as_bytes(std::span(kept.data(), kept.size())),
                         {}});
}

}  // namespace

SafetensorsIndex read_safetensors_index(std::string_view text, const std::string& where) {
  const nlohmann::json document = parse_json_object(text, where);
  const JsonFields fields(document, where);
  const JsonFields map = fields.needed_object("weight_map");
  SafetensorsIndex index;
  if (const auto metadata = fields.object("metadata")) {
    // Some writers sum in floating point; up to 2^53 that is exact.
    if (const auto size = metadata->number("total_size", 0, 9007199254740992.0)) {
      if (*size != std::floor(*size)) metadata->fail_type("total_size", "a number of bytes");
      index.total_size = static_cast<std::uint64_t>(*size);
    }
  }
  for (const auto& item : map.json().items()) {
    const auto file = map.string(item.key());
    const bool plain = file && file->size() > kSuffix.size() && file->ends_with(kSuffix) &&
                       file->find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!plain)
      fail(ErrorCode::kBadFile,
           "{}: the file of tensor {} is {}; expected the name of a .safetensors file in "
           "the same folder",
           where, shown(item.key()), file ? shown(*file) : "null");
    index.files.emplace(item.key(), *file);
  }
  if (index.files.empty()) fail(ErrorCode::kBadFile, "{}: weight_map names no tensor", where);
  return index;
}

Checkpoint open_hf(const std::string& folder) {
  const fs::path path(folder);
  Checkpoint checkpoint;
  const std::string config_path = (path / "config.json").string();
  const auto config_text = side_file(config_path, checkpoint);
  if (!config_text)
    fail(ErrorCode::kBadFile,
         "{} is a folder without config.json; expected a checkpoint as Hugging Face and MLX "
         "lay them out, or the path of a GGUF file",
         folder);
  const nlohmann::json document = parse_json_object(*config_text, config_path);
  const JsonFields fields(document, config_path);
  const HfConfig config = read_hf_config(fields, checkpoint);
  if (!config.known) return checkpoint;
  const HfQuantization widths = HfQuantization::read(fields);

  SafetensorsIndex index;
  if (const auto text = side_file(path / kIndex, checkpoint))
    index = read_safetensors_index(*text, (path / kIndex).string());
  Reader reader(checkpoint, config, widths);
  for (const std::string& name : tensor_files(path, index.files))
    reader.collect((path / name).string(), name, index.files);
  // A shard of another revision, or one cut and mended, may still be a sound file of its own.
  if (index.total_size && *index.total_size != reader.indexed_bytes())
    fail(ErrorCode::kBadFile,
         "{}: metadata.total_size is {}, but the tensors that the index names have {} bytes",
         (path / kIndex).string(), *index.total_size, reader.indexed_bytes());
  reader.add_all();
  add_rope_divisors(config, checkpoint);
  const TensorView* table = checkpoint.tensor("token_embd.weight");
  if (table != nullptr && !table->shape.empty() && table->shape[0] != config.vocab)
    fail(ErrorCode::kRefused, "{}: vocab_size is {}, but the token table has {} rows", config_path,
         config.vocab, table->shape[0]);

  const std::string generation_path = (path / "generation_config.json").string();
  if (const auto text = side_file(generation_path, checkpoint)) {
    const nlohmann::json generation = parse_json_object(*text, generation_path);
    read_generation_config(JsonFields(generation, generation_path), config, checkpoint);
  }
  if (const auto text = side_file(path / "tokenizer.json", checkpoint))
    checkpoint.add_metadata("tokenizer.huggingface.json", *text);
  if (const auto text = side_file(path / "tokenizer_config.json", checkpoint))
    checkpoint.add_metadata("gem.tokenizer_config", *text);
  const fs::path clean = path.lexically_normal();
  checkpoint.add_metadata(
      "general.name",
      checkpoint.keep((clean.has_filename() ? clean : clean.parent_path()).filename().string()));
  return checkpoint;
}

}  // namespace gem
