// The AVX2 product of Q4_K, Q5_K and Q6_K groups with few rows (Kernels::group_super).
#pragma once

#include "backend/cpu/kernels.h"

namespace gem::cpu::avx2 {

void group_super(StorageType type, const std::byte* group, const Activations& x, std::size_t rows,
                 float* out);

}  // namespace gem::cpu::avx2
