// What processors with AMX do otherwise than those with AVX-512 (backend/cpu/kernels.h says what).
#pragma once

#include "backend/cpu/kernels.h"

namespace gem::cpu::amx {

void split(const std::int16_t* q, std::size_t cols, std::int8_t* planes);
void tile(const Panel& panel, const Activations& x, std::size_t rows, float* out);

}  // namespace gem::cpu::amx
