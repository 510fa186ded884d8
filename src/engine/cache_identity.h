// What the bits of a kept state depend on, as a name: states on disk are resumed under an equal one only.
#pragma once

#include <string>

#include "backend/backend.h"
#include "backend/kv_cache.h"
#include "model/model.h"

namespace gem {

// 64 hex digits: SHA-256 over
// - the program: its file's bytes (other versions may round elsewhere),
// - the backend's name and instruction set or device, not its threads,
// - the plan as far as rows have it: type, window, rings, every layer's width; not the context's length,
// - the checkpoint: metadata, its tensors' names, shapes and storage, 16 pages of 4 KiB spread evenly over
// each
//   tensor, and the size and time of change of every file.
// Reading all of a large checkpoint's weights would take as long as loading it. An edit of weights between
// the pages shows in the file's time; only one that sets the time back afterwards would go unseen.
std::string cache_identity(const Model& model, const Backend& backend, const KvPlan& plan);

}  // namespace gem
