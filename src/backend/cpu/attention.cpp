#include "backend/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gem::cpu {
namespace {

// Rows that pass over a chunk of keys together, so that it is fetched once for all of them.
constexpr std::size_t kRowBlock = 4;

// The softmax of some keys for the query heads of one KV head: [heads] maxima, [heads] sums of exp(score -
// maximum), [heads, dim] sums of exp(score - maximum) * value.
struct State {
  float* peak;
  float* sum;
  float* out;
  std::size_t heads;
  std::size_t dim;

  static std::size_t floats(std::size_t heads, std::size_t dim) { return heads * (dim + 2); }
  State(float* memory, std::size_t h, std::size_t d)
      : peak(memory), sum(memory + h), out(memory + 2 * h), heads(h), dim(d) {}

  void clear() const {
    std::fill_n(peak, heads, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, heads * (dim + 1), 0.0f);
  }

  // The later keys of `other` after these.
  void merge(const State& other) const {
    for (std::size_t h = 0; h < heads; ++h) {
      const float top = std::max(peak[h], other.peak[h]);
      const float mine = std::exp(peak[h] - top);
      const float theirs = std::exp(other.peak[h] - top);
      sum[h] = sum[h] * mine + other.sum[h] * theirs;
      float* o = out + h * dim;
      const float* p = other.out + h * dim;
      for (std::size_t i = 0; i < dim; ++i) o[i] = o[i] * mine + p[i] * theirs;
      peak[h] = top;
    }
  }
};

// What one KV head does.
class Head {
 public:
  Head(const AttentionShape& shape, std::size_t kv_head, const Kernels& kernels)
      : shape_(shape), kv_head_(kv_head), group_(shape.heads / shape.kv_heads), k_(kernels) {}

  std::size_t group() const { return group_; }

  // Chunk [begin, end) of keys, those that the row sees, into a state. `scores` holds group * kChunkKeys.
  void chunk(const AttentionRow& row, std::uint32_t begin, std::uint32_t end, float* scores,
             const State& state) const {
    begin = std::max(begin, row.first);
    end = std::min(end, row.last + 1);
    if (begin >= end) return;
    const std::size_t d = shape_.dim;
    const float* q = row.query + kv_head_ * group_ * d;
    const StorageType type = row.cache->storage(shape_.layer);
    for_runs(row, begin, end, [&](std::uint32_t slot, std::size_t at, std::size_t n) {
      k_.scores(q, group_, d, type, row.cache->keys(shape_.layer, kv_head_, slot),
                row.cache->values(shape_.layer, kv_head_, slot), n, scores + at);
    });
    const std::size_t count = end - begin;
    for (std::size_t h = 0; h < group_; ++h) {
      float* s = scores + h * kChunkKeys;
      const float top = std::max(state.peak[h], k_.largest(s, count));
      if (top != state.peak[h]) {
        const float shrink = std::exp(state.peak[h] - top);
        state.sum[h] *= shrink;
        for (std::size_t i = 0; i < d; ++i) state.out[h * d + i] *= shrink;
        state.peak[h] = top;
      }
      state.sum[h] += k_.exponentials(s, count, top);
    }
    for_runs(row, begin, end, [&](std::uint32_t slot, std::size_t at, std::size_t n) {
      k_.weighted_values(scores + at, group_, d, type, row.cache->values(shape_.layer, kv_head_, slot), n,
                         state.out);
    });
  }

  void finish(const AttentionRow& row, const State& state) const {
    const std::size_t d = shape_.dim;
    for (std::size_t h = 0; h < group_; ++h) {
      float* out = row.out + (kv_head_ * group_ + h) * d;
      const float inverse = 1 / state.sum[h];
      for (std::size_t i = 0; i < d; ++i) out[i] = state.out[h * d + i] * inverse;
    }
  }

 private:
  // Runs of slots that lie side by side: a ring wraps at most once in a chunk.
  template <typename Body>
  void for_runs(const AttentionRow& row, std::uint32_t begin, std::uint32_t end, const Body& body) const {
    const std::uint32_t slots = row.cache->plan().layers[shape_.layer].slots;
    for (std::uint32_t at = begin; at < end;) {
      const std::uint32_t slot = at % slots;
      const std::uint32_t n = std::min(end - at, slots - slot);
      body(slot, at - begin, n);
      at += n;
    }
  }

  const AttentionShape& shape_;
  std::size_t kv_head_;
  std::size_t group_;
  const Kernels& k_;
};

std::uint32_t first_split(const AttentionRow& row) {
  return row.first / kSplitKeys;
}
std::uint32_t splits(const AttentionRow& row) {
  return row.last / kSplitKeys - first_split(row) + 1;
}

// What a thread needs: scores, and for each row of a block its split and its whole.
std::size_t scratch_floats(std::size_t group, std::size_t dim) {
  return group * kChunkKeys + 2 * kRowBlock * State::floats(group, dim);
}

// Below this many multiply-adds a loop is not shared.
constexpr std::size_t kWorthSharing = 256 * 1024;

}  // namespace

void Attention::run(const AttentionShape& shape, std::span<const AttentionRow> rows, const Kernels& kernels,
                    ThreadPool& pool) {
  const std::size_t group = shape.heads / shape.kv_heads;
  const std::size_t state_floats = State::floats(group, shape.dim);
  scratch_.resize(pool.threads());
  for (std::vector<float>& s : scratch_) {
    if (s.size() < scratch_floats(group, shape.dim)) s.resize(scratch_floats(group, shape.dim));
  }
  std::size_t keys = 0;
  std::vector<std::size_t> first_task = {0};  // splits of the rows, one after the other
  for (const AttentionRow& row : rows) {
    keys += row.last + 1 - row.first;
    first_task.push_back(first_task.back() + splits(row));
  }
  const bool share = 2 * keys * shape.heads * shape.dim >= kWorthSharing;

  // Few rows: every split of every head is a task of its own, merged afterwards.
  if (rows.size() * shape.kv_heads < 4 * pool.threads() && first_task.back() > rows.size() && share) {
    const std::size_t tasks = first_task.back() * shape.kv_heads;
    if (states_.size() < tasks * state_floats) states_.resize(tasks * state_floats);
    const auto state_at = [&](std::size_t task, std::size_t kv_head) {
      return State(states_.data() + (task * shape.kv_heads + kv_head) * state_floats, group, shape.dim);
    };
    pool.parallel_for(tasks, 1, [&](std::size_t begin, std::size_t end, unsigned thread) {
      for (std::size_t i = begin; i < end; ++i) {
        const std::size_t task = i / shape.kv_heads;
        const Head head(shape, i % shape.kv_heads, kernels);
        const auto after = std::upper_bound(first_task.begin(), first_task.end(), task);
        const auto r = static_cast<std::size_t>(after - first_task.begin()) - 1;
        const auto split = static_cast<std::uint32_t>(task - first_task[r]) + first_split(rows[r]);
        const State state = state_at(task, i % shape.kv_heads);
        state.clear();
        for (std::uint32_t at = split * kSplitKeys; at < (split + 1) * kSplitKeys; at += kChunkKeys)
          head.chunk(rows[r], at, at + kChunkKeys, scratch_[thread].data(), state);
      }
    });
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        const State whole(scratch_[0].data(), group, shape.dim);
        whole.clear();
        for (std::size_t task = first_task[r]; task < first_task[r + 1]; ++task)
          whole.merge(state_at(task, kv_head));
        Head(shape, kv_head, kernels).finish(rows[r], whole);
      }
    }
    return;
  }

  // Many rows: a task is a KV head of a block of rows of one stream.
  std::vector<std::size_t> blocks;  // where each begins
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (blocks.empty() || r - blocks.back() == kRowBlock || rows[r].cache != rows[r - 1].cache)
      blocks.push_back(r);
  }
  blocks.push_back(rows.size());
  const std::size_t tasks = (blocks.size() - 1) * shape.kv_heads;
  pool.parallel_for(tasks, share ? 1 : tasks, [&](std::size_t begin, std::size_t end, unsigned thread) {
    for (std::size_t task = begin; task < end; ++task) {
      const Head head(shape, task % shape.kv_heads, kernels);
      const std::size_t block = task / shape.kv_heads;
      const auto mine = rows.subspan(blocks[block], blocks[block + 1] - blocks[block]);
      float* const scores = scratch_[thread].data();
      const auto state_of = [&](std::size_t r, std::size_t which) {
        return State(scores + group * kChunkKeys + (2 * r + which) * state_floats, group, shape.dim);
      };
      std::uint32_t first = mine[0].first;
      std::uint32_t last = mine[0].last;
      for (std::size_t r = 0; r < mine.size(); ++r) {
        state_of(r, 0).clear();
        first = std::min(first, mine[r].first);
        last = std::max(last, mine[r].last);
      }
      for (std::uint32_t split = first / kSplitKeys; split <= last / kSplitKeys; ++split) {
        const auto seen = [&](const AttentionRow& row) {
          return row.first / kSplitKeys <= split && split <= row.last / kSplitKeys;
        };
        for (std::size_t r = 0; r < mine.size(); ++r) state_of(r, 1).clear();
        for (std::uint32_t at = split * kSplitKeys; at < (split + 1) * kSplitKeys && at <= last;
             at += kChunkKeys) {
          for (std::size_t r = 0; r < mine.size(); ++r)
            head.chunk(mine[r], at, at + kChunkKeys, scores, state_of(r, 1));
        }
        for (std::size_t r = 0; r < mine.size(); ++r) {
          if (seen(mine[r])) state_of(r, 0).merge(state_of(r, 1));
        }
      }
      for (std::size_t r = 0; r < mine.size(); ++r) head.finish(mine[r], state_of(r, 0));
    }
  });
}

std::uint64_t Attention::bytes(const AttentionShape& shape, std::uint64_t rows, std::uint64_t keys,
                               unsigned threads) {
  const std::size_t group = shape.heads / shape.kv_heads;
  const std::uint64_t shared_rows = std::min<std::uint64_t>(rows, 4 * threads / shape.kv_heads + 1);
  const std::uint64_t shared = shared_rows * shape.kv_heads * (keys / kSplitKeys + 2);
  return sizeof(float) *
         (shared * State::floats(group, shape.dim) + threads * scratch_floats(group, shape.dim));
}

}  // namespace gem::cpu
