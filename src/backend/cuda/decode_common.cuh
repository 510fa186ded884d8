// What the parts of the decode kernel share: its shared memory, barriers, sums over a block.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/decode.h"
#include "backend/cuda/ptx.cuh"

namespace gem::cuda {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr std::uint32_t kMostSlots = 8;
constexpr int kRowVectors = kWidestRow / (4 * kThreads);  // float4 a thread

constexpr std::uint32_t kCachedRows = 64;  // whose infos are kept in shared memory

// Where a warp stands in the weights between products: what it asks for next, what it reads next.
struct CursorState {
  std::uint32_t op, pass, tile, left, slot;
};
struct ReaderState {
  std::uint32_t slot, parity;
};

struct DecodeShared {
  CursorState cursors[kWarps];
  ReaderState readers[kWarps];
  DecodeJob job;
  std::uint64_t barriers[kWarps][kMostSlots];
  float sums[kWarps];
  DecodeLayer layers[2];
  RowInfo rows[kCachedRows];
  CacheLayer caches[2][kCachedRows];  // of the layer and the next
};

// Waits for every block of the grid; what they wrote is visible afterwards.
__device__ __forceinline__ void grid_sync(unsigned* counter, unsigned& target) {
  __syncthreads();
  target += gridDim.x;
  if (thread_index() == 0) {
    add_release(counter);
    std::uint32_t spins = 0;
    while (load_acquire(counter) < target) {
      if (++spins == 1u << 26) __trap();  // half a minute: some block has died
    }
  }
  __syncthreads();
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The sum over the block in a fixed order; every thread gets it.
__device__ __forceinline__ float block_sum(DecodeShared& s, float x) {
  const std::uint32_t thread = thread_index();
  x = warp_sum(x);
  __syncthreads();  // the last sum has been read
  if (thread % 32 == 0) s.sums[thread / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += s.sums[w];
  return sum;
}

__device__ __forceinline__ float square_sum(float4 v) {
  return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}
__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// Other blocks wrote it in this kernel: not through the first-level cache.
__device__ __forceinline__ float4 load4(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}

// The result of a product: `pieces` partial sums of each part, [parts * pieces][rows][width]. While weights
// stream in, a read takes microseconds, so up to `Batch` partial sums are asked for before the first is used.
struct Parts {
  const float* data;
  std::uint32_t parts, rows, width;
};

__device__ __forceinline__ float add(float a, float b) {
  return a + b;
}
__device__ __forceinline__ void clear(float& x) {
  x = 0;
}
__device__ __forceinline__ void clear(float4& x) {
  x = make_float4(0, 0, 0, 0);
}

// Of `Pieces` values at v, in the order that every sum of pieces has.
template <int Pieces, typename T>
__device__ __forceinline__ T sum_pieces(const T* v) {
  if constexpr (Pieces == 1) return v[0];
  if constexpr (Pieces == 2) return add(v[0], v[1]);
  if constexpr (Pieces == 4) return add(add(v[0], v[1]), add(v[2], v[3]));
}

// T: float, or float4 for four neighbouring columns. First issue(), then total().
template <int Pieces, typename T, int Batch>
struct PartSum {
  static_assert(Batch % Pieces == 0);
  T v[Batch];

  __device__ void issue(const Parts& p, std::uint32_t row, std::uint32_t col, bool wanted = true) {
    const std::size_t stride = std::size_t{p.rows} * p.width;
    const float* at = p.data + std::size_t{row} * p.width + col;
#pragma unroll
    for (int i = 0; i < Batch; ++i, at += stride)
      load_if(wanted && i < static_cast<int>(p.parts) * Pieces, at, v[i]);
  }
  // The sum of the part whose pieces begin at v[i].
  __device__ T part(int i) const {
    return sum_pieces<Pieces>(v + i);
  }
  __device__ T total(const Parts& p, std::uint32_t row, std::uint32_t col) {
    T sum = part(0);
#pragma unroll
    for (int i = Pieces; i < Batch; i += Pieces) {
      if (i < static_cast<int>(p.parts) * Pieces) sum = add(sum, part(i));
    }
    const std::size_t stride = std::size_t{p.rows} * p.width;
    const float* at = p.data + std::size_t{row} * p.width + col;
#pragma unroll 1
    for (std::uint32_t first = Batch; first < p.parts * Pieces; first += Batch) {
#pragma unroll
      for (int i = 0; i < Batch; ++i) load_if(first + i < p.parts * Pieces, at + (first + i) * stride, v[i]);
#pragma unroll
      for (int i = 0; i < Batch; i += Pieces) {
        if (first + i < p.parts * Pieces) sum = add(sum, part(i));
      }
    }
    return sum;
  }
};

__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kRootTwoOverPi = 0.79788456080286535588f;
  return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + 0.044715f * x * x * x)));
}

}  // namespace gem::cuda
