// Attention over the caches.
//
// Keys are cut into chunks at fixed positions (multiples of kKeyChunk); each chunk gives a maximum, a sum and
// a weighted sum of values, and these are merged in order of the chunks. So a row's bits depend on its own
// position alone. A KV head's query heads share every key and value that is read.
#pragma once

#include <cstdint>

#include "backend/cuda/operand.h"
#include "backend/cuda/rows.h"

namespace gem::cuda {

constexpr std::uint32_t kKeyChunk = 128;
constexpr std::uint32_t kMaxGroup = 16;  // query heads of one KV head

struct AttentionScratch {
  float* sums = nullptr;    // [rows][heads][chunks][head_dim]
  float2* stats = nullptr;  // [rows][heads][chunks]: maximum and sum
  std::uint32_t chunks = 0;
};

// Chunks that a row at positions below `context` may see.
std::uint32_t attention_chunks(std::uint32_t window, std::uint32_t context);

// The decode path: `query` f32 [rows, heads * head_dim]; window 0: all keys. Result as the operand of the
// next product. `chunks` bounds what any row of the round sees.
void attend_rows(const float* query, const RowInfo* rows, std::uint32_t count, std::uint32_t layer,
                 const HeadShape& shape, std::uint32_t window, const AttentionScratch& scratch,
                 const OperandView& out, cudaStream_t stream);

}  // namespace gem::cuda
