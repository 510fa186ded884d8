// The NEON kernels of attention and of the exponential (backend/cpu/kernels.h says what they do).
#pragma once

#include "backend/cpu/kernels.h"

namespace gem::cpu::neon {

void scores(const float* q, std::size_t heads, std::size_t d, StorageType type, const std::byte* keys,
            const std::byte* values, std::size_t count, float* out);
void weighted_values(const float* p, std::size_t heads, std::size_t d, StorageType type,
                     const std::byte* values, std::size_t count, float* out);
float largest(const float* x, std::size_t n);
float exponentials(float* x, std::size_t n, float top);
void softcap(float* x, std::size_t n, float cap);
void geglu(const float* gate, const float* up, float* out, std::size_t n);

}  // namespace gem::cpu::neon
