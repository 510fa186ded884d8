// What the parts of the decode kernel share: its shared memory, barriers, sums over a block.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/decode.h"

namespace gem::cuda {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr std::uint32_t kMostSlots = 8;
constexpr int kRowVectors = 4;  // float4 a thread: rows of up to 8,192

struct DecodeShared {
  std::uint64_t barriers[kWarps][kMostSlots];
  float sums[2][kWarps];
  DecodeLayer layers[2];
  DecodeOp ops[2][kOpsOfLayer];
};

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Waits for `threads` threads of the block that name the same barrier (1 .. 15).
__device__ inline void group_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Waits for every block of the grid; what they wrote is visible afterwards.
__device__ inline void grid_sync(unsigned* counter, unsigned& target) {
  __syncthreads();
  target += gridDim.x;
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    unsigned seen = 0;
    std::uint32_t spins = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
      if (++spins == 1u << 26) __trap();  // half a minute: some block has died
    } while (seen < target);
  }
  __syncthreads();
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The sum over the block in a fixed order; every thread gets it.
__device__ inline float block_sum(DecodeShared& s, unsigned& flip, float x) {
  x = warp_sum(x);
  flip ^= 1;
  if (threadIdx.x % 32 == 0) s.sums[flip][threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += s.sums[flip][w];
  return sum;
}

__device__ inline float square_sum(float4 v) {
  return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}
__device__ inline float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// Other blocks wrote it in this kernel: not through the first-level cache.
__device__ inline float4 load4(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}

// The result of a product: `pieces` partial sums of each part, [parts * pieces][rows][width].
struct Parts {
  const float* data;
  std::uint32_t parts, rows, width;
};
template <int Pieces>
__device__ inline float4 load_sum4(const Parts& p, std::uint32_t row, std::uint32_t col) {
  const std::size_t stride = std::size_t{p.rows} * p.width;
  const float* at = p.data + std::size_t{row} * p.width + col;
  float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 4
  for (std::uint32_t i = 0; i < p.parts; ++i, at += Pieces * stride) {
    float4 v = load4(at);
    if constexpr (Pieces == 2) v = add(v, load4(at + stride));
    if constexpr (Pieces == 4) v = add(add(v, load4(at + stride)), add(load4(at + 2 * stride), load4(at + 3 * stride)));
    total = i == 0 ? v : add(total, v);
  }
  return total;
}
template <int Pieces>
__device__ inline float load_sum(const Parts& p, std::uint32_t row, std::uint32_t col) {
  const std::size_t stride = std::size_t{p.rows} * p.width;
  const float* at = p.data + std::size_t{row} * p.width + col;
  float total = 0;
#pragma unroll 2
  for (std::uint32_t i = 0; i < p.parts; ++i, at += Pieces * stride) {
    float v = __ldcg(at);
    if constexpr (Pieces == 2) v = v + __ldcg(at + stride);
    if constexpr (Pieces == 4) v = (v + __ldcg(at + stride)) + (__ldcg(at + 2 * stride) + __ldcg(at + 3 * stride));
    total = i == 0 ? v : total + v;
  }
  return total;
}

__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline float gelu_tanh(float x) {
  constexpr float kRootTwoOverPi = 0.79788456080286535588f;
  return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + 0.044715f * x * x * x)));
}

}  // namespace gem::cuda
