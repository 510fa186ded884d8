#include "model/convert.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"
#include "base/thread_pool.h"
#include "formats/hf_names.h"
#include "model/convert_folder.h"
#include "model/convert_rows.h"
#include "model/manifest.h"

namespace gem {

ConvertTarget ConvertTarget::parse(std::string_view name) {
  ConvertTarget target;
  if (name == "bf16") {
    target.form = Form::kBf16;
    return target;
  }
  if (name == "gguf-q4_0" || name == "gguf-q8_0") {
    target.form = Form::kGguf;
    target.type = name == "gguf-q4_0" ? StorageType::kQ4_0 : StorageType::kQ8_0;
    target.table = StorageType::kQ8_0;
    return target;
  }
  constexpr std::string_view kMlx = "mlx-q";
  if (name.starts_with(kMlx)) {
    const std::string_view rest = name.substr(kMlx.size());
    const std::size_t g = rest.find('g');
    const auto number = [](std::string_view text) {
      std::uint32_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      return error == std::errc() && end == text.data() + text.size() && text.size() < 4 ? value : 0;
    };
    target.affine.bits = number(rest.substr(0, g));
    target.affine.group = g == std::string_view::npos ? 64 : number(rest.substr(g + 1));
    if (Affine::knows_bits(target.affine.bits) && Affine::knows_group(target.affine.group)) return target;
  }
  fail(ErrorCode::kUsage,
       "unknown target {:?}; known: mlx-q4g64 (2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or 128), gguf-q4_0, "
       "gguf-q8_0, bf16",
       name);
}

std::string ConvertTarget::name() const {
  if (form == Form::kBf16) return "bf16";
  if (form == Form::kGguf) return type == StorageType::kQ4_0 ? "gguf-q4_0" : "gguf-q8_0";
  return fmt::format("mlx-q{}g{}", affine.bits, affine.group);
}

namespace {

bool is_float(StorageType type) {
  return type == StorageType::kF32 || type == StorageType::kF16 || type == StorageType::kBF16;
}

// Keys of one container that mean nothing in another, and those that are written anew.
bool is_own_key(std::string_view key) {
  return key == "tokenizer.huggingface.json" || key == "gem.tokenizer_config" || key == "gem.model_type" ||
         key == "general.file_type" || key == "general.quantization_version" || key == "general.alignment" ||
         key.starts_with("split.");
}

void add_metadata(const ConvertOptions& options, const Checkpoint& source, const Profile& profile,
                  GgufWriter& writer) {
  for (const auto& [key, value] : source.metadata()) {
    if (!is_own_key(key)) writer.add_value(key, value);
  }
  const std::string prefix(profile.role == ModelRole::kAssistant ? "gemma4-assistant." : "gemma4.");
  const auto add = [&](const std::string& key, std::uint32_t value) {
    if (source.find(key) == nullptr) writer.add(key, value);
  };
  // What readers of GGUF expect beside the keys that a config gives.
  const auto length = [&](const char* key) {
    return static_cast<std::uint32_t>(source.integer(prefix + key).value_or(0));
  };
  for (const char* key : {"attention.value_length", "rope.dimension_count"})
    add(prefix + key, length("attention.key_length"));
  for (const char* key : {"attention.value_length_swa", "rope.dimension_count_swa"})
    add(prefix + key, length("attention.key_length_swa"));
  if (profile.role == ModelRole::kAssistant) {
    const auto layers = static_cast<std::uint32_t>(profile.geometry.layers.size());
    add(prefix + "attention.shared_kv_layers", layers);
    add(prefix + "nextn_predict_layers", layers);
  } else {
    add(prefix + "attention.shared_kv_layers", 0);
    add(prefix + "embedding_length_per_layer_input", 0);
  }
  writer.add("general.file_type", std::uint32_t{options.target.type == StorageType::kQ4_0 ? 2u : 7u});
  writer.add("general.quantization_version", std::uint32_t{2});
  if (source.find("tokenizer.huggingface.json") != nullptr &&
      source.find("tokenizer.ggml.tokens") == nullptr && options.add_tokenizer)
    options.add_tokenizer(source, writer);
}

void write_gguf(const ConvertOptions& options, const Checkpoint& source, const Profile& profile,
                RowEncoder& encoder, ConvertReport& report) {
  GgufWriter writer;
  add_metadata(options, source, profile, writer);
  for (const ManifestEntry& entry : make_manifest(profile)) {
    const StorageType type = entry.role == TensorRole::kVector   ? StorageType::kF32
                             : entry.name == "token_embd.weight" ? options.target.table
                                                                 : options.target.type;
    writer.add_tensor(entry.name, type, entry.shape);
  }
  std::uint64_t done = 0;
  std::vector<std::uint64_t> sums;
  writer.write(options.out, [&](const GgufWriter::Tensor& tensor, const GgufWriter::Sink& sink) {
    ByteSum sum;
    const TensorView& view = *source.tensor(tensor.name);
    encoder.run(view, RowForm::of(tensor.type), [&](std::span<const std::byte> bytes) {
      sum.add(bytes);
      sink(bytes);
      done += bytes.size();
      if (options.progress) options.progress(done, writer.file_bytes());
    });
    sums.push_back(sum.value());
  });
  report.files.push_back(options.out);
  report.bytes = writer.file_bytes();
  const Checkpoint written = open_checkpoint(options.out);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const TensorView* view = written.tensor(writer.tensors()[i].name);
    ByteSum sum;
    if (view != nullptr) sum.add(view->bytes);
    if (view == nullptr || sum.value() != sums[i])
      fail(ErrorCode::kFailed, "{}: tensor {} does not read back as it was written", options.out,
           writer.tensors()[i].name);
  }
}

// The largest difference that rounding to the stored form may make, for column `i` of a row.
float rounding_bound(const TensorView& view, std::size_t row, std::size_t i, float exact) {
  const std::size_t cols = view.shape[1];
  switch (view.type) {
    case StorageType::kAffine: {
      // A step, since the far edge may clip by half of one, and the rounding of scale and bias to 8 bits.
      const Affine& a = view.affine;
      const std::size_t index = row * (cols / a.group) + i / a.group;
      const auto top = static_cast<float>((1u << a.bits) - 1);
      return std::fabs(a.scale(index)) * (1 + top / 256) + std::fabs(a.bias(index)) / 256;
    }
    case StorageType::kQ4_0:
    case StorageType::kQ8_0: {
      const StorageInfo& info = storage_info(view.type);
      std::uint16_t half;
      std::memcpy(&half, view.bytes.data() + (row * cols + i) / 32 * info.block_bytes, sizeof half);
      return std::fabs(f16_to_f32(half)) * 1.07f;
    }
    default:
      return std::fabs(exact) / 128;
  }
}

// Rows of every matrix, first, middle and last, against the source.
void check_rows(const Checkpoint& source, const Checkpoint& written, const Profile& profile,
                ConvertReport& report) {
  double squares = 0;
  double errors = 0;
  for (const ManifestEntry& entry : make_manifest(profile)) {
    if (entry.role != TensorRole::kMatrix) continue;
    const TensorView& view = *written.tensor(entry.name);
    const Matrix from = matrix_of(*source.tensor(entry.name));
    const Matrix to = matrix_of(view);
    std::vector<float> exact(from.cols);
    std::vector<float> found(from.cols);
    for (const std::size_t row : {std::size_t{0}, std::size_t{from.rows / 2}, std::size_t{from.rows} - 1}) {
      from.expand_row(row, exact.data());
      to.expand_row(row, found.data());
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const float error = std::fabs(found[i] - exact[i]);
        if (!(error <= rounding_bound(view, row, i, exact[i]) + 1e-30f))
          fail(ErrorCode::kFailed, "{}: element {} of row {} reads back as {}; the source has {}", entry.name,
               i, row, found[i], exact[i]);
        squares += double{exact[i]} * double{exact[i]};
        errors += double{error} * double{error};
      }
      ++report.rows_checked;
    }
  }
  report.relative_error = squares > 0 ? std::sqrt(errors / squares) : 0;
}

void check_source(const ConvertOptions& options, const Checkpoint& source, const Profile& profile) {
  const bool folder = source.find("gem.model_type") != nullptr;
  if (options.target.form != ConvertTarget::Form::kGguf && !folder)
    fail(
        ErrorCode::kUsage,
        "{} is a GGUF file, which has no config.json to write beside safetensors; from GGUF, gem converts to "
        "gguf-q4_0 and gguf-q8_0",
        options.source);
  if (options.target.form == ConvertTarget::Form::kGguf && options.keep_vision)
    fail(ErrorCode::kUsage,
         "--keep-vision: a GGUF file has no place for the image tensors (they go into a file of their own, "
         "which gem does not write yet)");
  for (const ManifestEntry& entry : make_manifest(profile)) {
    const TensorView& view = *source.tensor(entry.name);
    if (!is_float(view.type) && options.target.form != ConvertTarget::Form::kBf16)
      fail(ErrorCode::kUsage,
           "{} is stored as {}: rounding it again to {} would add both errors; start from the original "
           "checkpoint (bf16)",
           entry.name, view.storage_name(), options.target.name());
  }
}

}  // namespace

ConvertReport convert_checkpoint(const ConvertOptions& options) {
  const Checkpoint source = open_checkpoint(options.source);
  ConvertReport report;
  Profile profile;
  try {
    profile = read_profile(source, {.any_geometry = options.any_geometry});
    check_manifest(source, profile);
  } catch (const Error& e) {
    throw Error(e.code(), options.source + ": " + e.what());
  }
  report.title = profile.title;
  check_source(options, source, profile);
  ThreadPool pool(options.threads);
  RowEncoder encoder(source, pool);
  if (options.target.form == ConvertTarget::Form::kGguf) {
    write_gguf(options, source, profile, encoder, report);
  } else {
    write_folder(options, source, profile, encoder, report);
  }
  const Checkpoint written = open_checkpoint(options.out);
  const Profile again = read_profile(written, {.any_geometry = options.any_geometry});
  if (again.name != profile.name)
    fail(ErrorCode::kFailed, "{} reads back as {}; the source is {}", options.out, again.title,
         profile.title);
  check_manifest(written, again);
  check_rows(source, written, profile, report);
  return report;
}

}  // namespace gem
