// Reading and writing the decode path's buffers from outside of the kernel: stage borders, tests.
#pragma once

#include <cstdint>

#include "backend/cuda/decode.h"

namespace gem::cuda {

// values [rows, cols] of the operand of a product with `chunks`, in passes of `pass_rows` rows.
struct OperandShape {
  std::uint32_t rows = 0, cols = 0, chunks = 0, pass_rows = 8;
};
void read_operand(const DecodeJob& job, const OperandShape& shape, float* values, cudaStream_t stream);
void write_operand(const DecodeJob& job, const OperandShape& shape, const float* values, cudaStream_t stream);

}  // namespace gem::cuda
