// config.json and generation_config.json of a Gemma 4 checkpoint -> the metadata keys that a GGUF file has.
#pragma once

#include <cstdint>
#include <string>

#include "formats/checkpoint.h"
#include "formats/json_document.h"

namespace gem {

struct HfConfig {
  bool known = false;  // a Gemma 4 model or assistant; else only general.architecture is set, to be refused
  bool assistant = false;
  std::uint32_t vocab = 0;
  std::uint32_t full_head_dim = 0;  // of full layers; 0: there are none
  std::vector<bool> sliding;        // one a layer
};

// Fills `checkpoint` with general.architecture, gemma4.* or gemma4-assistant.*, the ids and
// gem.embedding_multiplier (sqrt(hidden) rounded to bf16, as these checkpoints are run). Error(kBadFile) for
// a field of the wrong type, Error(kRefused) for what gem does not compute, by name: experts, per-layer
// inputs and shared keys are left to the profile, which knows the models that have them.
HfConfig read_hf_config(const JsonFields& config, Checkpoint& checkpoint);

// Sampling defaults, end tokens and suppressed ids, over those of config.json.
void read_generation_config(const JsonFields& fields, const HfConfig& config, Checkpoint& checkpoint);

}  // namespace gem
