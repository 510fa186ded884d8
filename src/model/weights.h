// Binding: a checkpoint's tensors to the layer contract, after the manifest holds. Matrices stay views into
// the mapping; vectors are copied and must be finite.
#pragma once

#include "backend/geometry.h"
#include "formats/checkpoint.h"
#include "model/profile.h"

namespace gem {

// Error(kRefused) when a vector holds NaN or infinity or rope_freqs.weight is not 1 for the rotated quarter
// of the pairs and huge for the rest. An assistant's target table is left to its caller.
Weights bind_weights(const Checkpoint& checkpoint, const Profile& profile);

}  // namespace gem
