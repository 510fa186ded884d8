// The stages on many rows at once: a prompt's chunk. Activations between the products are bf16, sums f32.
#pragma once

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

// Causal attention of prompt rows, tile by tile; out bf16 [rows, heads * head_dim]. Keys in blocks at fixed
// positions, so that a row's bits do not depend on the tile it is in.
void attend_prompt(const float* query, const RowInfo* rows, const PromptTile* tiles, std::uint32_t tile_count,
                   std::uint32_t layer, const HeadShape& shape, std::uint32_t window, std::uint16_t* out,
                   cudaStream_t stream);

}  // namespace gem::cuda
