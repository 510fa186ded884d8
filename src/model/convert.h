// Converting a checkpoint: Google's release (bf16 safetensors) or a GGUF file of floats to MLX affine, GGUF
// Q4_0 or Q8_0, or bf16. Tensors pass through in pieces, so that memory stays bounded whatever the model's
// size; the same source and options give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/affine.h"
#include "formats/checkpoint.h"
#include "formats/gguf_writer.h"
#include "model/profile.h"

namespace gem {

struct ConvertTarget {
  enum class Form : std::uint8_t { kMlx, kBf16, kGguf };
  Form form = Form::kMlx;
  Affine affine;                           // kMlx: bits and group
  StorageType type = StorageType::kBF16;   // kGguf, kBf16: of the matrices
  StorageType table = StorageType::kBF16;  // kGguf: of the token table

  // "mlx-q4g64" and the other widths (2, 3, 4, 5, 6, 8) and groups (32, 64, 128; "mlx-q4" has groups of 64),
  // "gguf-q4_0" (with a Q8_0 table), "gguf-q8_0", "bf16". Error(kUsage) for others.
  static ConvertTarget parse(std::string_view name);
  std::string name() const;
};

struct ConvertOptions {
  std::string source;  // a folder or a GGUF file
  std::string out;     // a folder; of a GGUF target a file
  ConvertTarget target;
  bool keep_vision = false;  // the image tensors beside the text, as they are
  bool any_geometry = false;
  unsigned threads = 0;
  std::uint64_t shard_bytes = std::uint64_t{5} << 30;  // of one safetensors file, unless one module has more
  // Adds the keys tokenizer.ggml.* to a GGUF file made from a folder (the model layer knows no tokenizer).
  std::function<void(const Checkpoint& source, GgufWriter& writer)> add_tokenizer = {};
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};  // bytes written
};

struct ConvertReport {
  std::string title;               // of the profile
  std::vector<std::string> files;  // written or found complete
  std::uint64_t bytes = 0;         // of the tensors' files
  std::uint64_t resumed = 0;       // files of an earlier run that were kept
  std::uint64_t rows_checked = 0;  // matrix rows read back and held against the source
  double relative_error = 0;       // root of their squared error over their squares
};

// Admits the source (profile and manifest), writes, reopens what was written, admits it again and holds rows
// of every matrix against the source. A folder that an interrupted run of the same source and target left is
// gone on with, file by file. Error(kUsage) for a target that the source cannot give, Error(kFailed) when
// what is read back is not what was written.
ConvertReport convert_checkpoint(const ConvertOptions& options);

}  // namespace gem
