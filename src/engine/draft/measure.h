// What drafting costs on this machine.
#pragma once

#include "engine/draft/depth.h"
#include "engine/draft/drafter.h"
#include "model/model.h"

namespace gem {

// Times rounds of 1 to 16 rows of one stream with all their logits, and the drafter's steps for 1 to 4
// streams, in caches of the plan's kind. Takes some twenty rounds, fewer where a round takes long.
DraftCosts measure_costs(const Model& model, Backend& backend, Drafter& drafter, const KvPlan& plan);

}  // namespace gem
