// Attention of the decode kernel: head norms, RoPE and the cache's new rows, then a row's keys in chunks,
// each a maximum, a sum and a weighted sum of values, which are merged in order of the chunks.
//
// A unit of work is a chunk of keys for one KV head (some neighbouring ones, one after the other, where there
// are many), whose query heads share every key and value that is read, and with them rows of a span that see
// the same chunk (or a share of these queries, where the memory does not hold them all). What a query gets
// does not depend on the others. Of rows that are few in their spans a unit prepares what it needs of this
// round's keys itself (the rows of one span may see each other): several units write the same bits to the
// same place.
#pragma once

#include "backend/cuda/decode_operand.cuh"
#include "backend/cuda/kv_element.cuh"

namespace gem::cuda {

// Words after each row of a shared matrix: fragments without conflicts.
constexpr std::uint32_t kRowPad = 16;

// Geometry of a unit for head widths up to D (a power of two from 32 to 512).
template <int D>
struct Unit {
  static constexpr int kUnitWarps = D / 32;                 // that work on a unit
  static constexpr int kKeys = D / 4 < 32 ? 32 : D / 4;     // at a time
  static constexpr int kKeyTiles = kKeys / kUnitWarps / 8;  // tiles of 8 keys of a warp
  static constexpr int kColumns = D / kUnitWarps;           // of the head's width, of a warp
  static constexpr int kOutTiles = kColumns / 8;
  static constexpr int kThreadsOf = kUnitWarps * 32;
  static constexpr int kAtOnce = kWarps / kUnitWarps;         // units in a block
  static constexpr std::uint32_t kQueryStride = D + kRowPad;  // words
  static constexpr std::uint32_t kScoreStride = kKeys + 4;
  static constexpr std::uint32_t kProbStride = kKeys + kRowPad;
  // Of one unit with `group` query heads: queries and probabilities in two halves, scores, three floats a
  // head.
  static constexpr std::uint32_t bytes(std::uint32_t group) {
    return (group * (kQueryStride + kScoreStride + kProbStride + 3) * 4 + 127) / 128 * 128;
  }
};

// Queries and probabilities are A operands whose rows r (r = lane / 4) are the high halves of eight heads and
// whose rows r + 8 are the low ones: one product serves both. Of a group of 32 elements of the summed
// dimension lane j of four takes elements 8j .. 8j + 7, in two steps of two pairs (which element a step calls
// k does not matter as long as both operands agree, and so 16 bytes of B are read at once). A row in shared
// memory: groups of 32 words, [step][lane j] four words each: high and low halves of the first pair, then of
// the second.
__device__ __forceinline__ void store_split(std::uint32_t* row, std::uint32_t element, float x) {
  const std::uint32_t in_lane = element % 8;
  std::uint32_t* words =
      row + element / 32 * 32 + in_lane / 4 * 16 + element % 32 / 8 * 4 + in_lane % 4 / 2 * 2;
  __half* high = reinterpret_cast<__half*>(words) + element % 2;
  *high = __float2half_rn(x);
  high[2] = __float2half_rn(x - __half2float(*high));
}

// Four neighbouring elements, the first a multiple of four.
__device__ __forceinline__ void store_split(std::uint32_t* row, std::uint32_t element, float4 x) {
  const SplitPair a = split(x.x, x.y);
  const SplitPair b = split(x.z, x.w);
  *reinterpret_cast<uint4*>(row + element / 32 * 32 + element % 8 / 4 * 16 + element % 32 / 8 * 4) =
      make_uint4(a.high, a.low, b.high, b.low);
}

// The angles of all rows: formed and reduced in float64, so that they stay exact at long positions.
__device__ __forceinline__ void make_turns(const DecodeJob& job) {
#pragma unroll 1
  for (std::uint32_t i = block_index() * kThreads + thread_index(); i < job.row_count * 2 * kMostPairs;
       i += gridDim.x * kThreads) {
    const std::uint32_t kind = i / kMostPairs % 2;
    const std::uint32_t pair = i % kMostPairs;
    if (pair >= job.head_dims[kind] / 2) continue;
    constexpr double kHalfTurn = 3.141592653589793238462643383280;
    const double turns = static_cast<double>(job.rows[i / (2 * kMostPairs)].position) *
                         job.frequencies[kind][pair] / (2 * kHalfTurn);
    float2 turn;
    sincospif(static_cast<float>(2 * (turns - rint(turns))), &turn.y, &turn.x);
    job.turns[i] = turn;
  }
}
__device__ __forceinline__ const float2* turns_of(const DecodeJob& job, std::uint32_t row,
                                                  std::uint32_t kind) {
  return job.turns + (std::size_t{row} * 2 + kind) * kMostPairs;
}

enum class HeadKind { kQuery, kKey, kValue };

// A head of one row after its norm (and RoPE), by a warp: a lane has four neighbouring elements of the first
// half, u[i] from element 4 (lane + 32 i) on, and v[i], half of the width later.
template <int D, int Pieces>
struct HeadVector {
  static constexpr int kQuads = D <= 256 ? 1 : D / 256;
  float4 u[kQuads], v[kQuads];

  static __device__ __forceinline__ std::uint32_t element(int i) {
    return (thread_index() % 32 + 32u * i) * 4;
  }

  // `turns`: cosine and sine of the row's angles. All that is needed is asked for before the first is used.
  // (The width of heads is a multiple of eight.)
  __device__ void load(const Parts& qkv, std::uint32_t row, std::uint32_t column, HeadKind kind,
                       const DecodeLayer& layer, const float2* turns, float epsilon) {
    const std::uint32_t half = layer.shape.head_dim / 2;
    const bool turned = kind != HeadKind::kValue;
    const float* weight = kind == HeadKind::kQuery ? layer.q_norm : layer.k_norm;
    float4 weights[kQuads][2];
    float4 turn[kQuads][2];
    const float* at[2 * kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const std::uint32_t p = element(i) < half ? element(i) : 0;
      if (turned) {
        weights[i][0] = load4(weight + p);
        weights[i][1] = load4(weight + half + p);
        turn[i][0] = load4(reinterpret_cast<const float*>(turns + p));
        turn[i][1] = load4(reinterpret_cast<const float*>(turns + p + 2));
      } else {
        weights[i][0] = weights[i][1] = make_float4(1, 1, 1, 1);
        turn[i][0] = turn[i][1] = make_float4(1, 0, 1, 0);
      }
      at[2 * i] = qkv.row(row) + column + p;
      at[2 * i + 1] = at[2 * i] + half;
    }
    float4 sums[2 * kQuads];
    sum_parts<Pieces>(qkv, at, sums);
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      u[i] = sums[2 * i];
      v[i] = sums[2 * i + 1];
      if (element(i) >= half) clear(u[i]), clear(v[i]);
      squares += square_sum(u[i]) + square_sum(v[i]);
    }
    const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(2 * half) + epsilon);
    const auto turned_by = [scale](float& x, float& y, float wx, float wy, float cosine, float sine) {
      const float a = x * scale * wx;
      const float b = y * scale * wy;
      x = a * cosine - b * sine;
      y = b * cosine + a * sine;
    };
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float4(&w)[2] = weights[i];
      const float4(&t)[2] = turn[i];
      turned_by(u[i].x, v[i].x, w[0].x, w[1].x, t[0].x, t[0].y);
      turned_by(u[i].y, v[i].y, w[0].y, w[1].y, t[0].z, t[0].w);
      turned_by(u[i].z, v[i].z, w[0].z, w[1].z, t[1].x, t[1].y);
      turned_by(u[i].w, v[i].w, w[0].w, w[1].w, t[1].z, t[1].w);
    }
  }
  // `store(element, four values)` for all elements of the lane.
  template <typename Store>
  __device__ void each(std::uint32_t head_dim, Store&& store) const {
    const std::uint32_t half = head_dim / 2;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      if (element(i) >= half) continue;
      store(element(i), u[i]);
      store(half + element(i), v[i]);
    }
  }
};

// Of a row's q, k, v product: where a head begins. Where a layer takes V from K both start from the same
// columns.
__device__ __forceinline__ std::uint32_t head_column(const HeadShape& s, HeadKind kind, std::uint32_t head) {
  const std::uint32_t before = kind == HeadKind::kQuery                     ? 0
                               : kind == HeadKind::kKey || s.value_from_key ? s.heads
                                                                            : s.heads + s.kv_heads;
  return (before + head) * s.head_dim;
}

// A key or value into the cache, by the warp that has it.
template <int D, int Pieces>
__device__ __forceinline__ void store_head(const HeadVector<D, Pieces>& x, const HeadShape& s,
                                           const CacheLayer& cache, std::uint32_t position,
                                           std::uint32_t kv_head, HeadKind kind) {
  const std::uint32_t d = s.head_dim;
  const std::uint32_t slot = position % cache.slots;
  const KvElement element = cache.element;
  if (kind == HeadKind::kKey) {
    const std::size_t first = (std::size_t{kv_head} * cache.slots + slot) * cache.key_stride;
    x.each(d, [&](std::uint32_t i, const float4& v) { store_elements(cache.keys, first + i, element, v); });
    return;
  }
  const std::size_t first = std::size_t{kv_head} * d * cache.slots + slot;
  const std::size_t step = cache.slots;
  x.each(d, [&](std::uint32_t i, const float4& v) {
    store_element(cache.values, first + i * step, element, v.x);
    store_element(cache.values, first + (i + 1) * step, element, v.y);
    store_element(cache.values, first + (i + 2) * step, element, v.z);
    store_element(cache.values, first + (i + 3) * step, element, v.w);
  });
}

__device__ __forceinline__ Parts qkv_of(const DecodeJob& job, std::uint32_t layer) {
  const DecodeOp& op = product_of(layer * kOpsOfLayer);
  return {job.qkv, op.parts, job.row_count, op.width};
}

// kPhasePrepare: every head of every row by a warp, of as many blocks as there are.
template <int D, int Pieces>
__device__ __noinline__ void prepare_all(std::uint32_t index) {
  const DecodeShared& shared = block_state();
  const DecodeJob& job = shared.job;
  const DecodeLayer& layer = shared.layers[index % 2];
  const Parts qkv = qkv_of(job, index);
  const HeadShape& s = layer.shape;
  const std::uint32_t heads = s.heads + (s.own_keys ? 2 * s.kv_heads : 0);
#pragma unroll 1
  for (std::uint32_t i = thread_index() / 32 * gridDim.x + block_index(); i < job.row_count * heads;
       i += gridDim.x * kWarps) {
    const std::uint32_t row = i / heads;
    const std::uint32_t head = i % heads;
    const RowInfo& info = job.rows[row];
    const HeadKind kind = head < s.heads                ? HeadKind::kQuery
                          : head < s.heads + s.kv_heads ? HeadKind::kKey
                                                        : HeadKind::kValue;
    const std::uint32_t of_kind = kind == HeadKind::kQuery ? head : (head - s.heads) % s.kv_heads;
    HeadVector<D, Pieces> x;
    x.load(qkv, row, head_column(s, kind, of_kind), kind, layer, turns_of(job, row, layer.kind), job.epsilon);
    if (kind == HeadKind::kQuery) {
      float* out = job.query + (std::size_t{row} * s.heads + head) * s.head_dim;
      x.each(s.head_dim, [&](std::uint32_t e, const float4& v) { *reinterpret_cast<float4*>(out + e) = v; });
    } else {
      store_head(x, s, info.layers[index], info.position, of_kind, kind);
    }
  }
}

// Adds a group of 32 elements. `a`: the lane's first words of the group in its head's row.
__device__ __forceinline__ void mma_group(float (&c)[4], const std::uint32_t* a, uint4 b) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint4 words = *reinterpret_cast<const uint4*>(a + step * 16);
    const unsigned quad[4] = {words.x, words.y, words.z, words.w};
    mma(c, quad, step == 0 ? b.x : b.z, step == 0 ? b.y : b.w);
  }
}
template <bool Halves>
__device__ __forceinline__ void mma_group(float (&c)[4], const std::uint32_t* a, const KvWords<Halves>& b) {
  mma_group(c, a, b.high);
  if constexpr (!Halves) mma_group(c, a, b.low);
}

__device__ __forceinline__ const RowInfo& row_info(const DecodeJob& job, std::uint32_t row) {
  const DecodeShared& shared = block_state();
  return row < kCachedRows ? shared.rows[row] : job.rows[row];
}

template <int D>
__device__ __forceinline__ void unit_sync(int unit) {
  if constexpr (Unit<D>::kUnitWarps == 1) {
    __syncwarp();
  } else {
    group_sync(1 + unit, Unit<D>::kThreadsOf);
  }
}

// How a layer's work is cut into units: a task has `parts` groups of rows and `shares` groups of heads for
// each KV head.
struct UnitCut {
  std::uint32_t heads, rows;  // of a unit, at most
  std::uint32_t shares, parts;
  std::uint32_t items;

  __device__ __forceinline__ std::uint32_t queries() const { return heads * rows; }
};
// All query heads of a KV head where the memory holds them, fewer while there are less units than the device
// can work on at once.
template <int D>
__device__ __forceinline__ UnitCut unit_cut(const DecodeJob& job, const DecodeLayer& layer) {
  const HeadShape& s = layer.shape;
  const std::uint32_t of_kv_head = s.heads / s.kv_heads;
  const std::uint32_t longest = job.longest[layer.kind];
  UnitCut cut;
  cut.heads = min(of_kv_head, job.most_queries);
  cut.rows = rows_together(longest, of_kv_head, job.most_queries);
  cut.parts = (longest + cut.rows - 1) / cut.rows;
  const std::uint32_t units = job.tasks[layer.kind] * s.kv_heads * cut.parts;
#pragma unroll 1
  while (cut.heads > 1 &&
         units * 2 * ((of_kv_head + cut.heads - 1) / cut.heads) <= gridDim.x * Unit<D>::kAtOnce)
    cut.heads = (cut.heads + 1) / 2;
  cut.shares = (of_kv_head + cut.heads - 1) / cut.heads;
  cut.items = units * cut.shares;
  return cut;
}

// Finds out what the item is, by one thread of a unit, and starts to bring keys and values into the
// second-level cache, by all.
template <int D>
__device__ __noinline__ void plan_unit(std::uint32_t index, std::uint32_t item, const UnitCut& cut) {
  DecodeShared& shared = block_state();
  using U = Unit<D>;
  const DecodeJob& job = shared.job;
  const DecodeLayer& layer = shared.layers[index % 2];
  const HeadShape& s = layer.shape;
  const int unit = static_cast<int>(thread_index()) / U::kThreadsOf;
  const std::uint32_t thread = thread_index() % U::kThreadsOf;
  UnitPlan& plan = shared.plans[layer.kind][unit];
  const bool prepares = job.whole && !(job.phases & kPhasePrepare) && s.own_keys;
  if (thread == 0 && (plan.item != item || plan.kv_heads != s.kv_heads)) {
    plan.item = item;
    plan.kv_heads = s.kv_heads;
    const std::uint32_t of_kv_head = s.heads / s.kv_heads;
    std::uint32_t rest = item / cut.shares;
    const std::uint32_t first_head = (item - rest * cut.shares) * cut.heads;  // of the KV head's
    const std::uint32_t part = rest % cut.parts;
    rest /= cut.parts;
    const std::uint32_t task = rest / s.kv_heads;
    plan.kv_head = rest - task * s.kv_heads;
    plan.head = plan.kv_head * of_kv_head + first_head;
    plan.heads = min(cut.heads, of_kv_head - first_head);
    // The last row of the run whose task this is.
    std::uint32_t low = 0;
    std::uint32_t high = job.row_count;
#pragma unroll 1
    while (high - low > 1) {
      const std::uint32_t middle = (low + high) / 2;
      (row_info(job, middle).first_task[layer.kind] <= task ? low : high) = middle;
    }
    const std::uint32_t run_first = low - row_info(job, low).in_run[layer.kind];
    plan.row = run_first + part * cut.rows;
    plan.rows = plan.row > low ? 0 : min(cut.rows, low + 1 - plan.row);
    if (plan.rows > 0) {
      const RowInfo& run = row_info(job, run_first);
      const RowInfo& first = row_info(job, plan.row);
      const RowInfo& last = row_info(job, plan.row + plan.rows - 1);
      const RowInfo& run_last = row_info(job, low);
      const auto end_chunk = [&](const RowInfo& info) {
        return info.first_chunk[layer.kind] + info.unit_count[layer.kind];
      };
      const std::uint32_t chunks = end_chunk(run_last) - run.first_chunk[layer.kind];
      const std::uint32_t of_task = job.chunks_of_task[layer.kind];
      const std::uint32_t tasks = (chunks + of_task - 1) / of_task;
      const std::uint32_t number = task - run.first_task[layer.kind];
      // Chunks may be those of other rows of the run.
      const std::uint32_t chunk_end =
          min(run.first_chunk[layer.kind] + (number + 1) * chunks / tasks, end_chunk(last));
      plan.chunk = max(run.first_chunk[layer.kind] + number * chunks / tasks, first.first_chunk[layer.kind]);
      plan.length = run.chunk_length[layer.kind];
      plan.begin = plan.chunk * plan.length;
      plan.end = min(chunk_end * plan.length, last.last_key + 1);
      const std::uint32_t span_position = last.last_key - (plan.row + plan.rows - 1 - last.span_first);
      plan.fresh_begin = max(plan.begin, span_position);
      plan.fresh_row = last.span_first + plan.fresh_begin - span_position;
      if (plan.chunk >= chunk_end) plan.rows = 0;
    }
    plan.row_of = 0;
#pragma unroll 1
    for (std::uint32_t r = 1; r < plan.rows; ++r) {
#pragma unroll 1
      for (std::uint32_t h = 0; h < plan.heads; ++h)
        plan.row_of |= std::uint64_t{r} << (4 * (r * plan.heads + h));
    }
  }
  if (thread == 0 && plan.rows > 0) {
    plan.fresh = prepares && plan.end > plan.fresh_begin ? plan.end - plan.fresh_begin : 0;
    plan.cache =
        plan.row < kCachedRows ? shared.caches[index % 2][plan.row] : job.rows[plan.row].layers[index];
  }
  unit_sync<D>(unit);
  if (plan.rows == 0) return;
  const CacheLayer cache = plan.cache;
  const std::uint32_t begin = plan.begin;
  const std::uint32_t near_end = min(begin + U::kKeys, plan.end);
  constexpr std::uint32_t kLine = 128;  // bytes
  const std::uint32_t element = element_bytes(cache.element);
  const std::uint32_t lines = (D * element + kLine - 1) / kLine;  // of a key
#pragma unroll 1
  for (std::uint32_t i = thread; i < U::kKeys * lines; i += U::kThreadsOf) {
    const std::uint32_t key = begin + i / lines;
    if (key >= near_end) break;
    prefetch(cache.keys + (std::size_t{plan.kv_head} * cache.slots + key % cache.slots) * D * element +
             i % lines * kLine);
  }
  const std::uint32_t d = s.head_dim;
#pragma unroll 1
  for (std::uint32_t i = thread; i < d; i += U::kThreadsOf) {
    const std::byte* line =
        cache.values + ((std::size_t{plan.kv_head} * d + i) * cache.slots + begin % cache.slots) * element;
#pragma unroll 1
    for (std::uint32_t at = 0; at < U::kKeys * element; at += kLine) prefetch(line + at);
  }
}

// Where a unit keeps what it works with.
template <int D>
struct UnitMemory {
  std::uint32_t *queries, *probabilities;  // store_split()
  float* scores;
  float *peaks, *totals;  // so far
  float* keep;            // what the sums so far are multiplied by

  // `most`: queries.
  __device__ __forceinline__ UnitMemory(int unit, std::uint32_t most) {
    using U = Unit<D>;
    queries = reinterpret_cast<std::uint32_t*>(region() + unit * U::bytes(most));
    probabilities = queries + most * U::kQueryStride;
    scores = reinterpret_cast<float*>(probabilities + most * U::kProbStride);
    peaks = scores + most * U::kScoreStride;
    totals = peaks + most;
    keep = totals + most;
  }
};

// The queries, and this round's keys and values of the rows' span that lie in the chunk.
template <int D, int Pieces>
__device__ __noinline__ void prepare_unit(std::uint32_t index, std::uint32_t most) {
  const DecodeShared& shared = block_state();
  using U = Unit<D>;
  const DecodeJob& job = shared.job;
  const DecodeLayer& layer = shared.layers[index % 2];
  const HeadShape& s = layer.shape;
  const std::uint32_t d = s.head_dim;
  const std::uint32_t lane = thread_index() % 32;
  const int unit = static_cast<int>(thread_index()) / U::kThreadsOf;
  const UnitPlan& plan = shared.plans[layer.kind][unit];
  const UnitMemory<D> memory(unit, most);
  const std::uint32_t group = plan.rows * plan.heads;
  const bool prepared = !job.whole || (job.phases & kPhasePrepare);
#pragma unroll 1
  for (std::uint32_t task = thread_index() % U::kThreadsOf / 32; task < group + 2 * plan.fresh;
       task += U::kUnitWarps) {
    const HeadKind kind = task < group              ? HeadKind::kQuery
                          : (task - group) % 2 == 0 ? HeadKind::kKey
                                                    : HeadKind::kValue;
    const bool is_query = kind == HeadKind::kQuery;
    const auto keep_query = [&](std::uint32_t e, const auto& v) {
      store_split(memory.queries + task * U::kQueryStride, e, v);
    };
    const std::uint32_t row = is_query ? plan.row_of_query(task) : 0;
    const std::uint32_t head = plan.head + task - row * plan.heads;
    if (is_query && prepared) {
      const float* q = job.query + (std::size_t{plan.row + row} * s.heads + head) * d;
      constexpr int kQuads = D < 128 ? 1 : D / 128;
      float4 v[kQuads];
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const std::uint32_t e = (lane + 32u * i) * 4;
        clear(v[i]);
        if (e < d) v[i] = load4(q + e);
      }
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const std::uint32_t e = (lane + 32u * i) * 4;
        if (e < D) keep_query(e, v[i]);
      }
    } else {
      const std::uint32_t fresh = is_query ? 0 : (task - group) / 2;
      const std::uint32_t from = is_query ? plan.row + row : plan.fresh_row + fresh;
      const std::uint32_t column = head_column(s, kind, is_query ? head : plan.kv_head);
      HeadVector<D, Pieces> x;
      x.load(qkv_of(job, index), from, column, kind, layer, turns_of(job, from, layer.kind), job.epsilon);
      if (!is_query) {
        store_head(x, s, plan.cache, plan.fresh_begin + fresh, plan.kv_head, kind);
        continue;
      }
#pragma unroll 1
      for (std::uint32_t e = d + lane; e < D; e += 32) keep_query(e, 0.0f);
      x.each(d, keep_query);
    }
    if (lane == 0) {
      memory.peaks[task] = -INFINITY;
      memory.totals[task] = 0;
    }
  }
}

// `Octets`: of queries of a unit, at most. `Halves`: keys and values are f16. Waits for the
// product before (grid_wait) as late as it can.
template <int D, int Pieces, int Octets, bool Halves>
__device__ __noinline__ void attend_all(std::uint32_t index) {
  const DecodeShared& shared = block_state();
  const DecodeJob& job = shared.job;
  const DecodeLayer& layer = shared.layers[index % 2];
  using U = Unit<D>;
  const HeadShape& s = layer.shape;
  const std::uint32_t d = s.head_dim;
  const UnitCut cut = unit_cut<D>(job, layer);
  const std::uint32_t most = cut.queries();
  const std::uint32_t items = cut.items;
  const std::uint32_t in_block = thread_index();
  const int lane = in_block % 32;
  const int unit = static_cast<int>(in_block) / U::kThreadsOf;  // of the block's
  const std::uint32_t thread = in_block % U::kThreadsOf;
  const std::uint32_t warp = thread / 32;
  // Few units lie in blocks of their own.
  const std::uint32_t first_item = unit * gridDim.x + block_index();

  if (first_item < items) plan_unit<D>(index, first_item, cut);
  grid_wait();
#pragma unroll 1
  for (std::uint32_t item = first_item; item < items; item += gridDim.x * U::kAtOnce) {
    if (item != first_item) plan_unit<D>(index, item, cut);
    const UnitPlan& plan = shared.plans[layer.kind][unit];
    if (plan.rows == 0) {
      unit_sync<D>(unit);  // before the next plan
      continue;
    }
    prepare_unit<D, Pieces>(index, most);
    unit_sync<D>(unit);

    const UnitMemory<D> memory(unit, most);
    float* const scores = memory.scores;
    float* const peaks = memory.peaks;
    float* const totals = memory.totals;
    float* const keep = memory.keep;
    const CacheLayer cache = plan.cache;
    const std::uint32_t kv_head = plan.kv_head;
    const std::uint32_t group = plan.rows * plan.heads;
    // The lane's rows of A: of queries that there are not, another's; nobody reads what comes of it.
    const std::uint32_t* queries[Octets];
    const std::uint32_t* probabilities[Octets];
#pragma unroll
    for (int o = 0; o < Octets; ++o) {
      const std::uint32_t m = min(o * 8 + lane / 4u, group - 1);
      queries[o] = memory.queries + m * U::kQueryStride + lane % 4 * 4;
      probabilities[o] = memory.probabilities + m * U::kProbStride + lane % 4 * 4;
    }
    const std::uint32_t column = warp * U::kColumns;
    std::uint32_t chunk = plan.chunk;
#pragma unroll 1
    for (std::uint32_t begin = plan.begin; begin < plan.end; begin += plan.length, ++chunk) {
      const std::uint32_t end = min(begin + plan.length, plan.end);
      float sum[Octets][U::kOutTiles][4] = {};  // of high halves, of low ones
#pragma unroll 1
      for (std::uint32_t block = begin; block < end; block += U::kKeys) {
        const std::uint32_t slot = block % cache.slots;  // slots are whole blocks
        // Scores.
        const std::uint32_t my_key = warp * U::kKeyTiles * 8;
        if (block + my_key < end) {
          // Products that do not wait for each other.
          constexpr int kChains = D < 128 ? 1 : 4;
          float c[kChains][Octets][U::kKeyTiles][4] = {};
          const std::size_t keys =
              (std::size_t{kv_head} * cache.slots + slot + my_key + lane / 4) * D + (lane % 4) * 8;
#pragma unroll 8
          for (int k = 0; k < D; k += 32) {
            KvWords<Halves> b[U::kKeyTiles];
#pragma unroll
            for (int n = 0; n < U::kKeyTiles; ++n) b[n].load(cache.keys, keys + n * 8 * D + k, cache.element);
#pragma unroll
            for (int o = 0; o < Octets; ++o) {
#pragma unroll
              for (int n = 0; n < U::kKeyTiles; ++n)
                mma_group(c[k / 32 % kChains][o][n], queries[o] + k, b[n]);
            }
          }
#pragma unroll
          for (int o = 0; o < Octets; ++o) {
            const std::uint32_t m = o * 8 + lane / 4;
            if (m >= group) break;
#pragma unroll
            for (int n = 0; n < U::kKeyTiles; ++n) {
              float(&v)[4] = c[0][o][n];
#pragma unroll
              for (int chain = 1; chain < kChains; ++chain) {
#pragma unroll
                for (int i = 0; i < 4; ++i) v[i] += c[chain][o][n][i];
              }
              *reinterpret_cast<float2*>(scores + m * U::kScoreStride + my_key + n * 8 + lane % 4 * 2) =
                  make_float2(v[0] + v[2], v[1] + v[3]);
            }
          }
        }
        // The first values are on their way while the probabilities are made.
        const std::size_t values =
            (std::size_t{kv_head} * d + column + lane / 4) * cache.slots + slot + (lane % 4) * 8;
        const auto load_value = [&](KvWords<Halves>& words, int n, int k) {
          if (column + n * 8 < d) {
            words.load(cache.values, values + std::size_t{n * 8u} * cache.slots + k, cache.element);
          } else {
            words.clear();
          }
        };
        KvWords<Halves> b[U::kOutTiles];
#pragma unroll
        for (int n = 0; n < U::kOutTiles; ++n) load_value(b[n], n, 0);
        unit_sync<D>(unit);
        // Probabilities, query after query.
#pragma unroll 1
        for (std::uint32_t m = warp; m < group; m += U::kUnitWarps) {
          constexpr int kOfLane = U::kKeys / 32;
          const RowInfo& info = row_info(job, plan.row + plan.row_of_query(m));
          const std::uint32_t first = first_key(info.position, layer.window);
          const std::uint32_t until = min(end, info.last_key + 1);
          float x[kOfLane];
          float peak = -INFINITY;
#pragma unroll
          for (int i = 0; i < kOfLane; ++i) {
            const std::uint32_t key = block + i * 32 + lane;
            x[i] = key >= first && key < until ? scores[m * U::kScoreStride + i * 32 + lane] : -INFINITY;
            peak = fmaxf(peak, x[i]);
          }
#pragma unroll
          for (int step = 16; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, step));
          const float before = peaks[m];
          peak = fmaxf(peak, before);
          float total = 0;
#pragma unroll
          for (int i = 0; i < kOfLane; ++i) {
            const float p = x[i] == -INFINITY ? 0.0f : __expf(x[i] - peak);
            total += p;
            store_split(memory.probabilities + m * U::kProbStride, i * 32 + lane, p);
          }
          total = warp_sum(total);
          __syncwarp();  // all lanes have read peaks[m]
          if (lane == 0) {
            const float factor = before == -INFINITY ? 0.0f : __expf(before - peak);
            keep[m] = factor;
            totals[m] = fmaf(totals[m], factor, total);
            peaks[m] = peak;
          }
        }
        unit_sync<D>(unit);
        // Values.
        if (column < d) {
#pragma unroll
          for (int o = 0; o < Octets; ++o) {
            const float before = keep[min(o * 8 + lane / 4u, group - 1)];
#pragma unroll
            for (int n = 0; n < U::kOutTiles; ++n) {
#pragma unroll
              for (int i = 0; i < 4; ++i) sum[o][n][i] *= before;
            }
          }
#pragma unroll
          for (int k = 0; k < U::kKeys; k += 32) {
            KvWords<Halves> next[U::kOutTiles];
            if (k + 32 < U::kKeys) {
#pragma unroll
              for (int n = 0; n < U::kOutTiles; ++n) load_value(next[n], n, k + 32);
            }
#pragma unroll
            for (int o = 0; o < Octets; ++o) {
#pragma unroll
              for (int n = 0; n < U::kOutTiles; ++n) mma_group(sum[o][n], probabilities[o] + k, b[n]);
            }
#pragma unroll
            for (int n = 0; n < U::kOutTiles; ++n) b[n] = next[n];
          }
        }
      }
      // Where a query's results go: nowhere if its row does not see the chunk, which others of the run do.
      const auto place = [&](std::uint32_t m, std::size_t& to) {
        const std::uint32_t row = plan.row_of_query(m);
        const RowInfo& info = row_info(job, plan.row + row);
        const std::uint32_t of_row = chunk - info.first_chunk[layer.kind];
        to = std::size_t{info.first_unit[layer.kind] + of_row} * s.heads + plan.head + m - row * plan.heads;
        return of_row < info.unit_count[layer.kind];
      };
      std::size_t to = 0;
      if (column < d) {
#pragma unroll
        for (int o = 0; o < Octets; ++o) {
          const std::uint32_t m = o * 8 + lane / 4;
          if (m >= group || !place(m, to)) continue;
#pragma unroll
          for (int n = 0; n < U::kOutTiles; ++n) {
            const std::uint32_t c = column + n * 8 + (lane % 4) * 2;
            const float(&v)[4] = sum[o][n];
            if (c < d)
              *reinterpret_cast<float2*>(job.sums + to * d + c) = make_float2(v[0] + v[2], v[1] + v[3]);
          }
        }
      }
      if (thread < group) {
        if (place(thread, to)) job.stats[to] = make_float2(peaks[thread], totals[thread]);
        // For the next chunk, whose scores all warps wait for before they look.
        peaks[thread] = -INFINITY;
        totals[thread] = 0;
      }
    }
    unit_sync<D>(unit);  // before the next unit's queries
  }
}

// Merging a row's chunks: in order within groups of kMergeGroup, then the groups in order.
constexpr std::uint32_t kMergeGroup = 16;
static_assert(kMostUnits <= kMergeGroup * kWarps);

// Sums of values, weighted relative to the largest score, with the sum of the weights.
struct Merged {
  float peak = -INFINITY;
  float total = 0;
  float4 y = {0, 0, 0, 0};

  __device__ __forceinline__ void fold(const Merged& next) {
    const float high = fmaxf(peak, next.peak);
    const float keep = peak == -INFINITY ? 0.0f : __expf(peak - high);
    const float weight = next.peak == -INFINITY ? 0.0f : __expf(next.peak - high);
    peak = high;
    total = fmaf(weight, next.total, total * keep);
    y.x = fmaf(weight, next.y.x, y.x * keep);
    y.y = fmaf(weight, next.y.y, y.y * keep);
    y.z = fmaf(weight, next.y.z, y.z * keep);
    y.w = fmaf(weight, next.y.w, y.w * keep);
  }
  __device__ __forceinline__ float4 mean() const {
    const float scale = 1.0f / total;
    return make_float4(y.x * scale, y.y * scale, y.z * scale, y.w * scale);
  }
};

// The chunks of four neighbouring columns of a row's attention.
struct RowChunks {
  const float2* stats;
  const float* sums;
  std::uint32_t stat_step, sum_step;  // from a chunk to the next
  std::uint32_t count;

  __device__ __forceinline__ RowChunks(const DecodeJob& job, const DecodeLayer& layer, std::uint32_t row,
                                       std::uint32_t col) {
    const HeadShape& s = layer.shape;
    const std::uint32_t head = col / s.head_dim;
    const RowInfo& info = row_info(job, row);
    const std::size_t first = info.first_unit[layer.kind];
    count = info.unit_count[layer.kind];
    stats = job.stats + first * s.heads + head;
    sums = job.sums + (first * s.heads + head) * s.head_dim + col % s.head_dim;
    stat_step = s.heads;
    sum_step = s.heads * s.head_dim;
  }
  __device__ __forceinline__ std::uint32_t groups() const { return (count + kMergeGroup - 1) / kMergeGroup; }
  __device__ __forceinline__ Merged group(std::uint32_t index) const {
    constexpr int kBatch = 4;  // that are asked for together
    Merged m;
    const std::uint32_t end = min((index + 1) * kMergeGroup, count);
#pragma unroll 1
    for (std::uint32_t first = index * kMergeGroup; first < end; first += kBatch) {
      float2 stat[kBatch];
      float4 v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        stat[i] = make_float2(-INFINITY, 0);
        clear(v[i]);
        if (first + i >= end) continue;
        stat[i] = __ldcg(stats + std::size_t{first + i} * stat_step);
        v[i] = load4(sums + std::size_t{first + i} * sum_step);
      }
      float high = m.peak;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) high = fmaxf(high, stat[i].x);
      const float keep = m.peak == -INFINITY ? 0.0f : __expf(m.peak - high);
      m.peak = high;
      m.total *= keep;
      m.y = make_float4(m.y.x * keep, m.y.y * keep, m.y.z * keep, m.y.w * keep);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float weight = __expf(stat[i].x - m.peak);
        m.total = fmaf(weight, stat[i].y, m.total);
        m.y.x = fmaf(weight, v[i].x, m.y.x);
        m.y.y = fmaf(weight, v[i].y, m.y.y);
        m.y.z = fmaf(weight, v[i].z, m.y.z);
        m.y.w = fmaf(weight, v[i].w, m.y.w);
      }
    }
    return m;
  }
};

// By one thread.
__device__ __forceinline__ float4 merged(const DecodeJob& job, const DecodeLayer& layer, std::uint32_t row,
                                         std::uint32_t col) {
  if (col >= layer.shape.heads * layer.shape.head_dim) return make_float4(0, 0, 0, 0);
  const RowChunks chunks(job, layer, row, col);
  Merged all = chunks.group(0);
#pragma unroll 1
  for (std::uint32_t g = 1; g < chunks.groups(); ++g) all.fold(chunks.group(g));
  return all.mean();
}

// By a block, 128 columns from `col` on: a warp a group, which meet in `places` ([groups][32]). The first
// warp gets the columns, four a lane. All threads call it.
constexpr std::uint32_t kMergeColumns = 128;
constexpr std::uint32_t kMergeBytes = kWarps * 32 * sizeof(Merged);
__device__ __forceinline__ float4 merged_by_block(const DecodeJob& job, const DecodeLayer& layer,
                                                  std::uint32_t row, std::uint32_t col, Merged* places) {
  const std::uint32_t warp = thread_index() / 32;
  const std::uint32_t lane = thread_index() % 32;
  col += lane * 4;
  const bool inside = col < layer.shape.heads * layer.shape.head_dim;
  const RowChunks chunks(job, layer, row, inside ? col : 0);
  if (inside && warp < chunks.groups()) places[warp * 32 + lane] = chunks.group(warp);
  __syncthreads();
  float4 y = make_float4(0, 0, 0, 0);
  if (inside && warp == 0) {
    Merged all = places[lane];
#pragma unroll 1
    for (std::uint32_t g = 1; g < chunks.groups(); ++g) all.fold(places[g * 32 + lane]);
    y = all.mean();
  }
  __syncthreads();  // before the next columns
  return y;
}

}  // namespace gem::cuda
