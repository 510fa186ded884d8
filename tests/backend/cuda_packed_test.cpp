// Matrices packed on the device give back what the host reads from them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "backend/cuda/cuda.h"
#include "backend/cuda/packed.h"
#include "backend/cuda/rows.h"
#include "backend/expect_product.h"
#include "backend/random_storage.h"

namespace gem::cuda {
namespace {

using testing::expect_product;
using testing::MatrixKind;
using testing::RandomMatrix;

constexpr MatrixKind kKinds[] = {
    {StorageType::kQ4_0},          {StorageType::kQ8_0},          {StorageType::kF16},
    {StorageType::kBF16},          {StorageType::kQ4_1},          {StorageType::kQ5_0},
    {StorageType::kQ5_1},          {StorageType::kQ4_K},          {StorageType::kQ5_K},
    {StorageType::kQ6_K},          {StorageType::kAffine, 2, 64}, {StorageType::kAffine, 3, 32},
    {StorageType::kAffine, 4, 64}, {StorageType::kAffine, 5, 32}, {StorageType::kAffine, 6, 128},
    {StorageType::kAffine, 8, 64}};
const auto kKindName = [](const auto& test) { return test.param.name(); };

// Every step-th row as the device reads it.
std::vector<float> every_row(const PackedMatrix& packed, std::uint32_t step) {
  const std::uint32_t count = packed.rows / step;
  std::vector<RowInfo> infos(count);
  for (std::uint32_t r = 0; r < count; ++r) infos[r].token = static_cast<std::int32_t>(r * step);
  cudaStream_t stream = nullptr;
  DeviceArray<RowInfo> device_infos;
  device_infos.upload(infos, stream);
  DeviceArray<float> out(std::size_t{count} * packed.cols);
  gather_rows(packed, device_infos.data(), count, 1.0f, out.data(), packed.cols, stream);
  return out.download(out.size(), stream);
}

class CudaPacked : public ::testing::TestWithParam<MatrixKind> {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  }
  // Columns of whole blocks and groups, as few as can be.
  static std::uint32_t columns(std::uint32_t least) {
    const std::uint32_t unit = GetParam().type == StorageType::kAffine
                                   ? GetParam().group
                                   : storage_info(GetParam().type).block_elements;
    return (least + unit - 1) / unit * unit;
  }
};

TEST_P(CudaPacked, RowsAreThoseOfTheHost) {
  // Neither whole tiles nor whole chunks.
  for (const auto& [rows, least] : {std::pair{40u, 96u}, {16u, 64u}, {131u, 256u}}) {
    const std::uint32_t cols = columns(least);
    const RandomMatrix random(GetParam(), rows, cols, rows);
    const Matrix& m = random.matrix;
    cudaStream_t stream = nullptr;
    Packer packer(stream);
    const PackedMatrix packed = packer.pack(m);
    const std::vector<float> found = every_row(packed, 1);
    std::vector<float> row(cols);
    std::size_t wrong = 0;
    for (std::uint32_t r = 0; r < rows; ++r) {
      m.expand_row(r, row.data());
      for (std::uint32_t c = 0; c < cols; ++c) {
        if (found[std::size_t{r} * cols + c] == row[c]) continue;
        if (++wrong < 4)
          ADD_FAILURE() << rows << " x " << cols << ": row " << r << " column " << c << " is "
                        << found[std::size_t{r} * cols + c] << ", not " << row[c];
      }
    }
    EXPECT_EQ(wrong, 0u);
  }
}

TEST_P(CudaPacked, FewRowsAreMultiplied) {
  const std::uint32_t cols = columns(256);
  const RandomMatrix random(GetParam(), 40, cols, 5);
  cudaStream_t stream = nullptr;
  Packer packer(stream);
  const PackedMatrix packed = packer.pack(random.matrix);
  const std::vector<float> x = testing::random_floats(std::size_t{5} * cols, 6);
  DeviceArray<float> in, out(5 * 40);
  in.upload(x, stream);
  multiply_rows(packed, in.data(), 5, out.data(), stream);
  const std::vector<float> y = out.download(5 * 40, stream);
  for (std::size_t r = 0; r < 5; ++r)
    expect_product(random.matrix, std::span(x).subspan(r * cols, cols), std::span(y).subspan(r * 40, 40),
                   "multiply_rows");
}

// The decode kernel's product: the queries of a layer whose norm changes nothing but the length of a row.
TEST_P(CudaPacked, TheDecodeKernelMultiplies) {
  Geometry g;
  g.hidden = columns(256);
  g.ffn = columns(256);
  g.heads = 2;
  g.window = 32;
  g.vocab = 64;
  g.context = 64;
  g.norm_epsilon = 0;
  g.rope_base_sliding = g.rope_base_full = 1e4;
  g.embedding_multiplier = 1;
  const std::uint32_t wide = columns(64);
  g.layers = {{LayerKind::kSliding, wide / 2, 1, false}};
  std::vector<std::unique_ptr<RandomMatrix>> kept;
  const auto matrix = [&](std::uint32_t rows, std::uint32_t cols) {
    kept.push_back(
        std::make_unique<RandomMatrix>(GetParam(), rows, cols, static_cast<unsigned>(kept.size())));
    return kept.back()->matrix;
  };
  Weights w;
  w.layers.resize(1);
  LayerWeights& l = w.layers[0];
  l.q = matrix(wide, g.hidden);
  l.k = matrix(wide / 2, g.hidden);
  l.v = matrix(wide / 2, g.hidden);
  l.o = matrix(g.hidden, wide);
  l.gate = matrix(g.ffn, g.hidden);
  l.up = matrix(g.ffn, g.hidden);
  l.down = matrix(g.hidden, g.ffn);
  w.token_embd = matrix(g.vocab, g.hidden);
  w.output_norm.assign(g.hidden, 1);
  l.attn_norm = l.post_attention_norm = l.ffn_norm = l.post_ffw_norm = w.output_norm;
  l.q_norm.assign(wide / 2, 1);
  l.k_norm = l.q_norm;
  const auto backend = make_cuda_backend(g, w);
  for (const std::uint32_t rows : {1u, 9u, 17u}) {
    const auto cache = backend->new_cache(KvPlan::make(g, 32, 32, KvType::kF16));
    std::vector<std::int32_t> tokens(rows);
    for (std::uint32_t r = 0; r < rows; ++r) tokens[r] = static_cast<std::int32_t>(r);
    const RowSpan span[] = {{cache.get(), 0, rows, false}};
    backend->begin({span, tokens, {}, {}, {}});
    backend->embed();
    backend->attn_input(0);
    const std::vector<float> y = backend->read(Activation::kQuery);
    std::vector<float> x(g.hidden);
    for (std::uint32_t r = 0; r < rows; ++r) {
      w.token_embd.expand_row(r, x.data());
      double squares = 0;
      for (const float v : x) squares += double{v} * double{v};
      for (float& v : x) v = static_cast<float>(double{v} / std::sqrt(squares / g.hidden));
      expect_product(l.q, x, std::span(y).subspan(std::size_t{r} * wide, wide), "queries",
                     testing::kSixteenBitProduct);
    }
  }
}

// No device is needed for this one.
TEST(DeviceKernels, RunWhereTheyWereBuiltFor) {
  EXPECT_TRUE(kernels_run_on("90a", 9, 0));
  EXPECT_FALSE(kernels_run_on("90a", 8, 9));
  EXPECT_FALSE(kernels_run_on("90a", 10, 0));
  EXPECT_TRUE(kernels_run_on("80,90a", 8, 9));
  EXPECT_TRUE(kernels_run_on("80", 12, 0));
  EXPECT_FALSE(kernels_run_on("89", 8, 6));
  EXPECT_FALSE(kernels_run_on("75", 7, 5));
  EXPECT_FALSE(kernels_run_on("", 9, 0));
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaPacked, ::testing::ValuesIn(kKinds), kKindName);

// An assistant's large matrices are rounded to four bits, as quantize() rounds; small ones and those with no
// more bits are kept.
TEST(CudaPrecision, AnAssistantsLargeMatricesHaveFourBits) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  for (const StorageType type :
       {StorageType::kQ8_0, StorageType::kQ6_K, StorageType::kF16, StorageType::kQ4_K}) {
    SCOPED_TRACE(storage_info(type).name);
    const std::uint32_t rows = 4096;
    const std::uint32_t cols = 256;
    const RandomMatrix random({type}, rows, cols, 3);
    const Matrix& m = random.matrix;
    const bool kept = type == StorageType::kQ4_K;
    EXPECT_EQ(format_of(m, Precision::kFourBits), kept ? Format::kA4 : Format::kQ4);
    const RandomMatrix small({type}, rows - 16, cols, 3);
    EXPECT_EQ(format_of(small.matrix, Precision::kFourBits), format_of(small.matrix, Precision::kKept));
    cudaStream_t stream = nullptr;
    Packer packer(stream, Precision::kFourBits);
    const PackedMatrix packed = packer.pack(m);
    EXPECT_EQ(packed.data.size(), packed_bytes(m, Precision::kFourBits));
    constexpr std::uint32_t kStep = 40;
    const std::vector<float> found = every_row(packed, kStep);
    std::vector<float> row(cols);
    std::vector<std::uint8_t> blocks(*storage_bytes(StorageType::kQ4_0, cols));
    for (std::uint32_t r = 0; r < rows / kStep; ++r) {
      m.expand_row(r * kStep, row.data());
      if (!kept) {
        quantize(StorageType::kQ4_0, row.data(), blocks.data(), cols);
        dequantize(StorageType::kQ4_0, blocks.data(), row.data(), cols);
      }
      for (std::uint32_t c = 0; c < cols; ++c)
        ASSERT_EQ(found[std::size_t{r} * cols + c], row[c]) << r << ' ' << c;
    }
  }
}

}  // namespace
}  // namespace gem::cuda
