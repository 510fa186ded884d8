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
    constexpr std::uint32_t kSums = 16;  // side by side, so that the compiler can use vectors
    const auto floats = [k](const std::uint16_t* from) {
      std::vector<float> to((k + kSums - 1) / kSums * kSums);
      for (std::uint32_t c = 0; c < k; ++c) to[c] = bf16_to_f32(from[c]);
      return to;
    };
    std::vector<std::vector<float>> right(rows);
    for (std::uint32_t r = 0; r < rows; ++r) right[r] = floats(x + std::size_t{r} * k);
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::vector<float> left = floats(w + std::size_t{i} * k);
      for (std::uint32_t r = 0; r < rows; ++r) {
        float sums[kSums] = {};
        for (std::size_t c = 0; c < left.size(); c += kSums) {
          for (std::uint32_t s = 0; s < kSums; ++s) sums[s] += left[c + s] * right[r][c + s];
        }
        float sum = 0;
        for (const float part : sums) sum += part;
        y[std::size_t{r} * stride + i] = sum;
      }
    }
  }
  static constexpr std::size_t kWorkspace = 0;
};

}  // namespace gem::cuda
