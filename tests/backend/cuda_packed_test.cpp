// Matrices packed on the device give back what the host reads from them.
#include <gtest/gtest.h>

#include <random>

#include "backend/cuda/cuda.h"
#include "backend/cuda/packed.h"
#include "backend/cuda/rows.h"
#include "base/storage.h"

namespace gem::cuda {
namespace {

class CudaPacked : public ::testing::TestWithParam<StorageType> {};

TEST_P(CudaPacked, RowsAreThoseOfTheHost) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  // Neither whole tiles nor whole chunks.
  for (const auto& [rows, cols] : {std::pair{40u, 96u}, {16u, 64u}, {131u, 256u}}) {
    std::mt19937 random(rows);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<std::byte> storage(*storage_bytes(GetParam(), std::size_t{rows} * cols));
    Matrix m;
    m.type = GetParam();
    m.rows = rows;
    m.cols = cols;
    m.data = storage.data();
    std::vector<float> row(cols);
    for (std::uint32_t r = 0; r < rows; ++r) {
      for (float& x : row) x = normal(random);
      quantize(m.type, row.data(), storage.data() + r * m.row_bytes(), cols);
    }
    cudaStream_t stream = nullptr;
    Packer packer(stream);
    const PackedMatrix packed = packer.pack(m);
    std::vector<RowInfo> infos(rows);
    for (std::uint32_t r = 0; r < rows; ++r) infos[r].token = static_cast<std::int32_t>(r);
    DeviceArray<RowInfo> device_infos;
    device_infos.upload(infos, stream);
    DeviceArray<float> out(std::size_t{rows} * cols);
    gather_rows(packed, device_infos.data(), rows, 1.0f, out.data(), cols, stream);
    const std::vector<float> found = out.download(out.size(), stream);
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

INSTANTIATE_TEST_SUITE_P(Types, CudaPacked,
                         ::testing::Values(StorageType::kQ4_0, StorageType::kQ8_0, StorageType::kF16,
                                           StorageType::kBF16),
                         [](const auto& test) { return std::string(storage_info(test.param).name); });

}  // namespace
}  // namespace gem::cuda
