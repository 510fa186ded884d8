#include "backend/cuda/gemm.h"

#include "base/error.h"

namespace gem::cuda {
namespace {

constexpr std::uint32_t kTypicalRows = 2048;  // for which algorithms are chosen

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ErrorCode::kFailed, "cuda: {}: cuBLASLt status {}", what, static_cast<int>(status));
}

// A column-major matrix as cuBLASLt names it.
class Layout {
 public:
  Layout(cudaDataType type, std::uint64_t rows, std::uint64_t cols, std::int64_t stride) {
    check_blas(cublasLtMatrixLayoutCreate(&layout_, type, rows, cols, stride), "describing a matrix");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  operator cublasLtMatrixLayout_t() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

}  // namespace

Gemm::Gemm() : workspace_(kWorkspace) {
  check_blas(cublasLtCreate(&handle_), "starting cuBLASLt");
  check_blas(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  const cublasOperation_t transpose = CUBLAS_OP_T;
  check_blas(
      cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
      "describing a product");
}

Gemm::~Gemm() {
  if (product_ != nullptr) cublasLtMatmulDescDestroy(product_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

cublasLtMatmulAlgo_t Gemm::choose(const Shape& s) {
  const Layout w(CUDA_R_16BF, s.k, s.n, s.k);
  const Layout x(CUDA_R_16BF, s.k, kTypicalRows, s.k);
  const Layout y(CUDA_R_32F, s.n, kTypicalRows, s.stride);
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm");
  const std::size_t room = kWorkspace;
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                       sizeof room);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                       sizeof reductions);
  cublasLtMatmulHeuristicResult_t found[8] = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, product_, w, x, y, y, preference, 8, found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  check_blas(status, "choosing an algorithm");
  for (int i = 0; i < count; ++i) {
    int splits = 1;
    std::size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                         sizeof splits, &written);
    if (found[i].state == CUBLAS_STATUS_SUCCESS && splits <= 1) return found[i].algo;
  }
  fail(ErrorCode::kFailed, "cuda: cuBLASLt has no algorithm for a product of {} x {}", s.n, s.k);
}

void Gemm::multiply(const std::uint16_t* w, std::uint32_t n, std::uint32_t k, const std::uint16_t* x,
                    std::uint32_t rows, float* y, std::uint32_t stride, cudaStream_t stream) {
  const Shape shape{n, k, stride};
  auto algorithm = algorithms_.find(shape);
  if (algorithm == algorithms_.end()) algorithm = algorithms_.emplace(shape, choose(shape)).first;
  const Layout a(CUDA_R_16BF, k, n, k);
  const Layout b(CUDA_R_16BF, k, rows, k);
  const Layout d(CUDA_R_32F, n, rows, stride);
  const float one = 1;
  const float zero = 0;
  check_blas(cublasLtMatmul(handle_, product_, &one, w, a, x, b, &zero, y, d, y, d, &algorithm->second,
                            workspace_.data(), kWorkspace, stream),
             "a product of the prompt");
}

}  // namespace gem::cuda
