// One line a kernel and instruction set: bytes of weights and multiply-adds a second, on one core.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "backend/cpu/products.h"

namespace gem::cpu {
namespace {

constexpr std::size_t kCols = 3840;  // a row of the 12B
constexpr std::size_t kRows = 4096;  // 8.8 MB of Q4_0: more than a core's own caches

// kRows weight rows against `rows` activation rows.
void product(benchmark::State& state, const Kernels& k, StorageType type, unsigned rows) {
  std::vector<std::byte> weights(kRows * *storage_bytes(type, kCols), std::byte{0x2a});
  PackedMatrix matrix(Matrix{type, kRows, kCols, weights.data()});
  matrix.allocate();
  for (std::size_t g = 0; g < matrix.groups() && matrix.bytes() != 0; ++g) matrix.pack_group(g);
  std::vector<float> x(rows * kCols);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8;
  std::vector<float> out(rows * kRows);
  ThreadPool pool(1);
  Operand operand;
  const Product one[] = {{&matrix, out.data()}};
  for (auto _ : state) {
    operand.assign(x.data(), rows, kCols);
    multiply(operand, one, k, pool);
    benchmark::DoNotOptimize(out.data());
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
      for (const unsigned rows : {1u, 2u, 4u, 8u, 16u, 128u}) {
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
