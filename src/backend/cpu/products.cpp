#include "backend/cpu/products.h"

#include <algorithm>
#include <cstring>

namespace gem::cpu {
namespace {

// Activation rows of one pass over a panel: with the panel's columns 128 KB, which stay in the second-level
// cache while kPanelGroups groups pass by.
constexpr std::size_t kPassRows = 128;
constexpr std::size_t kPanelGroups = 4;

struct alignas(64) PanelMemory {
  std::int16_t codes[kPanelBlocks * kBlock * kGroupRows];
  float scales[kPanelBlocks * 2 * kGroupRows];
  float minima[kPanelBlocks * kGroupRows];
  float sums[kPanelGroups][kPassRows * kGroupRows];
};

// The values of one group for `rows` rows from `first` on, into the product.
void store(const Product& product, std::size_t group, std::size_t first, std::size_t rows,
           const float* sums) {
  const std::size_t width = product.matrix->rows();
  const std::size_t begin = group * kGroupRows;
  const std::size_t n = std::min<std::size_t>(kGroupRows, width - begin);
  for (std::size_t r = 0; r < rows; ++r)
    std::memcpy(product.out + (first + r) * width + begin, sums + r * kGroupRows, n * sizeof(float));
}

void multiply_direct(const Activations& x, std::size_t rows, const Product& product, std::size_t begin,
                     std::size_t end, const Kernels& k) {
  const PackedMatrix& m = *product.matrix;
  alignas(64) float tile[kMostDirectRows * kGroupRows];
  for (std::size_t g = begin; g < end; ++g) {
    m.multiply_group(g, x, rows, tile, k);
    store(product, g, 0, rows, tile);
  }
}

void multiply_panels(const Activations& x, std::size_t rows, const Product& product, std::size_t begin,
                     std::size_t end, const Kernels& k) {
  const PackedMatrix& m = *product.matrix;
  PanelMemory memory;  // not initialised: written before it is read
  Panel panel;
  panel.codes = memory.codes;
  panel.scales = memory.scales;
  panel.minima = memory.minima;
  for (std::size_t first = 0; first < rows; first += kPassRows) {
    const std::size_t pass = std::min(kPassRows, rows - first);
    for (std::size_t g = begin; g < end; g += kPanelGroups) {
      const std::size_t groups = std::min(kPanelGroups, end - g);
      for (std::size_t i = 0; i < groups; ++i) std::fill_n(memory.sums[i], pass * kGroupRows, 0.0f);
      for (std::size_t b = 0; b < m.blocks(); b += kPanelBlocks) {
        panel.blocks = std::min(kPanelBlocks, m.blocks() - b);
        for (std::size_t i = 0; i < groups; ++i) {
          m.unpack(g + i, b, panel, k);
          k.tile(panel, x.at(first, b), pass, memory.sums[i]);
        }
      }
      for (std::size_t i = 0; i < groups; ++i) store(product, g + i, first, pass, memory.sums[i]);
    }
  }
}

void multiply_floats(const Operand& x, const Product& product, std::size_t begin, std::size_t end,
                     const Kernels& k) {
  const Matrix& m = product.matrix->source();
  const std::size_t cols = m.cols;
  const std::size_t last = std::min<std::size_t>(end * kGroupRows, m.rows);
  // As many weight rows at once as fit half of a core's own cache, so that the activations pass by less
  // often.
  const std::size_t most = std::clamp<std::size_t>(256 * 1024 / (cols * sizeof(float)), 1, kGroupRows);
  thread_local std::vector<float> lines;
  if (m.type != StorageType::kF32 && lines.size() < most * cols) lines.resize(most * cols);
  float tile[kRowTile];
  for (std::size_t first = begin * kGroupRows; first < last; first += most) {
    const std::size_t count = std::min(most, last - first);
    const float* w = reinterpret_cast<const float*>(m.row(first));
    if (m.type != StorageType::kF32) {
      for (std::size_t i = 0; i < count; ++i)
        k.expand(m.type, m.row(first + i), lines.data() + i * cols, cols);
      w = lines.data();
    }
    for (std::size_t r = 0; r < x.rows(); r += kRowTile) {
      const auto rows = static_cast<unsigned>(std::min<std::size_t>(kRowTile, x.rows() - r));
      for (std::size_t i = 0; i < count; ++i) {
        k.dot_f32(w + i * cols, x.floats() + r * cols, cols, cols, rows, tile);
        for (unsigned j = 0; j < rows; ++j) product.out[(r + j) * m.rows + first + i] = tile[j];
      }
    }
  }
}

// Groups [begin, end) of one matrix against every activation row.
void multiply_piece(const Operand& x, const Product& product, std::size_t begin, std::size_t end,
                    const Kernels& k) {
  const PackedForm form = product.matrix->form();
  if (form == PackedForm::kFloats) return multiply_floats(x, product, begin, end, k);
  if (x.rows() <= product.matrix->direct_rows(k))
    return multiply_direct(x.integers(), x.rows(), product, begin, end, k);
  multiply_panels(x.integers(), x.rows(), product, begin, end, k);
}

}  // namespace

void Operand::assign(const float* x, std::size_t rows, std::size_t cols) {
  x_ = x;
  rows_ = rows;
  cols_ = cols;
  quantized_ = false;
}

void Operand::quantize(const Kernels& kernels, ThreadPool& pool) {
  if (quantized_) return;
  const std::size_t blocks = cols_ / kBlock;
  if (q_.size() < rows_ * cols_) q_.resize(rows_ * cols_);
  if (scale_.size() < rows_ * blocks) scale_.resize(rows_ * blocks);
  const bool split = splits(kernels, rows_);
  if (split && planes_.size() < plane_bytes(rows_, cols_)) planes_ = Buffer(plane_bytes(rows_, cols_));
  if (sums_.size() < 2 * rows_ * blocks) sums_.resize(2 * rows_ * blocks);
  pool.parallel_for(rows_, 4, [&](std::size_t begin, std::size_t end, unsigned) {
    for (std::size_t r = begin; r < end; ++r) {
      kernels.quantize(x_ + r * cols_, cols_, q_.data() + r * cols_, scale_.data() + r * blocks,
                       sums_.data() + 2 * r * blocks);
      if (split) {
        const std::size_t in_tile = r % kPlaneRows;
        kernels.split(q_.data() + r * cols_, cols_,
                      planes_.as<std::int8_t>() + 2 * ((r - in_tile) * cols_ + in_tile * kBlock));
      }
    }
  });
  quantized_ = true;
  split_ = split;
}

void multiply(Operand& x, std::span<const Product> products, const Kernels& kernels, ThreadPool& pool) {
  std::vector<std::size_t> first_group = {0};  // groups of all products, one after the other
  for (const Product& product : products) {
    first_group.push_back(first_group.back() + product.matrix->groups());
    if (product.matrix->form() != PackedForm::kFloats) x.quantize(kernels, pool);
  }
  const std::size_t groups = first_group.back();
  const std::size_t work = groups * kGroupRows * x.cols() * x.rows();
  // Long pieces keep a thread on one stream of memory; many pieces share the work evenly.
  const std::size_t grain = std::clamp<std::size_t>(groups / (pool.threads() * 16), 1, kPanelGroups);
  pool.parallel_for(groups, work < kWorthSharing ? groups : grain,
                    [&](std::size_t begin, std::size_t end, unsigned) {
                      for (std::size_t p = 0; p < products.size() && begin < end; ++p) {
                        if (begin >= first_group[p + 1]) continue;
                        const std::size_t to = std::min(end, first_group[p + 1]);
                        multiply_piece(x, products[p], begin - first_group[p], to - first_group[p], kernels);
                        begin = to;
                      }
                    });
}

}  // namespace gem::cpu
