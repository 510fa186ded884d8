// Attention of a prompt's rows on the device, for every head width and amount of shared memory, against
// float64.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_cache.h"
#include "backend/cuda/decode.h"
#include "backend/cuda/prompt.h"
#include "base/numbers.h"

namespace gem::cuda {
namespace {

struct Case {
  std::uint32_t head_dim, kv_heads, window, position, rows;
};

constexpr std::uint32_t kHeads = 2;

class CudaAttention : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  // One layer's keys and values of all positions, rounded as a cache holds them, and queries, rounded as the
  // kernel rounds them.
  void make(const Case& c, KvType type) {
    case_ = c;
    type_ = type;
    std::mt19937 random(c.head_dim + c.position);
    std::normal_distribution<float> normal(0, 1);
    const auto rounded = [&](float x) {
      return type == KvType::kBF16 ? bf16_to_f32(f32_to_bf16(x)) : f16_to_f32(f32_to_f16(x));
    };
    const std::size_t keys = std::size_t{c.position + c.rows} * c.kv_heads * c.head_dim;
    keys_.resize(keys);
    values_.resize(keys);
    query_.resize(std::size_t{c.rows} * kHeads * c.head_dim);
    // Scores of a few units: some keys matter much more than others.
    const float size = 2 / std::sqrt(std::sqrt(static_cast<float>(c.head_dim)));
    for (float& x : keys_) x = rounded(normal(random) * size);
    for (float& x : values_) x = rounded(normal(random));
    for (float& x : query_) x = rounded(normal(random) * size);
  }

  std::vector<float> device(std::uint32_t block_bytes) const {
    const Case& c = case_;
    Geometry g;
    g.heads = kHeads;
    g.window = c.window;
    g.layers.push_back(
        {c.window != 0 ? LayerKind::kSliding : LayerKind::kFull, c.head_dim, c.kv_heads, false, {}});
    CudaCache cache(KvPlan::make(g, 512, c.rows, type_), g, nullptr);
    fill(cache);
    std::vector<RowInfo> infos(c.rows);
    std::vector<PromptTile> tiles;
    for (std::uint32_t r = 0; r < c.rows; ++r) {
      infos[r].position = infos[r].last_key = c.position + r;
      infos[r].layers = cache.layers();
      if (r % kPromptTile == 0) tiles.push_back({r, std::min(kPromptTile, c.rows - r)});
    }
    DeviceArray<float> query;
    DeviceArray<RowInfo> rows;
    DeviceArray<PromptTile> of_rows;
    DeviceArray<std::uint16_t> out(query_.size());
    query.upload(query_, nullptr);
    rows.upload(infos, nullptr);
    of_rows.upload(tiles, nullptr);
    attend_prompt({.query = query.data(),
                   .rows = rows.data(),
                   .tiles = of_rows.data(),
                   .tile_count = static_cast<std::uint32_t>(tiles.size()),
                   .layer = 0,
                   .shape = {kHeads, c.kv_heads, c.head_dim, false, true},
                   .window = c.window,
                   .halves = type_ == KvType::kF16,
                   .out = out.data(),
                   .stream = nullptr},
                  block_bytes);
    std::vector<float> got;
    for (const std::uint16_t bits : out.download(query_.size(), nullptr)) got.push_back(bf16_to_f32(bits));
    return got;
  }

  // As the stream's rows would have been written: those of the ring that are still there.
  void fill(CudaCache& cache) const {
    const Case& c = case_;
    const std::size_t width = std::size_t{c.kv_heads} * c.head_dim;
    const std::uint32_t last = c.position + c.rows;
    for (std::uint32_t p = last - std::min(last, cache.layer(0).slots); p < last; ++p)
      cache.write_row(0, p, std::span(keys_).subspan(p * width, width),
                      std::span(values_).subspan(p * width, width));
  }

  // What a row sees of keys `first` to its own, in float64.
  std::vector<double> expected(std::uint32_t row, std::uint32_t head, std::uint32_t first) const {
    const Case& c = case_;
    const std::uint32_t kv = head / (kHeads / c.kv_heads);
    const float* q = query_.data() + (std::size_t{row} * kHeads + head) * c.head_dim;
    const std::uint32_t last = c.position + row;
    std::vector<double> weights;
    double peak = -INFINITY;
    for (std::uint32_t p = first; p <= last; ++p) {
      double score = 0;
      for (std::uint32_t i = 0; i < c.head_dim; ++i)
        score += double{q[i]} * keys_[(std::size_t{p} * c.kv_heads + kv) * c.head_dim + i];
      weights.push_back(score);
      peak = std::max(peak, score);
    }
    double total = 0;
    for (double& w : weights) total += w = std::exp(w - peak);
    std::vector<double> out(c.head_dim);
    for (std::uint32_t p = first; p <= last; ++p) {
      for (std::uint32_t i = 0; i < c.head_dim; ++i)
        out[i] += weights[p - first] / total * values_[(std::size_t{p} * c.kv_heads + kv) * c.head_dim + i];
    }
    return out;
  }

  // The largest difference of a row's heads, of what is allowed: weights are rounded to f16, results to bf16.
  // `more`: keys beyond the window that it must not see, or first ones that are left out.
  double difference(const std::vector<float>& got, std::uint32_t row, std::uint32_t more = 0) const {
    const Case& c = case_;
    const std::uint32_t seen = c.position + row + 1;
    const std::uint32_t first = c.window == 0 ? more : seen - std::min(seen, c.window + more);
    double most = 0;
    for (std::uint32_t head = 0; head < kHeads; ++head) {
      const std::vector<double> want = expected(row, head, first);
      for (std::uint32_t i = 0; i < c.head_dim; ++i)
        most = std::max(most, std::abs(got[(std::size_t{row} * kHeads + head) * c.head_dim + i] - want[i]) /
                                  (0.004 + 0.004 * std::abs(want[i])));
    }
    return most;
  }

  Case case_{};
  KvType type_ = KvType::kF16;
  std::vector<float> keys_, values_, query_;
};

TEST_P(CudaAttention, OfAPromptIsThatOfTheFormula) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  const std::uint32_t d = GetParam();
  if (d > 128 && DecodeLimits::of(0).block_bytes < 99 * 1024) GTEST_SKIP() << "too little shared memory";
  const std::tuple<Case, KvType> cases[] = {{{d, 1, 0, 0, 70}, KvType::kF16},
                                            {{d, 2, 40, 150, 37}, KvType::kF16},
                                            {{d, 1, 0, 201, 3}, KvType::kF16},
                                            {{d, 2, 40, 150, 19}, KvType::kF32},
                                            {{d, 1, 0, 0, 20}, KvType::kBF16}};
  for (const auto& [c, type] : cases) {
    make(c, type);
    for (const std::uint32_t kb : {227u, 99u, 60u}) {
      if (kb * 1024 > DecodeLimits::of(0).block_bytes || (kb == 60 && d > 128)) continue;
      SCOPED_TRACE(::testing::Message() << "position " << c.position << ", " << kb << " KB");
      const std::vector<float> got = device(kb * 1024);
      double control = 0;
      for (std::uint32_t row = 0; row < c.rows; ++row) {
        ASSERT_LT(difference(got, row), 1) << row;
        if (c.position + row > 0) control = std::max(control, difference(got, row, 1));
      }
      // Of some hundred keys one is too little to be seen.
      if (c.window != 0 || c.position == 0) {
        EXPECT_GT(control, 2) << "one key too many or too few";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, CudaAttention, ::testing::Values(32, 64, 128, 256, 512));

}  // namespace
}  // namespace gem::cuda
