// The decode kernel against float64 where a fault would hide behind the rounding of a whole model, and where
// small models do not come.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "backend/cuda/attention_plan.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/decode.h"
#include "backend/expect_product.h"
#include "backend/random_storage.h"
#include "base/numbers.h"
#include "emulated.h"

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
    g.context = 256;
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

// Rows of a window meet their keys together, in chunks that some of them do not see: windows that cross the
// ends of chunks and of the sliding window, and, of 96 KV heads, the place where chunks become longer.
TEST_F(CudaDecode, RowsOfAWindowHaveTheBitsOfRowsAlone) {
  for (const auto& [heads, kv_heads, length] : {std::tuple(4u, 2u, 104u), {96u, 96u, 40u}}) {
    const DecodeLimits limits = DecodeLimits::of(0);
    if (limits.parts_of(heads * 64) > limits.processors) continue;
    if (testing::kSanitized && heads != 4) continue;  // minutes
    const SmallModel m(heads, 64, kv_heads);
    const auto backend = make_cuda_backend(m.g, m.w);
    std::vector<std::int32_t> tokens(length);
    for (std::uint32_t r = 0; r < length; ++r) tokens[r] = static_cast<std::int32_t>(r % 61);
    const auto rows_of = [&](std::uint32_t window) {
      const auto cache = backend->new_cache(KvPlan::make(m.g, 128, 64, KvType::kF16));
      std::vector<float> out;
      std::uint32_t rows = 1;  // a first row, so that windows of two cross these places too
      for (std::uint32_t at = 0; at < length; at += rows, rows = std::min(window, length - at)) {
        std::vector<std::uint32_t> all(rows);
        for (std::uint32_t r = 0; r < rows; ++r) all[r] = r;
        const RowSpan span[] = {{cache.get(), at, rows, false}};
        backend->begin({span, std::span(tokens).subspan(at, rows), {}, all, {}});
        EXPECT_TRUE(backend->run_all());
        const std::vector<float> x = backend->read(Activation::kFinal);
        out.insert(out.end(), x.begin(), x.end());
        cache->advance(rows);
      }
      return out;
    };
    const std::vector<float> alone = rows_of(1);
    for (const std::uint32_t window : {2u, 3u, 16u, 33u}) {
      if (heads == 96 && window == 33) continue;
      if (testing::kSanitized && window != 16) continue;
      const std::vector<float> together = rows_of(window);
      ASSERT_EQ(together.size(), alone.size());
      EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0)
          << heads << " heads, windows of " << window;
    }
  }
}

// With many streams a unit of attention takes several chunks, alone one.
TEST_F(CudaDecode, ManyStreamsHaveTheBitsOfEachAlone) {
  SmallModel m(8, 64, 8);
  m.g.window = 128;
  const auto backend = make_cuda_backend(m.g, m.w);
  constexpr std::uint32_t kStreams = 6;
  std::vector<std::unique_ptr<KvCache>> caches;
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    const std::uint32_t rows = 97 + 5 * i;
    caches.push_back(backend->new_cache(KvPlan::make(m.g, 256, 128, KvType::kF16)));
    std::vector<std::int32_t> tokens(rows);
    for (std::uint32_t r = 0; r < rows; ++r) tokens[r] = static_cast<std::int32_t>((r + i) % 61);
    const RowSpan span[] = {{caches.back().get(), 0, rows, false}};
    backend->begin({span, tokens, {}, {}, {}});
    ASSERT_TRUE(backend->run_all());
    caches.back()->advance(rows);
  }
  const auto next = [&](std::uint32_t first, std::uint32_t count) {
    std::vector<RowSpan> spans;
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < count; ++i) {
      spans.push_back({caches[first + i].get(), caches[first + i]->length(), 1, false});
      all.push_back(i);
    }
    const std::vector<std::int32_t> tokens(count, 7);
    backend->begin({spans, tokens, {}, all, {}});
    EXPECT_TRUE(backend->run_all());
    return backend->read(Activation::kFinal);
  };
  const std::vector<float> together = next(0, kStreams);
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    const std::vector<float> alone = next(i, 1);
    EXPECT_EQ(std::memcmp(alone.data(), together.data() + i * alone.size(), alone.size() * sizeof(float)), 0)
        << "stream " << i;
  }
}

// Of rows at these positions, those of one span in braces.
std::vector<RowInfo> rows_at(const std::vector<std::vector<std::uint32_t>>& spans) {
  std::vector<RowInfo> rows;
  for (const auto& span : spans) {
    const auto first = static_cast<std::uint32_t>(rows.size());
    for (const std::uint32_t position : span) {
      RowInfo& row = rows.emplace_back();
      row.position = row.last_key = position;
      row.span_first = first;
    }
  }
  return rows;
}

TEST(AttentionPlan, RowsOfASpanWithChunksOfOneLengthAreARun) {
  // Of 96 KV heads chunks are 32 keys long up to position 31, then 64.
  std::vector<RowInfo> rows = rows_at({{29, 30, 31, 32, 33}, {5}, {40, 41}});
  const AttentionWork work = plan_attention(rows, 1, {64, 96, 96, 0}, 132);
  const auto each = [&](auto member) {
    std::vector<std::uint32_t> out;
    for (const RowInfo& row : rows) out.push_back((row.*member)[1]);
    return out;
  };
  using Numbers = std::vector<std::uint32_t>;
  EXPECT_EQ(each(&RowInfo::chunk_length), (Numbers{32, 32, 32, 64, 64, 32, 64, 64}));
  EXPECT_EQ(each(&RowInfo::in_run), (Numbers{0, 1, 2, 0, 1, 0, 0, 1}));
  EXPECT_EQ(each(&RowInfo::first_task), (Numbers{0, 0, 0, 1, 1, 2, 3, 3}));
  EXPECT_EQ(each(&RowInfo::first_unit), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(work.tasks, 4u);
  EXPECT_EQ(work.units, 8u);
  EXPECT_EQ(work.longest, 3u);
}

TEST(AttentionPlan, ATaskIsAChunkWhereThatIsEnoughForTheDevice) {
  const AttentionLayers sliding = {256, 16, 8, 1024};  // 17 chunks of 64 keys
  std::vector<RowInfo> one = rows_at({{2000}});
  EXPECT_EQ(plan_attention(one, 0, sliding, 132).chunks_of_task, 1u);
  EXPECT_EQ(one[0].unit_count[0], 17u);
  // 1,088 units on a device that works on 264 at once: in four pieces of a stream one round is enough.
  std::vector<RowInfo> eight = rows_at({{2000}, {2000}, {2000}, {2000}, {2000}, {2000}, {2000}, {2000}});
  const AttentionWork work = plan_attention(eight, 0, sliding, 132);
  EXPECT_EQ(work.chunks_of_task, 5u);
  EXPECT_EQ(work.tasks, 8u * 4);
  EXPECT_EQ(work.units, 8u * 17);
  EXPECT_EQ(eight[7].first_task[0], 28u);
  // A window's rows share their units: no more of them than of one row.
  std::vector<RowInfo> window = rows_at({{2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007}});
  const AttentionWork shared = plan_attention(window, 0, sliding, 132);
  EXPECT_EQ(shared.chunks_of_task, 1u);
  EXPECT_EQ(shared.tasks, 17u);
  EXPECT_EQ(shared.longest, 8u);
}

// Activations as the products read them: 16 bits a block of 32, by the rule of decode_operand.cuh.
class CudaOperand : public CudaDecode {
 protected:
  static constexpr std::uint32_t kWidth = 256;
  const SmallModel model_{2, 64};

  // A round of `rows` rows up to the product `down`.
  void begin(Backend& backend, std::uint32_t rows) {
    cache_ = backend.new_cache(KvPlan::make(model_.g, 64, 64, KvType::kF16));
    const std::vector<std::int32_t> tokens(rows, 1);
    const RowSpan span[] = {{cache_.get(), 0, rows, false}};
    backend.begin({span, tokens, {}, {}, {}});
    backend.embed();
    backend.attn_input(0);
    backend.qk_prep(0);
    backend.attention(0);
    backend.attn_output(0);
    backend.ffn_input(0);
  }
  static std::vector<float> rounded(std::span<const float> block) {
    float top = 0;
    double length = 0;
    for (const float x : block) {
      top = std::max(top, std::fabs(x));
      length += double{std::fabs(x)};
    }
    int e = top == 0 ? -126 : std::max(std::ilogb(top) - 14, -126);
    if (std::ldexp(double{top}, -e) > 32639 || std::ldexp(length, -e) > (1 << 19) - 64) ++e;
    std::vector<float> out;
    for (const float x : block)
      out.push_back(static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(double{x}, -e)), e)));
    return out;
  }
  std::unique_ptr<KvCache> cache_;
};

TEST_F(CudaOperand, ABlockIsRoundedToSixteenBits) {
  const auto backend = make_cuda_backend(model_.g, model_.w);
  for (const std::uint32_t rows : {3u, 9u, 17u}) {
    std::vector<float> x = testing::random_floats(std::size_t{rows} * kWidth, rows);
    const auto block = [&](std::uint32_t row, std::uint32_t i) {
      return std::span(x).subspan(std::size_t{row} * kWidth + i * 32, 32);
    };
    for (float& v : block(0, 0)) v = 0;
    block(0, 1)[7] = 1e6f;                    // the others nearly vanish
    for (float& v : block(0, 2)) v = -1.99f;  // as long as a block can be
    for (float& v : block(0, 3)) v *= 1e-38f;
    for (float& v : block(0, 4)) v *= 1e25f;
    block(0, 5)[31] = 32700.0f / 4096;  // more than two signed bytes hold
    for (float& v : block(0, 6)) v *= 1e-42f;
    begin(*backend, rows);
    backend->write(Activation::kFfn, x);
    const std::vector<float> found = backend->read(Activation::kFfn);
    for (std::size_t at = 0; at < x.size(); at += 32) {
      const std::vector<float> expected = rounded(std::span(x).subspan(at, 32));
      for (std::size_t i = 0; i < 32; ++i)
        ASSERT_EQ(found[at + i], expected[i]) << "row " << at / kWidth << " column " << at % kWidth + i;
    }
  }
}

// What is not finite stays so, in the whole row that is computed from it and in no other.
TEST_F(CudaOperand, WhatIsNotFiniteIsNotLost) {
  const auto backend = make_cuda_backend(model_.g, model_.w);
  for (const std::uint32_t rows : {2u, 9u, 17u}) {
    const std::vector<float> x = testing::random_floats(std::size_t{rows} * kWidth, rows);
    begin(*backend, rows);
    backend->write(Activation::kFfn, x);
    backend->ffn_output(0);
    const std::vector<float> sound = backend->read(Activation::kResidual);
    for (const float bad : {NAN, INFINITY, -INFINITY, 3e38f}) {
      std::vector<float> with = x;
      with[kWidth + 77] = bad;
      begin(*backend, rows);
      backend->write(Activation::kFfn, with);
      const std::vector<float> read = backend->read(Activation::kFfn);
      for (std::size_t i = 0; i < read.size(); ++i)
        ASSERT_EQ(std::isnan(read[i]), i / 32 == (kWidth + 77) / 32) << bad << " at " << i;
      backend->ffn_output(0);
      const std::vector<float> found = backend->read(Activation::kResidual);
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (i / kWidth == 1) {
          ASSERT_TRUE(std::isnan(found[i])) << bad << " at " << i;
        } else {
          ASSERT_EQ(found[i], sound[i]) << bad << " at " << i;
        }
      }
    }
  }
}

// Sums at the ends of their range: the lowest codes times blocks that are as long as they can be.
TEST_F(CudaOperand, TheLargestSumsAreExact) {
  struct Kind {
    StorageType type;
    std::byte codes;
    double code;
  };
  for (const Kind& kind : {Kind{StorageType::kQ4_0, std::byte{0}, -8},
                           {StorageType::kQ4_0, std::byte{0xff}, 7},
                           {StorageType::kQ8_0, std::byte{0x80}, -128}}) {
    std::vector<std::byte> storage(*storage_bytes(kind.type, std::size_t{64} * kWidth), kind.codes);
    const std::size_t block = storage_info(kind.type).block_bytes;
    for (std::size_t at = 0; at < storage.size(); at += block) {
      storage[at] = std::byte{0};
      storage[at + 1] = std::byte{0x3c};  // 1 in f16
    }
    Weights w = model_.w;
    w.token_embd.type = kind.type;
    w.token_embd.data = storage.data();
    const auto backend = make_cuda_backend(model_.g, w);
    for (const std::uint32_t rows : {1u, 5u, 16u, 32u}) {
      const auto cache = backend->new_cache(KvPlan::make(model_.g, 64, 64, KvType::kF16));
      const std::vector<std::int32_t> tokens(rows, 1);
      std::vector<std::uint32_t> all(rows);
      for (std::uint32_t r = 0; r < rows; ++r) all[r] = r;
      const RowSpan span[] = {{cache.get(), 0, rows, false}};
      backend->begin({span, tokens, {}, all, all});
      // 32,767 of 16,384: rounded to 2. And a little less than the longest that keeps its bits.
      for (const auto& [x, rounded] :
           {std::pair(32767.0f / 16384, 2.0), {16381.0f / 16384, 16381.0 / 16384}}) {
        for (const float sign : {1.0f, -1.0f}) {
          backend->write(Activation::kFinal, std::vector<float>(std::size_t{rows} * kWidth, sign * x));
          backend->head();
          for (std::uint32_t r = 0; r < rows; ++r)
            ASSERT_EQ(backend->logits(r)[63], kind.code * double{sign} * rounded * kWidth)
                << rows << ' ' << x;
        }
      }
    }
  }
}

}  // namespace
}  // namespace gem::cuda
