#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/kv_element.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/prompt.h"
#include "backend/cuda/ptx.cuh"

namespace gem::cuda {
namespace {

constexpr int kThreads = 256;

// The sum over the block in a fixed order; every thread gets it.
template <int Threads>
__device__ float block_sum(float x) {
  float(&shared)[Threads / 32] = block_shared<float[Threads / 32]>();
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Threads / 32; ++w) sum += shared[w];
  return sum;
}

__device__ uint2 pack4(float a, float b, float c, float d) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(a, b);
  const __nv_bfloat162 high = __floats2bfloat162_rn(c, d);
  return make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
}

__global__ void __launch_bounds__(kThreads)
    norm_kernel(const float* x, std::uint32_t width, const float* weight, float epsilon, std::uint16_t* out) {
  const float* row = x + std::size_t{blockIdx.x} * width;
  float squares = 0;
  for (std::uint32_t c = threadIdx.x * 4; c < width; c += kThreads * 4) {
    const float4 v = *reinterpret_cast<const float4*>(row + c);
    squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
  }
  const float scale = rsqrtf(block_sum<kThreads>(squares) / static_cast<float>(width) + epsilon);
  for (std::uint32_t c = threadIdx.x * 4; c < width; c += kThreads * 4) {
    const float4 v = *reinterpret_cast<const float4*>(row + c);
    const float4 w = *reinterpret_cast<const float4*>(weight + c);
    *reinterpret_cast<uint2*>(out + std::size_t{blockIdx.x} * width + c) =
        pack4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
  }
}

__device__ float gelu_tanh(float x) {
  constexpr float kRootTwoOverPi = 0.79788456080286535588f;
  return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + 0.044715f * x * x * x)));
}

__global__ void activate_kernel(const float* both, std::uint32_t width, std::uint16_t* out) {
  const std::uint32_t c = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (c >= width) return;
  const float* row = both + std::size_t{blockIdx.y} * 2 * width;
  const float4 g = *reinterpret_cast<const float4*>(row + c);
  const float4 u = *reinterpret_cast<const float4*>(row + width + c);
  *reinterpret_cast<uint2*>(out + std::size_t{blockIdx.y} * width + c) =
      pack4(gelu_tanh(g.x) * u.x, gelu_tanh(g.y) * u.y, gelu_tanh(g.z) * u.z, gelu_tanh(g.w) * u.w);
}

__global__ void to_bf16_kernel(const float* x, std::size_t count, __nv_bfloat16* out) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = __float2bfloat16_rn(x[i]);
}

__global__ void __launch_bounds__(kThreads)
    add_kernel(const float* branch, std::uint32_t width, const float* weight, float scale, float epsilon,
               float* residual) {
  const float* row = branch + std::size_t{blockIdx.x} * width;
  float* to = residual + std::size_t{blockIdx.x} * width;
  float squares = 0;
  for (std::uint32_t c = threadIdx.x * 4; c < width; c += kThreads * 4) {
    const float4 v = *reinterpret_cast<const float4*>(row + c);
    squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
  }
  const float norm = rsqrtf(block_sum<kThreads>(squares) / static_cast<float>(width) + epsilon);
  for (std::uint32_t c = threadIdx.x * 4; c < width; c += kThreads * 4) {
    const float4 v = *reinterpret_cast<const float4*>(row + c);
    const float4 w = *reinterpret_cast<const float4*>(weight + c);
    float4 r = *reinterpret_cast<const float4*>(to + c);
    r.x = (r.x + v.x * norm * w.x) * scale;
    r.y = (r.y + v.y * norm * w.y) * scale;
    r.z = (r.z + v.z * norm * w.z) * scale;
    r.w = (r.w + v.w * norm * w.w) * scale;
    *reinterpret_cast<float4*>(to + c) = r;
  }
}

constexpr int kHeadThreads = 128;
constexpr int kMaxPairs = 2;  // a thread: head widths up to 512

// One block: one head of one row. Heads 0 .. heads - 1 are queries, then keys, then values.
__global__ void __launch_bounds__(kHeadThreads)
    heads_kernel(const float* qkv, std::uint32_t width, const RowInfo* rows, std::uint32_t layer, HeadShape s,
                 const float* q_weight, const float* k_weight, const double* frequencies, float epsilon,
                 float* query) {
  const std::uint32_t row = blockIdx.y;
  const float* values = qkv + std::size_t{row} * width;
  const std::uint32_t d = s.head_dim;
  const std::uint32_t half = d / 2;
  const RowInfo info = rows[row];
  const bool is_query = blockIdx.x < s.heads;
  const bool is_key = !is_query && blockIdx.x < s.heads + s.kv_heads;
  const std::uint32_t head = is_query ? blockIdx.x
                             : is_key ? blockIdx.x - s.heads
                                      : blockIdx.x - s.heads - s.kv_heads;
  // Where a layer takes V from K both start from the same columns.
  const std::uint32_t column =
      is_query ? head * d : s.heads * d + head * d + (is_key || s.value_from_key ? 0 : s.kv_heads * d);
  float u[kMaxPairs] = {};
  float v[kMaxPairs] = {};
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const std::uint32_t p = threadIdx.x + i * kHeadThreads;
    if (p >= half) continue;
    u[i] = values[column + p];
    v[i] = values[column + half + p];
    squares += u[i] * u[i] + v[i] * v[i];
  }
  const float scale = rsqrtf(block_sum<kHeadThreads>(squares) / static_cast<float>(d) + epsilon);
  const CacheLayer cache = info.layers[layer];
  const std::uint32_t slot = info.position % cache.slots;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const std::uint32_t p = threadIdx.x + i * kHeadThreads;
    if (p >= half) continue;
    u[i] *= scale;
    v[i] *= scale;
    if (!is_query && !is_key) {
      const std::size_t first = std::size_t{head} * d * cache.slots + slot;
      store_element(cache.values, first + std::size_t{p} * cache.slots, cache.element, u[i]);
      store_element(cache.values, first + std::size_t{half + p} * cache.slots, cache.element, v[i]);
      continue;
    }
    const float* weight = is_query ? q_weight : k_weight;
    u[i] *= weight[p];
    v[i] *= weight[half + p];
    // The angle is formed and reduced in float64, so that it stays exact at long positions.
    const double angle = static_cast<double>(info.position) * frequencies[p];
    constexpr double kTurn = 6.283185307179586476925286766559;
    const float a = static_cast<float>(angle - kTurn * rint(angle / kTurn));
    float sine;
    float cosine;
    sincosf(a, &sine, &cosine);
    const float x = u[i] * cosine - v[i] * sine;
    const float y = v[i] * cosine + u[i] * sine;
    if (is_query) {
      float* out = query + (std::size_t{row} * s.heads + head) * d;
      out[p] = x;
      out[half + p] = y;
    } else {
      const std::size_t first = (std::size_t{head} * cache.slots + slot) * cache.key_stride;
      store_element(cache.keys, first + p, cache.element, x);
      store_element(cache.keys, first + half + p, cache.element, y);
    }
  }
}

}  // namespace

void norm_to_bf16(const float* x, std::uint32_t rows, std::uint32_t width, const float* weight, float epsilon,
                  std::uint16_t* out, cudaStream_t stream) {
  launch(norm_kernel, {rows, kThreads, 0, stream}, x, width, weight, epsilon, out);
  check_launch("prompt norm");
}

void activate_bf16(const float* both, std::uint32_t rows, std::uint32_t width, std::uint16_t* out,
                   cudaStream_t stream) {
  launch(activate_kernel, {dim3((width + 1023) / 1024, rows), 256, 0, stream}, both, width, out);
  check_launch("prompt activation");
}

void to_bf16(const float* x, std::size_t count, std::uint16_t* out, cudaStream_t stream) {
  launch(to_bf16_kernel, {static_cast<unsigned>((count + 255) / 256), 256, 0, stream}, x, count,
         reinterpret_cast<__nv_bfloat16*>(out));
  check_launch("to_bf16");
}

void add_branch(const float* branch, std::uint32_t rows, std::uint32_t width, const float* weight,
                float scale, float epsilon, float* residual, cudaStream_t stream) {
  launch(add_kernel, {rows, kThreads, 0, stream}, branch, width, weight, scale, epsilon, residual);
  check_launch("prompt residual");
}

void prepare_heads(const float* qkv, std::uint32_t count, std::uint32_t width, const RowInfo* rows,
                   std::uint32_t layer, const HeadShape& shape, const float* q_weight, const float* k_weight,
                   const double* frequencies, float epsilon, float* query, cudaStream_t stream) {
  launch(heads_kernel, {dim3(shape.heads + 2 * shape.kv_heads, count), kHeadThreads, 0, stream}, qkv, width,
         rows, layer, shape, q_weight, k_weight, frequencies, epsilon, query);
  check_launch("prompt heads");
}

}  // namespace gem::cuda
