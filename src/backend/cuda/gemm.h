// Products of bf16 matrices with many rows: the prompt path, on cuBLASLt.
//
// One algorithm is chosen for a matrix and kept for every number of rows, and none that splits the sum over
// blocks; so a row's bits depend on that row alone (law 2).
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <utility>

#include "backend/cuda/device.h"

namespace gem::cuda {

class Gemm {
 public:
  Gemm();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // y[r, i] = sum over k of w[i, k] x[r, k]; w [n, k] and x [rows, k] in bf16, y in f32 with `stride` floats
  // a row.
  void multiply(const std::uint16_t* w, std::uint32_t n, std::uint32_t k, const std::uint16_t* x,
                std::uint32_t rows, float* y, std::uint32_t stride, cudaStream_t stream);

  static constexpr std::size_t kWorkspace = std::size_t{32} << 20;

 private:
  struct Shape {
    std::uint32_t n, k, stride;
    auto operator<=>(const Shape&) const = default;
  };
  cublasLtMatmulAlgo_t choose(const Shape& shape);

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  DeviceArray<std::uint8_t> workspace_;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace gem::cuda
