// The best tokens of rows of logits, so that a draw needs a kilobyte of a row and not all of it.
#pragma once

#include <cstdint>

#include "backend/cuda/device.h"
#include "backend/cuda/rows.h"
#include "backend/keyed_draw.h"
#include "backend/scored_token.h"

namespace gem::cuda {

constexpr std::uint32_t kBest = 128;            // of a row
constexpr std::uint32_t kMostGroups = 1024;     // that a row is cut into
constexpr std::uint32_t kMostGroupSize = 1024;  // tokens

struct BestRow {
  ScoredToken best[kBest];  // best first, the lower id first among equals
  std::uint32_t count = 0;  // 0: the row has a NaN, or too many equals: it has to be looked at as a whole
};

constexpr bool best_serves(std::uint32_t vocab) {
  return vocab <= kMostGroups * kMostGroupSize;
}

// logits [rows, vocab]; `maxima`: [rows, kMostGroups], work space.
void find_best(const float* logits, std::uint32_t rows, std::uint32_t vocab, float* maxima, BestRow* out,
               cudaStream_t stream);
// Of each row's best tokens the one that its draw takes, `step` positions after the draw's own, as the row's
// next one and into `tokens`; below zero where the row has no best tokens.
void draw_best(const BestRow* best, const KeyedDraw* draws, std::uint32_t rows, std::uint32_t step,
               RowInfo* infos, std::int32_t* tokens, cudaStream_t stream);

}  // namespace gem::cuda
