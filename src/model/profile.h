// Profiles: the exact geometry of each published model that gem serves. A checkpoint's metadata must equal
// one of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "backend/geometry.h"
#include "formats/checkpoint.h"

namespace gem {

enum class ModelRole : std::uint8_t {
  kTrunk,      // answers prompts
  kAssistant,  // the MTP drafter of a trunk: no keys and values of its own
};

struct Profile {
  std::string name;  // "12b", "31b-assistant", "demo"; "custom" for a geometry that is none of the known ones
  std::string title;  // as people call it: "Gemma 4 12B"
  ModelRole role = ModelRole::kTrunk;
  Geometry geometry;
  std::uint32_t backbone = 0;  // assistants: hidden width of the target; 0 for trunks
};

std::span<const Profile> known_profiles();
const Profile* find_profile(std::string_view name);  // nullptr when unknown

struct AdmissionOptions {
  bool any_geometry =
      false;  // admit a consistent Gemma 4 geometry that is no known profile (tests, experiments)
};

// Reads the geometry from the metadata and matches it. Error(kRefused) names the key, what was found and what
// was expected, and names models that gem knows but does not serve.
Profile read_profile(const Checkpoint& checkpoint, const AdmissionOptions& options);

}  // namespace gem
