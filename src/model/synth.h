// A checkpoint of a published model's real geometry with random weights and a made-up vocabulary, for speed
// work: same bytes and operations as the real one, no meaning.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/storage.h"
#include "model/profile.h"

namespace gem {

struct SynthOptions {
  StorageType matrices = StorageType::kQ4_0;
  StorageType table = StorageType::kQ8_0;
  std::uint64_t seed = 1;
};

// Writes a GGUF file, of a trunk or an assistant; `progress` hears bytes written and in all. Error(kUsage)
// for a storage type that gem cannot write.
void write_synthetic(const Profile& profile, const std::string& path, const SynthOptions& options,
                     const std::function<void(std::uint64_t done, std::uint64_t total)>& progress);

}  // namespace gem
