// backend/cuda/gemm.h for the emulated device: the same product, without cuBLASLt.
#pragma once

#include <cstdint>

#include "backend/cuda/device.h"
#include "base/numbers.h"

namespace gem::cuda {

class Gemm {
 public:
  void multiply(const std::uint16_t* w, std::uint32_t n, std::uint32_t k, const std::uint16_t* x,
                std::uint32_t rows, float* y, std::uint32_t stride, cudaStream_t) {
    std::vector<float> weights(k);
    for (std::uint32_t i = 0; i < n; ++i) {
      for (std::uint32_t c = 0; c < k; ++c) weights[c] = bf16_to_f32(w[std::size_t{i} * k + c]);
      for (std::uint32_t r = 0; r < rows; ++r) {
        float sum = 0;
        for (std::uint32_t c = 0; c < k; ++c) sum += weights[c] * bf16_to_f32(x[std::size_t{r} * k + c]);
        y[std::size_t{r} * stride + i] = sum;
      }
    }
  }
  static constexpr std::size_t kWorkspace = 0;
};

}  // namespace gem::cuda
