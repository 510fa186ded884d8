#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/unpack.cuh"

namespace gem::cuda {
namespace {

constexpr int kRowWarps = 32;
constexpr std::uint32_t kRowsAtOnce = 4;

// One block: a tile of 16 rows of W times rows first .. first + 3 of x. A warp takes every 32nd chunk, a lane
// its own codes of it: rows r and r + 8 (r = lane / 4) of sixteen columns. Sums over the four lanes of a row,
// then over the warps, in a fixed order.
template <Format F>
__global__ void __launch_bounds__(kRowWarps * 32)
    multiply_kernel(const std::uint8_t* data, std::uint32_t chunks, std::uint32_t rows, std::uint32_t cols,
                    const float* x, std::uint32_t count, float* y) {
  float(&shared)[kRowWarps][kTileRows * kRowsAtOnce] =
      block_shared<float[kRowWarps][kTileRows * kRowsAtOnce]>();
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t tile = blockIdx.x;
  const std::uint32_t first = blockIdx.y * kRowsAtOnce;
  float sum[2][kRowsAtOnce] = {};
#pragma unroll 1
  for (std::uint32_t chunk = warp; chunk < chunks; chunk += kRowWarps) {
    const std::uint8_t* from = data + (std::uint64_t{tile} * chunks + chunk) * chunk_bytes(F);
#pragma unroll
    for (std::uint32_t pair = 0; pair < 8; ++pair) {
      const std::uint32_t in_chunk = pair / 2 * 16 + lane % 4 * 4 + pair % 2 * 2;
      const std::uint32_t col = chunk * 64 + in_chunk;
      float w[2][2];
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half) {
        w[half][0] = unpack(F, from, lane / 4 + half * 8, in_chunk);
        w[half][1] = unpack(F, from, lane / 4 + half * 8, in_chunk + 1);
      }
#pragma unroll
      for (std::uint32_t r = 0; r < kRowsAtOnce; ++r) {
        if (first + r >= count) break;
        float2 v = make_float2(0, 0);
        if (col < cols) v = *reinterpret_cast<const float2*>(x + std::uint64_t{first + r} * cols + col);
#pragma unroll
        for (std::uint32_t half = 0; half < 2; ++half)
          sum[half][r] = fmaf(w[half][1], v.y, fmaf(w[half][0], v.x, sum[half][r]));
      }
    }
  }
#pragma unroll
  for (std::uint32_t half = 0; half < 2; ++half) {
#pragma unroll
    for (std::uint32_t r = 0; r < kRowsAtOnce; ++r) {
      float s = sum[half][r];
#pragma unroll
      for (int step = 2; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
      if (lane % 4 == 0) shared[warp][r * kTileRows + half * 8 + lane / 4] = s;
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

template <Format F>
void multiply(const PackedMatrix& m, const float* x, std::uint32_t count, float* y, cudaStream_t stream) {
  launch(multiply_kernel<F>,
         {dim3(m.tiles, (count + kRowsAtOnce - 1) / kRowsAtOnce), kRowWarps * 32, 0, stream}, m.data.data(),
         m.chunks, m.rows, m.cols, x, count, y);
  check_launch("a product of a few rows");
}

}  // namespace

void multiply_rows(const PackedMatrix& m, const float* x, std::uint32_t count, float* y,
                   cudaStream_t stream) {
  switch (m.format) {
    case Format::kQ4:
      return multiply<Format::kQ4>(m, x, count, y, stream);
    case Format::kQ8:
      return multiply<Format::kQ8>(m, x, count, y, stream);
    case Format::kH16:
      return multiply<Format::kH16>(m, x, count, y, stream);
    case Format::kA4:
      return multiply<Format::kA4>(m, x, count, y, stream);
    case Format::kA8:
      return multiply<Format::kA8>(m, x, count, y, stream);
    case Format::kS8:
      return multiply<Format::kS8>(m, x, count, y, stream);
  }
}

}  // namespace gem::cuda
