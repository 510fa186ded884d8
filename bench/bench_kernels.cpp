// One line a kernel and instruction set: bytes of weights and multiply-adds a second, on one core.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "backend/cpu/kernels.h"

namespace gem::cpu {
namespace {

constexpr std::size_t kCols = 3840;  // a row of the 12B
constexpr std::size_t kRows = 4096;  // 8.8 MB of Q4_0: more than a core's own caches

// kRows weight rows against `rows` activation rows.
void product(benchmark::State& state, const Kernels& k, StorageType type, unsigned rows) {
  const std::size_t row_bytes = *storage_bytes(type, kCols);
  std::vector<std::byte> weights(kRows * row_bytes, std::byte{0x2a});
  std::vector<float> x(rows * kCols);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8;
  const std::size_t pairs = activation_pairs(kCols);
  std::vector<ActivationPair> q(rows * pairs);
  const PairOrder order = type == StorageType::kQ4_0 ? PairOrder::kNibbles : PairOrder::kBytes;
  for (unsigned r = 0; r < rows; ++r) k.quantize(x.data() + r * kCols, kCols, order, q.data() + r * pairs);
  std::vector<float> line(kCols);
  float out[kRowTile];
  for (auto _ : state) {
    for (std::size_t n = 0; n < kRows; ++n) {
      const std::byte* w = weights.data() + n * row_bytes;
      if (type == StorageType::kQ4_0) {
        k.dot_q4_0(w, q.data(), pairs, kCols, rows, out);
      } else if (type == StorageType::kQ8_0) {
        k.dot_q8_0(w, q.data(), pairs, kCols, rows, out);
      } else {
        k.expand(type, w, line.data(), kCols);
        k.dot_f32(line.data(), x.data(), kCols, kCols, rows, out);
      }
      benchmark::DoNotOptimize(out);
    }
  }
  const double passes = static_cast<double>(state.iterations());
  state.counters["GB/s"] =
      benchmark::Counter(passes * static_cast<double>(weights.size()) / 1e9, benchmark::Counter::kIsRate);
  state.counters["GMAC/s"] = benchmark::Counter(passes * static_cast<double>(kRows * kCols * rows) / 1e9,
                                                benchmark::Counter::kIsRate);
}

const bool registered = [] {
  for (const Kernels* k : all_kernels()) {
    if (!k->supported()) continue;
    for (const StorageType type : {StorageType::kQ4_0, StorageType::kQ8_0, StorageType::kQ6_K,
                                   StorageType::kQ4_K, StorageType::kBF16, StorageType::kF16}) {
      for (const unsigned rows : {1u, kRowTile}) {
        const std::string name = std::string(k->name) + "/" + std::string(storage_info(type).name) +
                                 "/rows:" + std::to_string(rows);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          product(state, *k, type, rows);
        })->Unit(benchmark::kMillisecond);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace gem::cpu
