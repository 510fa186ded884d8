// Attention of the cpu backend: softmax(q . k) v of every query head over the keys that its row sees.
//
// A row's keys are taken in chunks of kChunkKeys at fixed positions, with a running maximum (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018); kSplitKeys of them form a split, and the
// splits of a row are merged oldest first. Positions alone decide where chunks and splits begin, so a row's
// bits depend neither on how many rows are computed together, nor on who computes its splits, nor on where
// the ring of a cache wraps.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/cpu_cache.h"
#include "backend/cpu/kernels.h"
#include "base/thread_pool.h"

namespace gem::cpu {

// Keys and values of a split are read twice at most by one core; short rows have one split.
inline constexpr std::uint32_t kSplitKeys = 1024;
static_assert(kSplitKeys % kChunkKeys == 0);

struct AttentionRow {
  const CpuCache* cache;
  std::uint32_t first;  // oldest key it sees
  std::uint32_t last;   // its own position
  const float* query;   // [heads, head_dim]
  float* out;           // the same shape
};

struct AttentionShape {
  std::size_t layer;
  std::size_t heads;  // query heads
  std::size_t kv_heads;
  std::size_t dim;  // of a head
};

class Attention {
 public:
  void run(const AttentionShape& shape, std::span<const AttentionRow> rows, const Kernels& kernels,
           ThreadPool& pool);

  // Most bytes that run() keeps for rounds of `rows` rows over at most `keys` keys.
  static std::uint64_t bytes(const AttentionShape& shape, std::uint64_t rows, std::uint64_t keys,
                             unsigned threads);

 private:
  std::vector<float> states_;                // of all splits, where they are shared among threads
  std::vector<std::vector<float>> scratch_;  // a thread
};

}  // namespace gem::cpu
