// Products of packed matrices with a few rows of activations: the decode path.
//
// y = W x for 1 to 16 rows at a time, as fast as the weights can be read. A warp streams a tile's chunks of
// one part of the columns through its own ring of bulk copies and multiplies them on the tensor cores; the
// parts' sums are added up by whatever reads the result, in order of the parts. How a product is cut depends
// on the matrix alone, so a row's bits are the same whatever rows stand beside it.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/operand.h"
#include "backend/cuda/packed.h"

namespace gem::cuda {

constexpr std::uint32_t kPassRows = 16;  // rows of one pass over the weights

// out [parts][rows][width]: row r of part p at (p * rows + r) * width.
struct Partials {
  float* data = nullptr;
  std::uint32_t parts = 0, rows = 0, width = 0;
};

// Parts into which products with this many tiles in all and columns are cut.
std::uint32_t parts_of(std::uint32_t tiles, std::uint32_t cols);

// Matrices of one column count side by side: matrix i's rows follow those of the matrices before it.
// `out.parts` must be parts_of their tiles; programmatic: launched so that it may start before what precedes
// it has ended.
void multiply(std::span<const PackedMatrix* const> matrices, const OperandView& x, std::uint32_t rows,
              const Partials& out, cudaStream_t stream);

}  // namespace gem::cuda
