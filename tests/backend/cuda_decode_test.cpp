// The decode kernel against float64 where a fault would hide behind the rounding of a whole model, and where
// small models do not come.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "backend/cuda/cuda.h"
#include "backend/cuda/decode.h"
#include "backend/expect_product.h"
#include "backend/random_storage.h"
#include "base/numbers.h"

namespace gem::cuda {
namespace {

using testing::RandomMatrix;

// One sliding layer without a rotation to speak of.
struct SmallModel {
  Geometry g;
  Weights w;
  std::vector<std::unique_ptr<RandomMatrix>> kept;

  SmallModel(std::uint32_t heads, std::uint32_t vocab, std::uint32_t kv_heads = 1) {
    g.hidden = g.ffn = 256;
    g.heads = heads;
    g.window = 64;
    g.vocab = vocab;
    g.context = 64;
    g.norm_epsilon = 1e-6f;
    g.rope_base_sliding = g.rope_base_full = 1e4;
    g.embedding_multiplier = 1;
    g.layers = {{LayerKind::kSliding, 64, kv_heads, false}};
    w.layers.resize(1);
    LayerWeights& l = w.layers[0];
    l.q = matrix(heads * 64, g.hidden);
    l.k = matrix(kv_heads * 64, g.hidden);
    l.v = matrix(kv_heads * 64, g.hidden);
    l.o = matrix(g.hidden, heads * 64);
    l.gate = matrix(g.ffn, g.hidden);
    l.up = matrix(g.ffn, g.hidden);
    l.down = matrix(g.hidden, g.ffn);
    w.token_embd = matrix(vocab, g.hidden);
    w.output_norm.assign(g.hidden, 1);
    l.attn_norm = l.post_attention_norm = l.ffn_norm = l.post_ffw_norm = w.output_norm;
    l.q_norm.assign(64, 1);
    l.k_norm.assign(64, 0.2f);  // scores of a trained model's size
  }
  Matrix matrix(std::uint32_t rows, std::uint32_t cols) {
    kept.push_back(std::make_unique<RandomMatrix>(testing::MatrixKind{StorageType::kQ4_0}, rows, cols,
                                                  static_cast<unsigned>(kept.size())));
    return kept.back()->matrix;
  }
};

class CudaDecode : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  }
};

// Of every length of context, for heads that fill a product and for more, and for so many KV heads that a
// unit takes two blocks of keys: what is left out of queries or probabilities is beyond the 15 bits in which
// the result is read (a low half forgotten is 2e-4).
TEST_F(CudaDecode, AttentionIsThatOfTheFormula) {
  constexpr std::uint32_t kRows = 37;
  EXPECT_EQ(key_chunks(0, kRows - 1, 32, 1).length, 32u);
  EXPECT_EQ(key_chunks(0, kRows - 1, 32, 96).length, 64u);
  for (const auto& [heads, kv_heads] : {std::pair(2u, 1u), {8u, 1u}, {12u, 1u}, {96u, 96u}}) {
    const DecodeLimits limits = DecodeLimits::of(0);
    if (limits.parts_of(heads * 64) > limits.processors) continue;  // a row of that many columns
    const SmallModel m(heads, 64, kv_heads);
    const std::uint32_t width = kv_heads * 64;  // of a row's keys, then of its values
    const auto backend = make_cuda_backend(m.g, m.w);
    const auto cache = backend->new_cache(KvPlan::make(m.g, 64, 64, KvType::kF16));
    std::vector<std::int32_t> tokens(kRows);
    for (std::uint32_t r = 0; r < kRows; ++r) tokens[r] = static_cast<std::int32_t>(r);
    const RowSpan span[] = {{cache.get(), 0, kRows, false}};
    backend->begin({span, tokens, {}, {}, {}});
    backend->embed();
    backend->attn_input(0);
    backend->qk_prep(0);
    const std::vector<float> q = backend->read(Activation::kQuery);
    backend->attention(0);
    const std::vector<float> found = backend->read(Activation::kAttention);
    cache->advance(kRows);
    using Part = KvCache::Part;
    const Part part = cache->row_bytes(Part::kRings) != 0 ? Part::kRings : Part::kFixed;
    ASSERT_EQ(cache->row_bytes(part), 2u * 2 * width);
    std::vector<std::uint16_t> rows(std::size_t{kRows} * 2 * width);
    cache->copy_out(part, 0, kRows, reinterpret_cast<std::byte*>(rows.data()));
    double worst = 0;
    for (std::uint32_t r = 0; r < kRows; ++r) {
      for (std::uint32_t h = 0; h < heads; ++h) {
        const std::size_t at = (std::size_t{r} * heads + h) * 64;
        const std::uint16_t* keys = rows.data() + h / (heads / kv_heads) * 64;
        std::vector<double> p(r + 1);
        for (std::uint32_t key = 0; key <= r; ++key) {
          for (std::size_t i = 0; i < 64; ++i)
            p[key] += double{q[at + i]} * double{f16_to_f32(keys[key * 2 * width + i])};
        }
        const double most = *std::max_element(p.begin(), p.end());
        double total = 0;
        for (double& x : p) total += x = std::exp(x - most);
        double difference = 0;
        double size = 0;
        for (std::size_t i = 0; i < 64; ++i) {
          double y = 0;
          for (std::uint32_t key = 0; key <= r; ++key)
            y += p[key] * double{f16_to_f32(keys[(key * 2 + 1) * width + i])};
          y /= total;
          difference += std::pow(y - double{found[at + i]}, 2);
          size += y * y;
        }
        worst = std::max(worst, std::sqrt(difference / size));
      }
    }
    EXPECT_LT(worst, 8e-5) << heads << " heads";
  }
}

// A warp multiplies far more pieces of the head than it knows at a time.
TEST_F(CudaDecode, AHeadOfManyTilesIsMultipliedWhole) {
  const SmallModel m(2, 20000);
  const auto backend = make_cuda_backend(m.g, m.w);
  for (const std::uint32_t rows : {1u, 17u}) {
    const auto cache = backend->new_cache(KvPlan::make(m.g, 64, 64, KvType::kF16));
    std::vector<std::int32_t> tokens(rows);
    std::vector<std::uint32_t> all(rows);
    for (std::uint32_t r = 0; r < rows; ++r) {
      tokens[r] = static_cast<std::int32_t>(r);
      all[r] = r;
    }
    const RowSpan span[] = {{cache.get(), 0, rows, false}};
    backend->begin({span, tokens, {}, all, all});
    ASSERT_TRUE(backend->run_all());
    const std::vector<float> x = backend->read(Activation::kFinal);
    for (const std::uint32_t r : {0u, rows - 1})
      testing::expect_product(m.w.token_embd, std::span(x).subspan(std::size_t{r} * m.g.hidden, m.g.hidden),
                              backend->logits(r), "the head", testing::kSixteenBitProduct);
  }
}

}  // namespace
}  // namespace gem::cuda
