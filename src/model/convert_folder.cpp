#include "model/convert_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/numbers.h"
#include "base/output_file.h"
#include "formats/hf_names.h"
#include "formats/safetensors.h"
#include "model/manifest.h"

namespace gem {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What an unfinished conversion leaves beside its files: from what they are made, and the sum of each.
constexpr const char* kState = "gem-convert.json";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kVisionFile = "model-vision.safetensors";

// Files that go along as they are.
constexpr std::array kCompanions = {
    "generation_config.json",   "tokenizer.json",       "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json",        "tokenizer.model",      "chat_template.jinja",   "chat_template.json",
    "preprocessor_config.json", "processor_config.json"};

// One tensor of the output and where it comes from.
struct Item {
  enum class Part : std::uint8_t { kRows, kScales, kBiases, kAsIs };
  SafetensorsPlan plan;
  const TensorView* source;
  RowForm form;
  Part part;
};

struct Shard {
  std::string name;
  std::vector<Item> items;
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const Item& item : items) sum += item.plan.bytes();
    return sum;
  }
  std::vector<SafetensorsPlan> plans() const {
    std::vector<SafetensorsPlan> out;
    for (const Item& item : items) out.push_back(item.plan);
    return out;
  }
};

Dtype dtype_of(StorageType type) {
  if (type == StorageType::kF32) return Dtype::kF32;
  return type == StorageType::kF16 ? Dtype::kF16 : Dtype::kBF16;
}

std::string written_name(const std::string& gguf, const ConvertTarget& target, bool assistant) {
  const std::string core = *hf_name_of(gguf);
  if (assistant) return gguf.starts_with("nextn.") ? core : "model." + core;
  return (target.form == ConvertTarget::Form::kMlx ? "language_model.model." : "model.language_model.") +
         core;
}

// Vectors were widened to f32 when they were read; they go back to bf16 where they came from it.
bool fits_bf16(const TensorView& view) {
  std::vector<float> values(view.elements());
  dequantize(view.type, view.bytes.data(), values.data(), values.size());
  return std::all_of(values.begin(), values.end(), [](float x) { return bf16_to_f32(f32_to_bf16(x)) == x; });
}

// The tensors that one manifest entry becomes; they stay in one file.
std::vector<Item> items_of(const ManifestEntry& entry, const TensorView& view, const ConvertTarget& target,
                           bool assistant) {
  const std::string name = written_name(entry.name, target, assistant);
  if (entry.role == TensorRole::kVector) {
    const StorageType type = fits_bf16(view) ? StorageType::kBF16 : StorageType::kF32;
    return {{{name, dtype_of(type), view.shape}, &view, RowForm::of(type), Item::Part::kRows}};
  }
  const std::uint64_t rows = view.shape[0];
  const std::uint64_t cols = view.shape[1];
  if (target.form == ConvertTarget::Form::kBf16)
    return {{{name, Dtype::kBF16, view.shape}, &view, RowForm::of(StorageType::kBF16), Item::Part::kRows}};
  if (cols % target.affine.group != 0)  // mlx-lm leaves such a module as it is
    return {{{name, dtype_of(view.type), view.shape}, &view, RowForm::of(view.type), Item::Part::kRows}};
  RowForm form{StorageType::kAffine, target.affine};
  form.affine.scale_type = view.type;
  const std::string module = name.substr(0, name.size() - std::string_view(".weight").size());
  const std::vector<std::uint64_t> groups = {rows, cols / target.affine.group};
  return {{{name, Dtype::kU32, {rows, cols * target.affine.bits / 32}}, &view, form, Item::Part::kRows},
          {{module + ".scales", dtype_of(view.type), groups}, &view, form, Item::Part::kScales},
          {{module + ".biases", dtype_of(view.type), groups}, &view, form, Item::Part::kBiases}};
}

bool is_image_part(std::string_view core) {
  return is_hf_media(core) && core.find("audio") == std::string_view::npos;
}

std::vector<Shard> plan_shards(const ConvertOptions& options, const Checkpoint& source,
                               const Profile& profile) {
  const bool assistant = profile.role == ModelRole::kAssistant;
  std::vector<Shard> shards(1);
  std::uint64_t filled = 0;
  for (const ManifestEntry& entry : make_manifest(profile)) {
    if (entry.name == "rope_freqs.weight") continue;  // the config says it
    std::uint64_t bytes = 0;
    std::vector<Item> items = items_of(entry, *source.tensor(entry.name), options.target, assistant);
    for (const Item& item : items) bytes += item.plan.bytes();
    if (filled != 0 && filled + bytes > options.shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    std::move(items.begin(), items.end(), std::back_inserter(shards.back().items));
  }
  const std::size_t count = shards.size();
  for (std::size_t i = 0; i < count; ++i)
    shards[i].name =
        count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
  if (!options.keep_vision) return shards;
  Shard vision;
  vision.name = kVisionFile;
  const std::string prefix = options.target.form == ConvertTarget::Form::kMlx ? "" : "model.";
  for (const TensorView& view : source.tensors()) {
    if (!is_image_part(view.name)) continue;
    if (view.type == StorageType::kAffine)
      fail(ErrorCode::kUsage, "--keep-vision: {} is stored as {}; start from the original checkpoint (bf16)",
           view.name, view.storage_name());
    vision.items.push_back({{prefix + view.name, dtype_of(view.type), view.shape},
                            &view,
                            RowForm::of(view.type),
                            Item::Part::kAsIs});
  }
  if (vision.items.empty()) fail(ErrorCode::kUsage, "--keep-vision: {} has no image tensors", options.source);
  shards.push_back(std::move(vision));
  return shards;
}

std::string read_text(const fs::path& path) {
  const auto file = MappedFile::open(path.string());
  return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
}

void write_text(const fs::path& path, std::string_view text) {
  OutputFile file(path.string());
  file.write(text);
  file.commit();
}

// Of which source and options the files are.
Json identity_of(const ConvertOptions& options, const Checkpoint& source) {
  Json identity;
  identity["target"] = options.target.name();
  identity["keep_vision"] = options.keep_vision;
  identity["shard_bytes"] = options.shard_bytes;
  for (const std::string& path : source.files()) {
    const auto modified = fs::last_write_time(path).time_since_epoch().count();
    identity["source"].push_back(
        {fs::path(path).filename().string(), fs::file_size(path), static_cast<std::int64_t>(modified)});
  }
  return identity;
}

// The folder is new, empty, or left by an interrupted run of the same conversion; then its state.
Json open_folder(const fs::path& folder, const Json& identity) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::kUsage, "cannot make the folder {}: {}", folder.string(), error.message());
  const fs::path state_path = folder / kState;
  if (fs::exists(state_path)) {
    Json state = Json::parse(read_text(state_path), nullptr, false);
    if (!state.is_object() || state.value("of", Json()) != identity)
      fail(ErrorCode::kUsage,
           "{} holds an unfinished conversion of another source or target; remove it first", folder.string());
    return state;
  }
  if (!fs::is_empty(folder))
    fail(ErrorCode::kUsage, "{} is not empty; name a new folder with -o", folder.string());
  Json state;
  state["of"] = identity;
  state["sums"] = Json::object();
  write_text(state_path, state.dump());
  return state;
}

std::uint64_t sum_of_file(const fs::path& path) {
  const auto file = MappedFile::open(path.string());
  ByteSum sum;
  sum.add(file->bytes());
  return sum.value();
}

// Whether `path` is the whole file of the plan: each tensor with its type and shape, in this order.
bool matches(const fs::path& path, const Shard& shard) {
  try {
    const SafetensorsFile file = SafetensorsFile::open(path.string());
    return std::equal(file.tensors().begin(), file.tensors().end(), shard.items.begin(), shard.items.end(),
                      [](const SafetensorsView& view, const Item& item) {
                        return view.name == item.plan.name && view.dtype == item.plan.dtype &&
                               view.shape == item.plan.shape;
                      });
  } catch (const Error&) {
    return false;
  }
}

class FolderWriter {
 public:
  FolderWriter(const ConvertOptions& options, RowEncoder& encoder, std::vector<Shard> shards)
      : options_(options), encoder_(encoder), shards_(std::move(shards)), folder_(options.out) {
    for (const Shard& shard : shards_) total_ += shard.bytes();
  }

  void write_shards(Json& state, ConvertReport& report);
  void write_index() const;
  std::uint64_t total() const { return total_; }

 private:
  std::uint64_t write_shard(const Shard& shard);
  void advance(std::uint64_t bytes) {
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_);
  }

  const ConvertOptions& options_;
  RowEncoder& encoder_;
  std::vector<Shard> shards_;
  fs::path folder_;
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
};

// Writes the file, reads it back, and gives the sum of its bytes.
std::uint64_t FolderWriter::write_shard(const Shard& shard) {
  std::vector<std::uint64_t> sums;
  auto item = shard.items.begin();
  const std::map<std::string, std::string> metadata = {
      {"format", options_.target.form == ConvertTarget::Form::kMlx ? "mlx" : "pt"}};
  const std::string path = (folder_ / shard.name).string();
  write_safetensors(path, shard.plans(), metadata, [&](const SafetensorsPlan&, const SafetensorsSink& sink) {
    ByteSum sum;
    const auto pass = [&](std::span<const std::byte> bytes) {
      sum.add(bytes);
      sink(bytes);
      advance(bytes.size());
    };
    switch (item->part) {
      case Item::Part::kRows:
        encoder_.run(*item->source, item->form, pass);
        break;
      case Item::Part::kScales:
        pass(encoder_.scales());
        break;
      case Item::Part::kBiases:
        pass(encoder_.biases());
        break;
      case Item::Part::kAsIs:
        pass(item->source->bytes);
        break;
    }
    sums.push_back(sum.value());
    ++item;
  });
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    ByteSum sum;
    sum.add(file.at(shard.items[i].plan.name).bytes);
    if (sum.value() != sums[i])
      fail(ErrorCode::kFailed, "{}: tensor {} does not read back as it was written", path,
           shard.items[i].plan.name);
  }
  return sum_of_file(path);
}

void FolderWriter::write_shards(Json& state, ConvertReport& report) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename().string().find(".safetensors.part-") != std::string::npos)
      fs::remove(entry.path());  // of a run that was killed
  }
  for (const Shard& shard : shards_) {
    const fs::path path = folder_ / shard.name;
    const Json& known = state["sums"].contains(shard.name) ? state["sums"][shard.name] : Json();
    if (known.is_number_unsigned() && fs::exists(path) && matches(path, shard) &&
        sum_of_file(path) == known.get<std::uint64_t>()) {
      ++report.resumed;
      advance(shard.bytes());
    } else {
      const std::uint64_t sum = write_shard(shard);
      state["sums"][shard.name] = sum;
      write_text(folder_ / kState, state.dump());
    }
    report.files.push_back(path.string());
    report.bytes += fs::file_size(path);
  }
}

void FolderWriter::write_index() const {
  Json index;
  index["metadata"]["total_size"] = total_;
  std::map<std::string, std::string> map;
  for (const Shard& shard : shards_) {
    for (const Item& item : shard.items) map.emplace(item.plan.name, shard.name);
  }
  index["weight_map"] = map;
  write_text(folder_ / kIndex, index.dump(2) + "\n");
}

// The source's config, with the widths of the target.
void write_config(const ConvertOptions& options) {
  Json config = Json::parse(read_text(fs::path(options.source) / "config.json"));
  config.erase("quantization");
  config.erase("quantization_config");
  if (options.target.form == ConvertTarget::Form::kMlx) {
    Json widths;
    widths["group_size"] = options.target.affine.group;
    widths["bits"] = options.target.affine.bits;
    widths["mode"] = "affine";
    config["quantization"] = widths;
    config["quantization_config"] = widths;
  }
  write_text(fs::path(options.out) / "config.json", config.dump(2) + "\n");
}

}  // namespace

void write_folder(const ConvertOptions& options, const Checkpoint& source, const Profile& profile,
                  RowEncoder& encoder, ConvertReport& report) {
  FolderWriter writer(options, encoder, plan_shards(options, source, profile));
  Json state = open_folder(options.out, identity_of(options, source));
  writer.write_shards(state, report);
  writer.write_index();
  write_config(options);
  for (const char* name : kCompanions) {
    const fs::path from = fs::path(options.source) / name;
    if (fs::exists(from)) write_text(fs::path(options.out) / name, read_text(from));
  }
  fs::remove(fs::path(options.out) / kState);
}

}  // namespace gem
