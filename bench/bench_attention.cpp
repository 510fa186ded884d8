// Attention: scores and weighted values over one chunk of keys, and decode rows over a long cache, on one
// core. GB/s are of the keys and values as they are stored.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "backend/cpu/attention.h"
#include "base/storage.h"

namespace gem::cpu {
namespace {

std::vector<float> normal_numbers(std::size_t n, float scale) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

std::vector<std::byte> stored(StorageType type, const std::vector<float>& x) {
  std::vector<std::byte> bytes(*storage_bytes(type, x.size()));
  quantize(type, x.data(), bytes.data(), x.size());
  return bytes;
}

// 32 MB of keys, chunk after chunk, so that they come from memory as in a long cache.
void kernel(benchmark::State& state, const Kernels& k, StorageType type, std::size_t heads, std::size_t d,
            bool values) {
  constexpr std::size_t kBytes = 32 << 20;
  const std::size_t chunks = kBytes / (kChunkKeys * d * storage_info(type).block_bytes);
  const std::vector<float> chunk = normal_numbers(kChunkKeys * d, 1);
  std::vector<std::byte> rows;
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::vector<std::byte> bytes = stored(type, chunk);
    rows.insert(rows.end(), bytes.begin(), bytes.end());
  }
  const std::size_t chunk_bytes = rows.size() / chunks;
  const std::vector<float> q = normal_numbers(heads * std::max<std::size_t>(d, kChunkKeys), 0.1f);
  std::vector<float> out(heads * std::max<std::size_t>(d, kChunkKeys));
  for (auto _ : state) {
    for (std::size_t c = 0; c < chunks; ++c) {
      const std::byte* at = rows.data() + c * chunk_bytes;
      if (values) {
        k.weighted_values(q.data(), heads, d, type, at, kChunkKeys, out.data());
      } else {
        k.scores(q.data(), heads, d, type, at, nullptr, kChunkKeys, out.data());
      }
      benchmark::DoNotOptimize(out.data());
    }
  }
  const double passes = static_cast<double>(state.iterations() * chunks);
  state.counters["GB/s"] =
      benchmark::Counter(passes * static_cast<double>(chunk_bytes) / 1e9, benchmark::Counter::kIsRate);
  state.counters["GMAC/s"] = benchmark::Counter(passes * static_cast<double>(kChunkKeys * d * heads) / 1e9,
                                                benchmark::Counter::kIsRate);
}

// `rows` rows at the end of a cache of `depth` positions.
void layer(benchmark::State& state, const Kernels& k, KvType type, const LayerGeometry& l,
           std::uint32_t heads, std::uint32_t depth, std::uint32_t rows) {
  Geometry g;
  g.window = 1024;
  g.heads = heads;
  g.layers = {l};
  const KvPlan plan = KvPlan::make(g, depth, 256, type);
  CpuCache cache(plan, g);
  const std::vector<float> row = normal_numbers(g.kv_width(0), 1);
  for (std::uint32_t p = 0; p < plan.layers[0].slots; ++p) cache.store(0, p, row.data(), row.data());
  const std::size_t width = std::size_t{heads} * l.head_dim;
  const std::vector<float> q = normal_numbers(rows * width, 0.1f);
  std::vector<float> out(rows * width);
  std::vector<AttentionRow> seen;
  double keys = 0;
  for (std::uint32_t r = 0; r < rows; ++r) {
    const std::uint32_t last = depth - rows + r;
    const std::uint32_t first = l.kind == LayerKind::kSliding && last >= g.window ? last + 1 - g.window : 0;
    seen.push_back({&cache, first, last, q.data() + r * width, out.data() + r * width});
    keys += last + 1 - first;
  }
  ThreadPool pool(1);
  Attention attention;
  for (auto _ : state) {
    attention.run({0, heads, l.kv_heads, l.head_dim}, seen, k, pool);
    benchmark::DoNotOptimize(out.data());
  }
  const double passes = static_cast<double>(state.iterations());
  const double element = storage_info(plan.layers[0].storage).block_bytes;
  state.counters["GB/s"] = benchmark::Counter(passes * keys / rows * 2 * g.kv_width(0) * element / 1e9,
                                              benchmark::Counter::kIsRate);
  state.counters["GMAC/s"] =
      benchmark::Counter(passes * keys * 2 * static_cast<double>(width) / 1e9, benchmark::Counter::kIsRate);
}

const bool registered = [] {
  for (const Kernels* k : all_kernels()) {
    if (!k->supported()) continue;
    for (const StorageType type : {StorageType::kF32, StorageType::kF16, StorageType::kBF16}) {
      // Heads that share keys: 2 and 16 of the 12B's layers, 8 of the 31B's full ones.
      for (const auto& [heads, d] : {std::pair(2u, 256u), std::pair(8u, 512u), std::pair(16u, 512u)}) {
        for (const bool values : {false, true}) {
          const std::string name = std::string(k->name) + (values ? "/weighted_values/" : "/scores/") +
                                   std::string(storage_info(type).name) + "/heads:" + std::to_string(heads) +
                                   "/width:" + std::to_string(d);
          benchmark::RegisterBenchmark(name.c_str(), [=, h = heads, w = d](benchmark::State& state) {
            kernel(state, *k, type, h, w, values);
          })->Unit(benchmark::kMillisecond);
        }
      }
    }
    if (k == &kPortableKernels) continue;
    // Layers of the 12B, one row and prompt tiles.
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
      for (const bool full : {false, true}) {
        for (const auto& [rows, depth] :
             {std::pair(1u, 8192u), std::pair(4u, 8192u), std::pair(64u, 8192u), std::pair(1u, 32768u)}) {
          if (!full && depth > 8192) continue;  // a sliding layer sees its window
          const LayerGeometry l = full ? LayerGeometry{LayerKind::kFull, 512, 1, true}
                                       : LayerGeometry{LayerKind::kSliding, 256, 8, false};
          const std::string name = std::string(k->name) + (full ? "/full/" : "/sliding/") +
                                   std::string(kv_type_name(type)) + "/depth:" + std::to_string(depth) +
                                   "/rows:" + std::to_string(rows);
          benchmark::RegisterBenchmark(name.c_str(), [=, n = rows, d = depth](benchmark::State& state) {
            layer(state, *k, type, l, 16, d, n);
          })->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace gem::cpu
