#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/unpack.cuh"

namespace gem::cuda {
namespace {

constexpr int kRowWarps = 16;
constexpr int kRowsAtOnce = 4;

// One block: a tile of 16 rows of W times rows first .. first + 3 of x. A warp takes every 16th chunk, a lane
// two columns of it; sums over the lanes, then over the warps, in a fixed order.
__global__ void __launch_bounds__(kRowWarps * 32)
    multiply_kernel(Format format, const std::uint8_t* data, std::uint32_t chunks, std::uint32_t rows,
                    std::uint32_t cols, const float* x, std::uint32_t count, float* y) {
  float(&shared)[kRowWarps][kTileRows * kRowsAtOnce] =
      block_shared<float[kRowWarps][kTileRows * kRowsAtOnce]>();
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t tile = blockIdx.x;
  const std::uint32_t first = blockIdx.y * kRowsAtOnce;
  float sum[kTileRows][kRowsAtOnce] = {};
  for (std::uint32_t chunk = warp; chunk < chunks; chunk += kRowWarps) {
    const std::uint8_t* from = data + (std::uint64_t{tile} * chunks + chunk) * chunk_bytes(format);
    const std::uint32_t col = chunk * 64 + lane * 2;
    float2 v[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      v[r] = make_float2(0, 0);
      if (first + r < count && col < cols)
        v[r] = *reinterpret_cast<const float2*>(x + std::uint64_t{first + r} * cols + col);
    }
#pragma unroll
    for (std::uint32_t row = 0; row < kTileRows; ++row) {
      const float w0 = unpack(format, from, row, lane * 2);
      const float w1 = unpack(format, from, row, lane * 2 + 1);
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) sum[row][r] = fmaf(w1, v[r].y, fmaf(w0, v[r].x, sum[row][r]));
    }
  }
#pragma unroll
  for (std::uint32_t row = 0; row < kTileRows; ++row) {
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      float s = sum[row][r];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
      if (lane == 0) shared[warp][r * kTileRows + row] = s;
    }
  }
  __syncthreads();
  const std::uint32_t row = tile * kTileRows + threadIdx.x % kTileRows;
  const std::uint32_t r = first + threadIdx.x / kTileRows;
  if (threadIdx.x >= kTileRows * kRowsAtOnce || row >= rows || r >= count) return;
  float s = 0;
  for (int w = 0; w < kRowWarps; ++w) s += shared[w][threadIdx.x];
  y[std::uint64_t{r} * rows + row] = s;
}

}  // namespace

void multiply_rows(const PackedMatrix& m, const float* x, std::uint32_t count, float* y,
                   cudaStream_t stream) {
  launch(multiply_kernel, {dim3(m.tiles, (count + kRowsAtOnce - 1) / kRowsAtOnce), kRowWarps * 32, 0, stream},
         m.format, m.data.data(), m.chunks, m.rows, m.cols, x, count, y);
  check_launch("a product of a few rows");
}

}  // namespace gem::cuda
