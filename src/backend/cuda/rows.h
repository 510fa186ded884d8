// The stages that work on rows: norms, residuals, head preparation, activations. Each reads partial sums
// where a product came before it, adding them in order of the parts.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/matvec.h"
#include "backend/cuda/operand.h"

namespace gem::cuda {

// One layer of one stream's cache. Keys: [kv head][slot][key_stride]; values transposed, [kv
// head][head_dim][slots], so that both are read along the dimension that a product sums over.
struct CacheLayer {
  __half* keys = nullptr;
  __half* values = nullptr;
  std::uint32_t slots = 0;
  std::uint32_t key_stride = 0;  // head_dim, rounded up to 32; the rest is zero
};

// A row of the round, read on the device: a graph replays for any rows.
struct RowInfo {
  std::int32_t token = 0;
  std::uint32_t position = 0;
  const CacheLayer* layers = nullptr;  // [layers] on the device
};

struct HeadShape {
  std::uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool value_from_key = false;
};

// operand row i = rms(row index[i] of x) * weight; index null: row i.
void norm_to_operand(const float* x, const std::uint32_t* index, std::uint32_t rows, std::uint32_t width,
                     const float* weight, float epsilon, const OperandView& out, cudaStream_t stream);
// residual = (residual + rms(branch) * weight) * scale; and, where `next` is given, operand = rms(residual) *
// next
void add_branch(const Partials& branch, const float* weight, float scale, float epsilon, float* residual,
                const float* next, const OperandView& out, cudaStream_t stream);
// x [rows, width] as operand (tests, stage borders).
void to_operand(const float* x, std::uint32_t rows, std::uint32_t width, const OperandView& out,
                cudaStream_t stream);
void from_operand(const OperandView& x, std::uint32_t rows, std::uint32_t width, float* out,
                  cudaStream_t stream);

// Head norms, RoPE; queries to `query` [rows, heads * head_dim], keys and values to the caches. `qkv` holds
// q, then k, then v (unless value_from_key) side by side. `frequencies` [head_dim / 2]: radians a position.
void prepare_heads(const Partials& qkv, const RowInfo* rows, std::uint32_t layer, const HeadShape& shape,
                   const float* q_weight, const float* k_weight, const double* frequencies, float epsilon,
                   float* query, cudaStream_t stream);

// operand = gelu_tanh(gate) * up; `both` holds gate and up side by side, each `width` wide.
void activate(const Partials& both, std::uint32_t width, const OperandView& out, cudaStream_t stream);
// logits [rows, width] = cap * tanh(sum of parts / cap); cap 0: the sum.
void finish_logits(const Partials& parts, float cap, float* logits, cudaStream_t stream);
// out [rows, width] = sum of the parts.
void sum_parts(const Partials& parts, float* out, cudaStream_t stream);

}  // namespace gem::cuda
