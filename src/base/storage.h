// Storage types: how a tensor's elements lie in memory, and the scalar conversions to and from f32.
// Block layouts are those of GGUF (ggml-common.h); the reference formulas are in docs/models.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gem {

enum class StorageType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kAffine  // MLX's: codes, scales and biases in three tensors (base/affine.h); no GGUF type
};
inline constexpr int kStorageTypes = 11;  // those that are one run of blocks: all but kAffine

struct StorageInfo {
  std::string_view name;         // as people write it: "Q4_0", "BF16"
  std::uint32_t block_elements;  // elements that share one block; a row is a whole number of blocks
  std::uint32_t block_bytes;
  std::uint32_t ggml_id;  // id in a GGUF tensor info
};

const StorageInfo& storage_info(StorageType type);
std::optional<StorageType> storage_from_ggml(std::uint32_t ggml_id);
std::optional<StorageType> storage_from_name(std::string_view name);

// Bytes of `elements` contiguous elements; nothing when they are no whole number of blocks, the size
// overflows, or the type is kAffine, whose width the type does not tell.
std::optional<std::uint64_t> storage_bytes(StorageType type, std::uint64_t elements);

// Expands `elements` (a multiple of the block length) from `source` to f32, one rounding per product as the
// reference does: (d * scale) first, then times the integer, in f32.
void dequantize(StorageType type, const void* source, float* out, std::size_t elements);

// Rounds f32 to storage: F32, F16, BF16 (nearest even), Q4_0 and Q8_0 by llama.cpp's reference rule
// (Q4_0: d = the value of largest magnitude / -8; Q8_0: d = max|x| / 127). Other types are not written by
// gem.
// Block types whose elements are scale * code + minimum, with a scale and minimum for every `group` elements.
// Signed ones have no minimum.
struct CodeInfo {
  std::uint32_t bits;
  std::uint32_t group;
  bool is_signed;
};
// Nothing for types that are not read so: floating point, and Q4_0 and Q8_0, whose blocks are used as they
// are.
std::optional<CodeInfo> code_info(StorageType type);
// Whole blocks: `elements` codes (bytes; of signed types two's complement), and elements / group scales and
// minima (the latter untouched by signed types).
void read_codes(StorageType type, const void* source, std::size_t elements, std::uint8_t* codes,
                float* scales, float* minima);

bool can_quantize(StorageType type);
void quantize(StorageType type, const float* source, void* out, std::size_t elements);

}  // namespace gem
