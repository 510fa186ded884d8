#include "backend/cuda/gemm.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace gem::cuda {
namespace {

constexpr std::uint32_t kTypicalRows = 2048;  // for which algorithms are chosen

// cuBLASLt, loaded with the first backend: a build with CUDA runs where the library is not, and its hundred
// megabytes are in the memory of those only who use a device.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) matmul_algo_config_get_attribute = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
};

template <typename F>
void find(void* handle, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(handle, name));
  if (function == nullptr) fail(ErrorCode::kFailed, "cuda: cuBLASLt has no {}", name);
}

const Library& library() {
  static const Library loaded = [] {
    const std::string name = fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000);
    void* handle = dlopen(name.c_str(), RTLD_NOW);
    if (handle == nullptr) handle = dlopen((GEM_CUDA_LIBRARY_DIR "/" + name).c_str(), RTLD_NOW);
    if (handle == nullptr)
      fail(ErrorCode::kFailed, "cuda: the library {} is not to be found: {}", name, dlerror());
    Library l;
    find(handle, "cublasLtCreate", l.create);
    find(handle, "cublasLtDestroy", l.destroy);
    find(handle, "cublasLtMatmulDescCreate", l.matmul_desc_create);
    find(handle, "cublasLtMatmulDescDestroy", l.matmul_desc_destroy);
    find(handle, "cublasLtMatmulDescSetAttribute", l.matmul_desc_set_attribute);
    find(handle, "cublasLtMatrixLayoutCreate", l.matrix_layout_create);
    find(handle, "cublasLtMatrixLayoutDestroy", l.matrix_layout_destroy);
    find(handle, "cublasLtMatmulPreferenceCreate", l.matmul_preference_create);
    find(handle, "cublasLtMatmulPreferenceDestroy", l.matmul_preference_destroy);
    find(handle, "cublasLtMatmulPreferenceSetAttribute", l.matmul_preference_set_attribute);
    find(handle, "cublasLtMatmulAlgoGetHeuristic", l.matmul_algo_get_heuristic);
    find(handle, "cublasLtMatmulAlgoConfigGetAttribute", l.matmul_algo_config_get_attribute);
    find(handle, "cublasLtMatmul", l.matmul);
    return l;
  }();
  return loaded;
}

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ErrorCode::kFailed, "cuda: {}: cuBLASLt status {}", what, static_cast<int>(status));
}

// A column-major matrix as cuBLASLt names it.
class Layout {
 public:
  Layout(cudaDataType type, std::uint64_t rows, std::uint64_t cols, std::int64_t stride) {
    check_blas(library().matrix_layout_create(&layout_, type, rows, cols, stride), "describing a matrix");
  }
  ~Layout() { library().matrix_layout_destroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  operator cublasLtMatrixLayout_t() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

}  // namespace

Gemm::Gemm() : workspace_(kWorkspace) {
  check_blas(library().create(&handle_), "starting cuBLASLt");
  check_blas(library().matmul_desc_create(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  const cublasOperation_t transpose = CUBLAS_OP_T;
  check_blas(library().matmul_desc_set_attribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                                 sizeof transpose),
             "describing a product");
}

Gemm::~Gemm() {
  if (product_ != nullptr) library().matmul_desc_destroy(product_);
  if (handle_ != nullptr) library().destroy(handle_);
}

cublasLtMatmulAlgo_t Gemm::choose(const Shape& s) {
  const Layout w(CUDA_R_16BF, s.k, s.n, s.k);
  const Layout x(CUDA_R_16BF, s.k, kTypicalRows, s.k);
  const Layout y(CUDA_R_32F, s.n, kTypicalRows, s.stride);
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(library().matmul_preference_create(&preference), "choosing an algorithm");
  const std::size_t room = kWorkspace;
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
  library().matmul_preference_set_attribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                            sizeof room);
  library().matmul_preference_set_attribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                            &reductions, sizeof reductions);
  cublasLtMatmulHeuristicResult_t found[8] = {};
  int count = 0;
  const cublasStatus_t status =
      library().matmul_algo_get_heuristic(handle_, product_, w, x, y, y, preference, 8, found, &count);
  library().matmul_preference_destroy(preference);
  check_blas(status, "choosing an algorithm");
  for (int i = 0; i < count; ++i) {
    int splits = 1;
    std::size_t written = 0;
    library().matmul_algo_config_get_attribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
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
  check_blas(library().matmul(handle_, product_, &one, w, a, x, b, &zero, y, d, y, d, &algorithm->second,
                              workspace_.data(), kWorkspace, stream),
             "a product of the prompt");
}

}  // namespace gem::cuda
