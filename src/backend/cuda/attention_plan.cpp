#include "backend/cuda/attention_plan.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace gem::cuda {
namespace {

// Units that a block works on at once (Unit<D>::kAtOnce).
std::uint32_t units_at_once(std::uint32_t head_dim) {
  const std::uint32_t width = (head_dim + 31) / 32;
  return width == 1 || width == 2 || width == 4 || width == 8 ? 16 / width : 1;
}

std::uint32_t tasks_of(std::uint32_t chunks, std::uint32_t of_task) {
  return (chunks + of_task - 1) / of_task;
}

// What a task costs beside its keys, in blocks of keys: its queries, and writing what comes of it.
constexpr float kOfTask = 1.0f;
constexpr std::uint32_t kMostChunksOfTask = 16;

// `runs`: chunks of each; `units`: of attention for each task; `at_once`: that the device works on.
std::uint32_t chunks_of_task(std::span<const std::uint32_t> runs, std::uint32_t units, std::uint32_t at_once,
                             float blocks_of_chunk) {
  std::uint32_t best = 1;
  float least = std::numeric_limits<float>::infinity();
  for (std::uint32_t n = 1; n <= kMostChunksOfTask; ++n) {
    std::uint32_t tasks = 0;
    for (const std::uint32_t chunks : runs) tasks += tasks_of(chunks, n);
    const std::uint32_t rounds = (tasks * units + at_once - 1) / at_once;
    const float cost = static_cast<float>(rounds) * (kOfTask + static_cast<float>(n) * blocks_of_chunk);
    if (cost < least) {
      least = cost;
      best = n;
    }
  }
  return best;
}

}  // namespace

AttentionWork plan_attention(std::span<RowInfo> rows, int kind, const AttentionLayers& layers,
                             std::uint32_t processors) {
  AttentionWork work;
  const std::uint32_t block = key_block(layers.head_dim);
  std::vector<std::uint32_t> runs;  // chunks
  std::uint32_t longest_chunk = block;
  for (std::uint32_t r = 0; r < rows.size(); ++r) {
    RowInfo& row = rows[r];
    const KeyChunks chunks =
        key_chunks(first_key(row.position, layers.window), row.last_key, block, layers.kv_heads);
    row.chunk_length[kind] = chunks.length;
    row.first_chunk[kind] = chunks.first;
    row.unit_count[kind] = static_cast<std::uint16_t>(chunks.count);
    row.first_unit[kind] = work.units;
    work.units += chunks.count;
    const bool goes_on = row.span_first < r && rows[r - 1].chunk_length[kind] == chunks.length;
    row.in_run[kind] = goes_on ? static_cast<std::uint16_t>(rows[r - 1].in_run[kind] + 1) : std::uint16_t{0};
    if (!goes_on) runs.push_back(0);
    runs.back() = chunks.first + chunks.count - rows[r - row.in_run[kind]].first_chunk[kind];
    work.longest = std::max(work.longest, row.in_run[kind] + 1u);
    longest_chunk = std::max(longest_chunk, chunks.length);
  }
  const std::uint32_t together = rows_together(work.longest, layers.heads / layers.kv_heads, kMaxGroup);
  const std::uint32_t parts = (work.longest + together - 1) / std::max(together, 1u);
  work.chunks_of_task =
      chunks_of_task(runs, layers.kv_heads * parts, processors * units_at_once(layers.head_dim),
                     static_cast<float>(longest_chunk) / static_cast<float>(block));
  std::size_t run = 0;
  for (std::uint32_t r = 0; r < rows.size(); ++r) {
    if (rows[r].in_run[kind] == 0) {
      rows[r].first_task[kind] = work.tasks;
      work.tasks += tasks_of(runs[run++], work.chunks_of_task);
    } else {
      rows[r].first_task[kind] = rows[r - 1].first_task[kind];
    }
  }
  return work;
}

}  // namespace gem::cuda
