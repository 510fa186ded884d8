// What the parts of the decode kernel share: its shared memory, barriers, sums over a block.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/decode.h"

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

// The thread and block, read anew at every call: what is derived from them is not kept in registers through
// the whole kernel (the compiler would, and spill).
__device__ __forceinline__ std::uint32_t thread_index() {
  std::uint32_t i;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i));
  return i;
}
__device__ __forceinline__ std::uint32_t block_index() {
  std::uint32_t i;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(i));
  return i;
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Waits for `threads` threads of the block that name the same barrier (1 .. 15).
__device__ __forceinline__ void group_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Waits for every block of the grid; what they wrote is visible afterwards.
__device__ __forceinline__ void grid_sync(unsigned* counter, unsigned& target) {
  __syncthreads();
  target += gridDim.x;
  if (thread_index() == 0) {
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

__device__ __forceinline__ void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// The result of a product: `pieces` partial sums of each part, [parts * pieces][rows][width]. While weights
// stream in, a read takes microseconds, so up to `Batch` partial sums are asked for before the first is used.
struct Parts {
  const float* data;
  std::uint32_t parts, rows, width;
};

// Loads that keep their order, so that addresses are made one after the other and need few registers. Zero
// where not wanted.
__device__ __forceinline__ void load_if(bool wanted, const float* p, float& v) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\nmov.f32 %0, 0f00000000;\n@p ld.global.cg.f32 %0, [%1];\n}"
      : "=f"(v)
      : "l"(p), "r"(static_cast<unsigned>(wanted))
      : "memory");
}
__device__ __forceinline__ void load_if(bool wanted, const float* p, float4& v) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\nmov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\nmov.f32 "
      "%2, "
      "0f00000000;\nmov.f32 %3, 0f00000000;\n@p ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "l"(p), "r"(static_cast<unsigned>(wanted))
      : "memory");
}
__device__ __forceinline__ float add(float a, float b) {
  return a + b;
}
__device__ __forceinline__ void clear(float& x) {
  x = 0;
}
__device__ __forceinline__ void clear(float4& x) {
  x = make_float4(0, 0, 0, 0);
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
    if constexpr (Pieces == 1) return v[i];
    if constexpr (Pieces == 2) return add(v[i], v[i + 1]);
    if constexpr (Pieces == 4) return add(add(v[i], v[i + 1]), add(v[i + 2], v[i + 3]));
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

__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kRootTwoOverPi = 0.79788456080286535588f;
  return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + 0.044715f * x * x * x)));
}

}  // namespace gem::cuda
