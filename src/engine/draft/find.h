// The drafter that a model is served with: an assistant that was named or lies beside it, and copies.
#pragma once

#include <memory>
#include <string>

#include "model/assistant.h"

namespace gem {

struct FoundAssistant {
  std::unique_ptr<Assistant> assistant;  // null: none
  std::string why_none;                  // in words: "no assistant lies beside the model"
};

// Looks beside the model's file or folder for `mtp-<its name>`, then for names that hold "assistant"
// (alphabetically), and takes the first that is an assistant of this model. Never throws for what it finds;
// what is there and does not fit is named in `why_none`.
FoundAssistant find_assistant(const Model& target, const AdmissionOptions& options);

// The assistant that is named (empty: none is; errors as Assistant::load), else one beside the model if
// `find`.
FoundAssistant open_assistant(const Model& target, const std::string& named, bool find,
                              const AdmissionOptions& options);

}  // namespace gem
