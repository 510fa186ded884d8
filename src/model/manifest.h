// The manifest: every tensor that a profile must have, with its shape and the storage types allowed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "model/profile.h"

namespace gem {

enum class TensorRole : std::uint8_t {
  kMatrix,  // any storage type whose blocks divide the row
  kVector,  // F32
};

struct ManifestEntry {
  std::string name;
  std::vector<std::uint64_t> shape;  // row-major
  TensorRole role = TensorRole::kMatrix;
};

// 667 entries for the 12B, 833 for the 31B, 49 for an assistant.
std::vector<ManifestEntry> make_manifest(const Profile& profile);

// Error(kRefused) listing (up to ten of) the missing, extra, misshapen or wrongly stored tensors by name,
// with what was expected. Vision and audio tensors ("v.", "a.", "mm.", "vision_tower." and its like) are
// allowed beside the manifest.
void check_manifest(const Checkpoint& checkpoint, const Profile& profile);
bool is_media_tensor(std::string_view name);

}  // namespace gem
