#include "backend/cpu/products.h"

#include <algorithm>

namespace gem::cpu {
namespace {

enum class OperandForm { kNibbles, kBytes, kFloats };

OperandForm form_of(StorageType type) {
  if (type == StorageType::kQ4_0) return OperandForm::kNibbles;
  if (type == StorageType::kQ8_0) return OperandForm::kBytes;
  return OperandForm::kFloats;
}

// Weight rows a thread takes at a time: at 3,840 columns of Q4_0 these are 35 KB, which stay in its L2 cache
// while the activation rows pass by.
constexpr std::size_t kRowsPerPiece = 16;

// Rows [begin, end) of one matrix against every activation row.
void multiply_piece(const Operand& x, const Product& product, std::size_t begin, std::size_t end,
                    const Kernels& k) {
  const Matrix& m = *product.matrix;
  const std::size_t cols = m.cols;
  const std::size_t pairs = activation_pairs(cols);
  const OperandForm form = form_of(m.type);
  float tile[kRowTile];
  const auto store = [&](std::size_t first, unsigned rows, std::size_t n) {
    for (unsigned r = 0; r < rows; ++r) product.out[(first + r) * m.rows + n] = tile[r];
  };
  if (form == OperandForm::kFloats) {
    thread_local std::vector<float> line;
    for (std::size_t n = begin; n < end; ++n) {
      const float* w = reinterpret_cast<const float*>(m.row(n));
      if (m.type != StorageType::kF32) {
        line.resize(cols);
        k.expand(m.type, m.row(n), line.data(), cols);
        w = line.data();
      }
      for (std::size_t r = 0; r < x.rows(); r += kRowTile) {
        const auto rows = static_cast<unsigned>(std::min<std::size_t>(kRowTile, x.rows() - r));
        k.dot_f32(w, x.floats() + r * cols, cols, cols, rows, tile);
        store(r, rows, n);
      }
    }
    return;
  }
  const ActivationPair* const a =
      x.pairs(form == OperandForm::kNibbles ? PairOrder::kNibbles : PairOrder::kBytes);
  const auto dot = form == OperandForm::kNibbles ? k.dot_q4_0 : k.dot_q8_0;
  for (std::size_t r = 0; r < x.rows(); r += kRowTile) {
    const auto rows = static_cast<unsigned>(std::min<std::size_t>(kRowTile, x.rows() - r));
    for (std::size_t n = begin; n < end; ++n) {
      dot(m.row(n), a + r * pairs, pairs, cols, rows, tile);
      store(r, rows, n);
    }
  }
}

}  // namespace

void Operand::assign(const float* x, std::size_t rows, std::size_t cols) {
  x_ = x;
  rows_ = rows;
  cols_ = cols;
  for (Form& form : forms_) form.ready = false;
}

void Operand::prepare(std::span<const Matrix* const> matrices, const Kernels& kernels, ThreadPool& pool) {
  for (const Matrix* matrix : matrices) {
    const auto needed = form_of(matrix->type);
    if (needed == OperandForm::kFloats) continue;
    const PairOrder order = needed == OperandForm::kNibbles ? PairOrder::kNibbles : PairOrder::kBytes;
    Form& form = forms_[static_cast<std::size_t>(order)];
    if (form.ready) continue;
    const std::size_t pairs = activation_pairs(cols_);
    if (form.data.size() < rows_ * pairs) form.data.resize(rows_ * pairs);
    pool.parallel_for(rows_, 4, [&](std::size_t begin, std::size_t end, unsigned) {
      for (std::size_t r = begin; r < end; ++r) {
        kernels.quantize(x_ + r * cols_, cols_, order, form.data.data() + r * pairs);
      }
    });
    form.ready = true;
  }
}

void multiply(Operand& x, std::span<const Product> products, const Kernels& kernels, ThreadPool& pool) {
  std::vector<const Matrix*> matrices;
  std::vector<std::size_t> first_piece = {0};  // pieces of all products, one after the other
  for (const Product& product : products) {
    matrices.push_back(product.matrix);
    first_piece.push_back(first_piece.back() + (product.matrix->rows + kRowsPerPiece - 1) / kRowsPerPiece);
  }
  x.prepare(matrices, kernels, pool);
  const std::size_t work = first_piece.back() * kRowsPerPiece * x.cols() * x.rows();
  pool.parallel_for(first_piece.back(), work < kWorthSharing ? first_piece.back() : 1,
                    [&](std::size_t begin, std::size_t end, unsigned) {
                      std::size_t p = 0;
                      for (std::size_t piece = begin; piece < end; ++piece) {
                        while (piece >= first_piece[p + 1]) ++p;
                        const std::size_t row = (piece - first_piece[p]) * kRowsPerPiece;
                        multiply_piece(x, products[p], row,
                                       std::min<std::size_t>(products[p].matrix->rows, row + kRowsPerPiece),
                                       kernels);
                      }
                    });
}

}  // namespace gem::cpu
