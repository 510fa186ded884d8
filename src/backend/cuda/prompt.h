// The stages on many rows at once: a prompt's chunk. Activations between the products are bf16, sums f32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/rows.h"

namespace gem::cuda {

// out [rows, width] = bf16(rms(x) * weight)
void norm_to_bf16(const float* x, std::uint32_t rows, std::uint32_t width, const float* weight, float epsilon,
                  std::uint16_t* out, cudaStream_t stream);
// residual = (residual + rms(branch) * weight) * scale, both [rows, width]
void add_branch(const float* branch, std::uint32_t rows, std::uint32_t width, const float* weight,
                float scale, float epsilon, float* residual, cudaStream_t stream);
// out [rows, width] = bf16(gelu_tanh(gate) * up); both [rows, 2 * width]
void activate_bf16(const float* both, std::uint32_t rows, std::uint32_t width, std::uint16_t* out,
                   cudaStream_t stream);
void to_bf16(const float* x, std::size_t count, std::uint16_t* out, cudaStream_t stream);

// Head norms, RoPE; queries to `query` [rows, heads * head_dim], keys and values to the caches. `qkv` [rows,
// width] holds q, then k, then v (unless value_from_key) side by side. `frequencies` [head_dim / 2]: radians
// a position.
void prepare_heads(const float* qkv, std::uint32_t count, std::uint32_t width, const RowInfo* rows,
                   std::uint32_t layer, const HeadShape& shape, const float* q_weight, const float* k_weight,
                   const double* frequencies, float epsilon, float* query, cudaStream_t stream);

// A run of rows of one stream for the attention of a prompt.
struct PromptTile {
  std::uint32_t first_row = 0;  // in `query` and the row infos
  std::uint32_t rows = 0;       // at most kPromptTile
};
constexpr std::uint32_t kPromptTile = 64;

// Causal attention of prompt rows, tile by tile. Keys in blocks at fixed positions, so that a row's bits do
// not depend on the tile it is in. What is multiplied is f16: also of keys and values that are kept as more.
struct AttendPrompt {
  const float* query = nullptr;  // [rows, heads * head_dim]
  const RowInfo* rows = nullptr;
  const PromptTile* tiles = nullptr;
  std::uint32_t tile_count = 0;
  std::uint32_t layer = 0;
  HeadShape shape;
  std::uint32_t window = 0;      // 0: all keys
  bool halves = true;            // all caches keep this layer's keys and values in f16; else of any kind
  std::uint16_t* out = nullptr;  // bf16 [rows, heads * head_dim]
  cudaStream_t stream = nullptr;
};
// `block_bytes`: shared memory that a block may have, at least 99 KB. Bits depend on it.
void attend_prompt(const AttendPrompt& a, std::uint32_t block_bytes);

}  // namespace gem::cuda
