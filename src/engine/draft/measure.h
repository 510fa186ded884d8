// What drafting costs on this machine.
#pragma once

#include <cstdint>

#include "engine/draft/depth.h"
#include "engine/draft/drafter.h"
#include "model/model.h"

namespace gem {

// Times rounds with all their logits, of 1 to 16 rows of one stream and of as many more as `streams` streams
// with `most` drafts each can bring (32, 64, … rows, shared by streams), and the drafter's steps for 1 to 16
// streams, in caches of the plan's kind. Takes some thirty rounds, fewer where a round takes long: wide
// rounds that would take more than a second are left to the line through those before.
DraftCosts measure_costs(const Model& model, Backend& backend, Drafter& drafter, const KvPlan& plan,
                         std::uint32_t streams, std::uint32_t most);

}  // namespace gem
