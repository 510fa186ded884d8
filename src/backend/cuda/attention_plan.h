// How the work of attention in the decode rows of a round is divided.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/decode.h"

namespace gem::cuda {

// Sliding or full layers.
struct AttentionLayers {
  std::uint32_t head_dim = 0, heads = 0, kv_heads = 0;  // KV heads: the most of any layer
  std::uint32_t window = 0;                             // 0: all keys
};
struct AttentionWork {
  std::uint32_t units = 0;  // chunks of keys of all rows
  std::uint32_t tasks = 0;
  std::uint32_t chunks_of_task = 1;  // at most
  std::uint32_t longest = 0;         // run, in rows
};

// Fills in the chunks, runs and tasks of the decode rows (RowInfo), whose positions and spans are known. A
// task is some neighbouring chunks of a run: one where that gives the device enough to do, else as many as
// end soonest, since every task prepares its queries anew. Which results a row gets does not depend on it.
AttentionWork plan_attention(std::span<RowInfo> rows, int kind, const AttentionLayers& layers,
                             std::uint32_t processors);

}  // namespace gem::cuda
