// The best tokens of rows of logits, so that a draw needs a kilobyte of a row and not all of it.
#pragma once

#include <cstdint>

#include "backend/cuda/device.h"
#include "backend/cuda/rows.h"
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
// Every row's best token as the one that it has next; below zero where count is 0.
void take_best(const BestRow* best, std::uint32_t rows, RowInfo* infos, cudaStream_t stream);

}  // namespace gem::cuda
