#include <algorithm>

#include "backend/cuda/launch.h"
#include "backend/cuda/rows.h"

namespace gem::cuda {
namespace {

// A row is shared by the blocks of a cluster, each with a piece of whole 32-blocks.
constexpr int kThreads = 256;
constexpr int kMaxVectors = 4;  // float4 a thread
constexpr unsigned kMostBlocks = 8;

__device__ inline unsigned cluster_blocks() {
#if __CUDA_ARCH__ >= 900
  unsigned n;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
#else
  return 1;
#endif
}
__device__ inline unsigned cluster_rank() {
#if __CUDA_ARCH__ >= 900
  unsigned r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
#else
  return 0;
#endif
}

// Columns of a block of the cluster.
struct Piece {
  std::uint32_t begin, end;
};
__device__ inline Piece my_piece(std::uint32_t cols) {
  const std::uint32_t blocks = (cols + 31) / 32;
  const std::uint32_t n = cluster_blocks();
  const std::uint32_t r = cluster_rank();
  return {blocks * r / n * 32, min(blocks * (r + 1) / n * 32, cols)};
}

// The sum over the cluster's blocks of x, in a fixed order; every thread gets it.
__device__ float row_sum(float x) {
  __shared__ float warps[kThreads / 32];
  __shared__ float pieces[2][kMostBlocks];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) sum += warps[w];
#if __CUDA_ARCH__ >= 900
  const unsigned n = cluster_blocks();
  if (n == 1) return sum;
  // Every block writes its sum into the memory of all.
  float(*mine)[kMostBlocks] = pieces;
  if (threadIdx.x < n) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&mine[0][cluster_rank()]));
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(threadIdx.x));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(sum) : "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  float total = 0;
  for (unsigned i = 0; i < n; ++i) total += mine[0][i];
  // Nobody writes the next sum before all have read this one.
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  return total;
#else
  return sum;
#endif
}

// The sum over a block, in a fixed order; every thread gets it. `shared` holds one float a warp.
__device__ float block_sum(float x, float* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += shared[w];
  return sum;
}

__device__ float square_sum(float4 v) {
  return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}

__device__ float4 load_sum(const Partials& p, std::uint32_t row, std::uint32_t col) {
  const float* at = p.data + std::size_t{row} * p.width + col;
  float4 sum = *reinterpret_cast<const float4*>(at);
  const std::size_t part = std::size_t{p.rows} * p.width;
#pragma unroll 4
  for (std::uint32_t i = 1; i < p.parts; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(at + i * part);
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  return sum;
}

// Writes rms(x) * weight of a row's piece, held as float4 t, t + threads, ...; columns up to out.cols.
__device__ void norm_row(const float4* x, std::uint32_t row, const Piece& piece, std::uint32_t width,
                         const float* weight, float epsilon, const OperandView& out) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    if (piece.begin + (threadIdx.x + i * kThreads) * 4 < min(piece.end, width)) squares += square_sum(x[i]);
  }
  const float scale = rsqrtf(row_sum(squares) / static_cast<float>(width) + epsilon);
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const std::uint32_t col = piece.begin + (threadIdx.x + i * kThreads) * 4;
    if (col - (threadIdx.x & 7u) * 4 >= piece.end) break;  // whole groups of eight lanes
    float4 y = make_float4(0, 0, 0, 0);
    if (col < width) {
      const float4 w = *reinterpret_cast<const float4*>(weight + col);
      y = make_float4(x[i].x * scale * w.x, x[i].y * scale * w.y, x[i].z * scale * w.z, x[i].w * scale * w.w);
    }
    store_operand(out, row, col, y);
  }
}

__global__ void __launch_bounds__(kThreads)
    norm_kernel(const float* x, const std::uint32_t* index, std::uint32_t width, const float* weight,
                float epsilon, OperandView out) {
  let_next_start();
  wait_for_previous();
  const std::size_t row = index == nullptr ? blockIdx.y : index[blockIdx.y];
  const Piece piece = my_piece(out.cols);
  float4 v[kMaxVectors];
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const std::uint32_t col = piece.begin + (threadIdx.x + i * kThreads) * 4;
    if (col < min(piece.end, width)) v[i] = *reinterpret_cast<const float4*>(x + row * width + col);
  }
  norm_row(v, blockIdx.y, piece, width, weight, epsilon, out);
}

__global__ void __launch_bounds__(kThreads)
    add_branch_kernel(Partials branch, const float* weight, float scale, float epsilon, float* residual,
                      const float* next, OperandView out, std::uint32_t padded) {
  const std::uint32_t row = blockIdx.y;
  const std::uint32_t width = branch.width;
  const Piece piece = my_piece(padded);
  float4 w[kMaxVectors];
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const std::uint32_t col = piece.begin + (threadIdx.x + i * kThreads) * 4;
    if (col < min(piece.end, width)) w[i] = *reinterpret_cast<const float4*>(weight + col);
  }
  let_next_start();
  wait_for_previous();
  float4 v[kMaxVectors];
  float4 r[kMaxVectors];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const std::uint32_t col = piece.begin + (threadIdx.x + i * kThreads) * 4;
    if (col >= min(piece.end, width)) continue;
    r[i] = *reinterpret_cast<const float4*>(residual + std::size_t{row} * width + col);
    v[i] = load_sum(branch, row, col);
    squares += square_sum(v[i]);
  }
  const float norm = rsqrtf(row_sum(squares) / static_cast<float>(width) + epsilon);
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const std::uint32_t col = piece.begin + (threadIdx.x + i * kThreads) * 4;
    if (col >= min(piece.end, width)) continue;
    r[i].x = (r[i].x + v[i].x * norm * w[i].x) * scale;
    r[i].y = (r[i].y + v[i].y * norm * w[i].y) * scale;
    r[i].z = (r[i].z + v[i].z * norm * w[i].z) * scale;
    r[i].w = (r[i].w + v[i].w * norm * w[i].w) * scale;
    *reinterpret_cast<float4*>(residual + std::size_t{row} * width + col) = r[i];
  }
  if (next != nullptr) norm_row(r, row, piece, width, next, epsilon, out);
}

__global__ void to_operand_kernel(const float* x, std::uint32_t width, OperandView out) {
  const std::uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (col - (threadIdx.x & 7u) * 4 >= out.cols) return;
  float v[4] = {};
  for (int i = 0; i < 4; ++i) {
    if (col + i < width) v[i] = x[std::size_t{blockIdx.y} * width + col + i];
  }
  store_operand(out, blockIdx.y, col, make_float4(v[0], v[1], v[2], v[3]));
}

__global__ void from_operand_kernel(OperandView x, std::uint32_t width, float* out) {
  const std::uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
  const std::uint32_t row = blockIdx.y;
  if (col >= width) return;
  const std::uint32_t in_step = col % 16;
  const std::uint32_t word = (in_step % 8) / 2 * 2 + in_step / 8;
  const std::uint32_t* step = x.halves + (std::size_t{row} * x.cols / 16 + col / 16) * 16;
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(step + word));
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(step + 8 + word));
  const float value = col % 2 == 0 ? high.x + low.x : high.y + low.y;
  out[std::size_t{row} * width + col] = value * x.scales[std::size_t{row} * x.cols / 32 + col / 32];
}

__device__ float sum_one(const Partials& p, std::uint32_t row, std::uint32_t col) {
  const float* at = p.data + std::size_t{row} * p.width + col;
  const std::size_t part = std::size_t{p.rows} * p.width;
  float sum = *at;
  for (std::uint32_t i = 1; i < p.parts; ++i) sum += at[i * part];
  return sum;
}

constexpr int kHeadThreads = 128;
constexpr int kMaxPairs = 2;  // a thread: head widths up to 512

// One block: one head of one row. Heads 0 .. heads - 1 are queries, then keys, then values.
__global__ void __launch_bounds__(kHeadThreads)
    heads_kernel(Partials qkv, const RowInfo* rows, std::uint32_t layer, HeadShape s, const float* q_weight,
                 const float* k_weight, const double* frequencies, float epsilon, float* query) {
  __shared__ float shared[kHeadThreads / 32];
  let_next_start();
  wait_for_previous();
  const std::uint32_t row = blockIdx.y;
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
    u[i] = sum_one(qkv, row, column + p);
    v[i] = sum_one(qkv, row, column + half + p);
    squares += u[i] * u[i] + v[i] * v[i];
  }
  const float scale = rsqrtf(block_sum(squares, shared) / static_cast<float>(d) + epsilon);
  const CacheLayer cache = info.layers[layer];
  const std::uint32_t slot = info.position % cache.slots;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const std::uint32_t p = threadIdx.x + i * kHeadThreads;
    if (p >= half) continue;
    u[i] *= scale;
    v[i] *= scale;
    if (!is_query && !is_key) {
      __half* out = cache.values + (std::size_t{head} * d) * cache.slots + slot;
      out[std::size_t{p} * cache.slots] = __float2half_rn(u[i]);
      out[std::size_t{half + p} * cache.slots] = __float2half_rn(v[i]);
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
      __half* out = cache.keys + (std::size_t{head} * cache.slots + slot) * cache.key_stride;
      out[p] = __float2half_rn(x);
      out[half + p] = __float2half_rn(y);
    }
  }
}

__device__ float gelu_tanh(float x) {
  constexpr float kRootTwoOverPi = 0.79788456080286535588f;
  return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + 0.044715f * x * x * x)));
}

__global__ void activate_kernel(Partials both, std::uint32_t width, OperandView out) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (col - (threadIdx.x & 7u) * 4 >= out.cols) return;
  float4 y = make_float4(0, 0, 0, 0);
  if (col < width) {
    const float4 g = load_sum(both, blockIdx.y, col);
    const float4 u = load_sum(both, blockIdx.y, width + col);
    y = make_float4(gelu_tanh(g.x) * u.x, gelu_tanh(g.y) * u.y, gelu_tanh(g.z) * u.z, gelu_tanh(g.w) * u.w);
  }
  store_operand(out, blockIdx.y, col, y);
}

__global__ void logits_kernel(Partials parts, float cap, float* logits) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (col >= parts.width) return;
  float4 v = load_sum(parts, blockIdx.y, col);
  if (cap > 0) {
    v.x = cap * tanhf(v.x / cap);
    v.y = cap * tanhf(v.y / cap);
    v.z = cap * tanhf(v.z / cap);
    v.w = cap * tanhf(v.w / cap);
  }
  *reinterpret_cast<float4*>(logits + std::size_t{blockIdx.y} * parts.width + col) = v;
}

// Blocks of a row: one for each 512 columns or so, where the device has clusters.
template <typename... Params, typename... Args>
void launch_row(const char* name, void (*kernel)(Params...), std::uint32_t rows, std::uint32_t cols,
                cudaStream_t stream, Args&&... args) {
  const std::uint32_t blocks = device_has_clusters() ? (cols >= 4096 ? 8 : cols >= 2048 ? 4 : 1) : 1;
  if (cols > blocks * kThreads * kMaxVectors * 4) raise(cudaErrorInvalidValue, "a row is too long");
  launch_cluster(name, kernel, dim3(blocks, rows), kThreads, blocks, stream, std::forward<Args>(args)...);
}

}  // namespace

void norm_to_operand(const float* x, const std::uint32_t* index, std::uint32_t rows, std::uint32_t width,
                     const float* weight, float epsilon, const OperandView& out, cudaStream_t stream) {
  launch_row("norm", norm_kernel, rows, out.cols, stream, x, index, width, weight, epsilon, out);
}

void add_branch(const Partials& branch, const float* weight, float scale, float epsilon, float* residual,
                const float* next, const OperandView& out, cudaStream_t stream) {
  const std::uint32_t padded = Operand::padded(branch.width);
  launch_row("add_branch", add_branch_kernel, branch.rows, padded, stream, branch, weight, scale, epsilon,
             residual, next, out, padded);
}

void to_operand(const float* x, std::uint32_t rows, std::uint32_t width, const OperandView& out,
                cudaStream_t stream) {
  to_operand_kernel<<<dim3((out.cols + 511) / 512, rows), 128, 0, stream>>>(x, width, out);
  check_launch("to_operand");
}

void from_operand(const OperandView& x, std::uint32_t rows, std::uint32_t width, float* out,
                  cudaStream_t stream) {
  from_operand_kernel<<<dim3((width + 127) / 128, rows), 128, 0, stream>>>(x, width, out);
  check_launch("from_operand");
}

void prepare_heads(const Partials& qkv, const RowInfo* rows, std::uint32_t layer, const HeadShape& shape,
                   const float* q_weight, const float* k_weight, const double* frequencies, float epsilon,
                   float* query, cudaStream_t stream) {
  launch("prepare_heads", heads_kernel, dim3(shape.heads + 2 * shape.kv_heads, qkv.rows), kHeadThreads, 0,
         stream, qkv, rows, layer, shape, q_weight, k_weight, frequencies, epsilon, query);
}

void activate(const Partials& both, std::uint32_t width, const OperandView& out, cudaStream_t stream) {
  launch("activate", activate_kernel, dim3((out.cols + 511) / 512, both.rows), 128, 0, stream, both, width,
         out);
}

void finish_logits(const Partials& parts, float cap, float* logits, cudaStream_t stream) {
  launch("logits", logits_kernel, dim3((parts.width + 1023) / 1024, parts.rows), 256, 0, stream, parts, cap,
         logits);
}

void sum_parts(const Partials& parts, float* out, cudaStream_t stream) {
  finish_logits(parts, 0, out, stream);
}

}  // namespace gem::cuda
