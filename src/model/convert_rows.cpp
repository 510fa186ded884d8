#include "model/convert_rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/error.h"

namespace gem {
namespace {

constexpr std::size_t kBatchBytes = 32 << 20;  // of f32 rows

}  // namespace

Matrix matrix_of(const TensorView& view) {
  return {view.type, static_cast<std::uint32_t>(view.shape[0]), static_cast<std::uint32_t>(view.shape[1]),
          view.bytes.data(), view.affine};
}

void RowEncoder::run(const TensorView& view, const RowForm& form, const Sink& sink) {
  Matrix from;
  if (view.shape.size() == 2) {
    from = matrix_of(view);
  } else {
    from = {view.type, 1, static_cast<std::uint32_t>(view.elements()), view.bytes.data()};
  }
  const bool affine = form.type == StorageType::kAffine;
  const std::size_t row_bytes =
      affine ? form.affine.row_code_bytes(from.cols) : *storage_bytes(form.type, from.cols);
  const std::size_t scale_bytes = affine ? form.affine.row_scale_bytes(from.cols) : 0;
  scales_.resize(from.rows * scale_bytes);
  biases_.resize(from.rows * scale_bytes);
  const std::size_t batch = std::clamp<std::size_t>(kBatchBytes / (from.cols * sizeof(float)), 1, from.rows);
  std::vector<std::byte> out(batch * row_bytes);
  std::vector<std::vector<float>> lines(pool_.threads(), std::vector<float>(from.cols));
  for (std::size_t first = 0; first < from.rows; first += batch) {
    const std::size_t count = std::min<std::size_t>(batch, from.rows - first);
    std::atomic<bool> finite{true};
    pool_.parallel_for(count, 8, [&](std::size_t begin, std::size_t end, unsigned thread) {
      std::vector<float>& line = lines[thread];
      for (std::size_t i = begin; i < end; ++i) {
        const std::size_t row = first + i;
        from.expand_row(row, line.data());
        if (!std::all_of(line.begin(), line.end(), [](float x) { return std::isfinite(x); })) finite = false;
        if (affine) {
          quantize_affine(form.affine, line.data(), from.cols, out.data() + i * row_bytes,
                          scales_.data() + row * scale_bytes, biases_.data() + row * scale_bytes);
        } else {
          quantize(form.type, line.data(), out.data() + i * row_bytes, from.cols);
        }
      }
    });
    if (!finite) fail(ErrorCode::kRefused, "{} holds a value that is not finite", view.name);
    sink({out.data(), count * row_bytes});
    source_.release({from.row(first), count * from.row_bytes()});
  }
}

}  // namespace gem
