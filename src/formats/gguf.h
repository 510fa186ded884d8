// Reading the GGUF container, versions 2 and 3 (layout: docs/models.md).
//
// A file is mapped, never copied: strings and tensors are views into the mapping, so opening costs memory for
// the tables only. Every length is checked against the bytes that are left before anything is allocated for
// it.
//
// A mapping follows the file. Whoever truncates the file in place while it is open makes the pages beyond the
// new end unreadable, and the kernel answers the next access with SIGBUS. No check at opening can prevent
// that and a library must not install signal handlers, so the rule is: replace model files by renaming a new
// one into place (as the writers of gem do), never by writing into them. The old mapping then stays whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/checkpoint.h"

namespace gem {

// Bounds of one file. The counts and lengths of real files are far below; they bound what a hostile file can
// cost.
struct GgufLimits {
  static constexpr std::uint64_t kKeys = 1u << 16;
  static constexpr std::uint64_t kTensors = 1u << 16;
  static constexpr std::uint64_t kKeyBytes = (1u << 16) - 1;  // the format's own limit
  static constexpr std::uint64_t kNameBytes = 63;             // ggml keeps names in 64 bytes with the NUL
  static constexpr std::uint64_t kStringBytes = 1u << 30;     // llama.cpp's limit
  static constexpr std::uint64_t kArrayElements = 1u << 30;   // llama.cpp's limit
  static constexpr std::uint64_t kNarrowArrayElements = 1u << 20;  // 8- and 16-bit integers, kept as 64-bit
  static constexpr std::uint64_t kAlignment = 1u << 24;
  static constexpr std::uint64_t kSplitFiles = 99999;  // five digits in the name
};

// Reads one GGUF image from memory into `checkpoint`, without regard to split.* keys. `where` names it in
// messages. The views in `checkpoint` point into `bytes`.
void read_gguf(std::span<const std::byte> bytes, const std::string& where, Checkpoint& checkpoint);

// Opens a GGUF file; the first part of a split set ("NAME-00001-of-0000N.gguf") opens all parts.
Checkpoint open_gguf(const std::string& path);

// Name of a ggml tensor type id, for messages: "IQ4_NL"; empty when ggml has no such type.
std::string_view ggml_type_name(std::uint32_t id);

}  // namespace gem
