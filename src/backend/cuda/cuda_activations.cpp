// The backend's stage borders: activations read and written from outside, in the round's own order of rows.
#include <algorithm>
#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/decode_access.h"
#include "base/error.h"
#include "base/numbers.h"

namespace gem::cuda {

std::vector<float> CudaBackend::in_round_order(const std::vector<float>& rows, std::uint32_t width) const {
  std::vector<float> out(rows.size());
  for (std::uint32_t r = 0; r < rows_; ++r)
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(std::size_t{order_[r]} * width), width,
                out.begin() + static_cast<std::ptrdiff_t>(std::size_t{r} * width));
  return out;
}

std::vector<float> CudaBackend::in_own_order(std::span<const float> rows, std::uint32_t width) const {
  std::vector<float> out(rows.size());
  for (std::uint32_t r = 0; r < rows_; ++r)
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(std::size_t{r} * width), width,
                out.begin() + static_cast<std::ptrdiff_t>(std::size_t{order_[r]} * width));
  return out;
}

// Columns of the q, k, v product, before the heads are prepared.
std::vector<float> CudaBackend::read_columns(std::uint32_t first, std::uint32_t width) const {
  std::vector<float> out(std::size_t{rows_} * width);
  const DecodeOp& op = model_.op(current_, 0);
  if (decode_rows_ > 0) {
    const std::size_t pieces = decode_pieces(pass_rows(decode_rows_, logit_count_));
    const std::size_t stride = std::size_t{decode_rows_} * op.width;
    const std::vector<float> all = qkv_.download(op.parts * pieces * stride, stream_);
    for (std::uint32_t r = 0; r < decode_rows_; ++r) {
      for (std::uint32_t c = 0; c < width; ++c) {
        const float* at = all.data() + std::size_t{r} * op.width + first + c;
        float total = 0;
        for (std::uint32_t p = 0; p < op.parts; ++p, at += pieces * stride) {
          float v = at[0];
          if (pieces == 2) v = at[0] + at[stride];
          if (pieces == 4) v = (at[0] + at[stride]) + (at[2 * stride] + at[3 * stride]);
          total = p == 0 ? v : total + v;
        }
        out[std::size_t{r} * width + c] = total;
      }
    }
  }
  if (prompt_rows_ > 0) {
    const std::vector<float> all = prompt_qkv_.download(std::size_t{prompt_rows_} * op.width, stream_);
    for (std::uint32_t r = 0; r < prompt_rows_; ++r)
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(std::size_t{r} * op.width + first), width,
                  out.begin() + static_cast<std::ptrdiff_t>(std::size_t{decode_rows_ + r} * width));
  }
  return in_round_order(out, width);
}

// The first part takes the values, the others are zero.
void CudaBackend::write_columns(std::uint32_t first, std::uint32_t width, std::span<const float> values) {
  const std::vector<float> own = in_own_order(values, width);
  const DecodeOp& op = model_.op(current_, 0);
  const std::size_t pitch = std::size_t{op.width} * sizeof(float);
  const std::size_t bytes = width * sizeof(float);
  const auto put = [&](float* to, std::uint32_t row, std::uint32_t rows) {
    check(cudaMemcpy2DAsync(to + first, pitch, own.data() + std::size_t{row} * width, bytes, bytes, rows,
                            cudaMemcpyHostToDevice, stream_),
          "writing a stage");
  };
  if (decode_rows_ > 0) {
    const std::size_t pieces = decode_pieces(pass_rows(decode_rows_, logit_count_));
    put(qkv_.data(), 0, decode_rows_);
    for (std::size_t p = 1; p < op.parts * pieces; ++p) {
      check(cudaMemset2DAsync(qkv_.data() + p * decode_rows_ * op.width + first, pitch, 0, bytes,
                              decode_rows_, stream_),
            "writing a stage");
    }
  }
  if (prompt_rows_ > 0) put(prompt_qkv_.data(), decode_rows_, prompt_rows_);
  wait("writing a stage");
}

// Rows that go into a product: the operand of decode rows, bf16 of prompt rows.
std::vector<float> CudaBackend::read_rows(const DecodeOp& op, const DeviceArray<std::uint16_t>& prompt,
                                          std::uint32_t width) const {
  std::vector<float> out;
  if (decode_rows_ > 0) {
    DeviceArray<float> plain(std::size_t{decode_rows_} * width);
    read_operand(job(0), {decode_rows_, width, op.chunks, pass_rows(decode_rows_, logit_count_)},
                 plain.data(), stream_);
    out = plain.download(plain.size(), stream_);
  }
  if (prompt_rows_ > 0) {
    for (const std::uint16_t bits : prompt.download(std::size_t{prompt_rows_} * width, stream_))
      out.push_back(bf16_to_f32(bits));
  }
  return in_round_order(out, width);
}

void CudaBackend::write_rows(const DecodeOp& op, const DeviceArray<std::uint16_t>& prompt,
                             std::uint32_t width, std::span<const float> values) {
  const std::vector<float> own = in_own_order(values, width);
  DeviceArray<float> plain;
  plain.upload(own, stream_);
  if (decode_rows_ > 0) {
    write_operand(job(0), {decode_rows_, width, op.chunks, pass_rows(decode_rows_, logit_count_)},
                  plain.data(), stream_);
  }
  if (prompt_rows_ > 0) {
    to_bf16(plain.data() + std::size_t{decode_rows_} * width, std::size_t{prompt_rows_} * width,
            prompt.data(), stream_);
  }
  wait("writing a stage");
}

std::vector<float> CudaBackend::read(Activation which) const {
  const DeviceLayer& l = model_.layers[current_];
  switch (which) {
    case Activation::kResidual:
      return in_round_order(residual_.download(std::size_t{rows_} * g_.hidden, stream_), g_.hidden);
    case Activation::kQuery:
      if (!prepared_) return read_columns(0, l.query_width);
      return in_round_order(query_.download(std::size_t{rows_} * l.query_width, stream_), l.query_width);
    case Activation::kKey:
      return read_columns(l.query_width, l.kv_width);
    case Activation::kValue:
      return read_columns(l.query_width + (l.shape.value_from_key ? 0 : l.kv_width), l.kv_width);
    case Activation::kAttention:
      return read_rows(model_.op(current_, 1), prompt_attended_, l.query_width);
    case Activation::kFfn:
      return read_rows(model_.op(current_, 3), prompt_activated_, g_.ffn);
    case Activation::kFinal:
      if (finals_fetched_)
        return {finals_host_.data(), finals_host_.data() + std::size_t{finals_} * g_.hidden};
      return final_rows_.download(std::size_t{finals_} * g_.hidden, stream_);
    case Activation::kLogits:
      return logits_.download(std::size_t{logit_count_} * g_.vocab, stream_);
    case Activation::kNext:
      wait("a chain's step");
      return {next_host_.data(), next_host_.data() + std::size_t{finals_} * g_.backbone};
  }
  fail(ErrorCode::kFailed, "no such activation");
}

void CudaBackend::write(Activation which, std::span<const float> values) {
  const DeviceLayer& l = model_.layers[current_];
  const auto put = [&](float* to, const std::vector<float>& own) {
    copy_to(to, own.data(), own.size() * sizeof(float));
    wait("writing a stage");
  };
  switch (which) {
    case Activation::kResidual:
      return put(residual_.data(), in_own_order(values, g_.hidden));
    case Activation::kQuery:
      if (!prepared_) return write_columns(0, l.query_width, values);
      return put(query_.data(), in_own_order(values, l.query_width));
    case Activation::kKey:
      return write_columns(l.query_width, l.kv_width, values);
    case Activation::kValue:
      if (!l.shape.value_from_key) write_columns(l.query_width + l.kv_width, l.kv_width, values);
      return;
    case Activation::kAttention:
      return write_rows(model_.op(current_, 1), prompt_attended_, l.query_width, values);
    case Activation::kFfn:
      return write_rows(model_.op(current_, 3), prompt_activated_, g_.ffn, values);
    case Activation::kFinal:
      finals_fetched_ = false;
      return put(final_rows_.data(), {values.begin(), values.end()});
    case Activation::kLogits:
    case Activation::kNext:
      return;
  }
}

}  // namespace gem::cuda
