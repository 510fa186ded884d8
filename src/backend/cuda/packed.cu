#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed.h"
#include "backend/cuda/rows.h"
#include "backend/cuda/unpack.cuh"

namespace gem::cuda {
namespace {

// Writes the codes of a chunk, by a warp; `code(row, col)` gives one.
template <Format F, typename Code>
__device__ __forceinline__ void write_codes(std::uint8_t* to, std::uint32_t lane, Code&& code) {
  if constexpr (has_nibbles(F)) {
    for (std::uint32_t step = 0; step < 4; ++step) {
      std::uint32_t word = 0;
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::uint32_t row = lane / 4 + i % 2 * 8;
        const std::uint32_t col = step * 16 + lane % 4 * 4 + i / 2;
        word |= code(row, col) << q4_shift(place_of(row, col));
      }
      reinterpret_cast<std::uint32_t*>(to)[lane * 4 + step] = word;
    }
  } else {
    for (std::uint32_t i = lane; i < 16 * 64; i += 32)
      to[q8_byte(place_of(i / 64, i % 64))] = static_cast<std::uint8_t>(code(i / 64, i % 64));
  }
}

// What a warp packs: one chunk of a piece of a matrix, whose rows begin at first_row (whole tiles).
struct Piece {
  std::uint32_t first_row, rows, cols, chunks;
};

// From raw blocks of Q4_0 or Q8_0.
template <Format F>
__global__ void pack_blocks(const std::uint8_t* raw, std::uint64_t row_bytes, Piece p, std::uint8_t* out) {
  const std::uint32_t chunk = blockIdx.x * 4 + threadIdx.x / 32;
  const std::uint32_t tile = blockIdx.y;  // within the piece
  const std::uint32_t lane = threadIdx.x % 32;
  if (chunk >= p.chunks) return;
  std::uint8_t* to = out + (std::uint64_t{p.first_row / 16 + tile} * p.chunks + chunk) * chunk_bytes(F);
  constexpr std::uint32_t kBlock = F == Format::kQ4 ? 18 : 34;
  write_codes<F>(to, lane, [&](std::uint32_t row, std::uint32_t col) -> std::uint32_t {
    const std::uint32_t r = tile * 16 + row;
    const std::uint32_t c = chunk * 64 + col;
    if (p.first_row + r >= p.rows || c >= p.cols) return F == Format::kQ4 ? 8 : 0;
    const std::uint8_t* block = raw + r * row_bytes + (c / 32) * kBlock + 2;
    if constexpr (F == Format::kQ4) {
      const std::uint8_t byte = block[c % 16];
      return c % 32 < 16 ? byte & 15u : byte >> 4;
    } else {
      return block[c % 32];
    }
  });
  const std::uint32_t row = lane % 16;
  const std::uint32_t block = lane / 16;
  const std::uint32_t r = tile * 16 + row;
  const std::uint32_t c = chunk * 64 + block * 32;
  std::uint16_t scale = 0;
  if (p.first_row + r < p.rows && c < p.cols) memcpy(&scale, raw + r * row_bytes + (c / 32) * kBlock, 2);
  reinterpret_cast<std::uint16_t*>(to + (F == Format::kQ4 ? 512 : 1024))[scale_index(row, block)] = scale;
}

// From rows of codes, a byte each, and after them the row's scales: {scale, minimum} of each 32 columns, or
// the scale of each 16 (S8).
template <Format F>
__global__ void pack_codes(const std::uint8_t* raw, std::uint64_t row_bytes, Piece p, std::uint8_t* out) {
  const std::uint32_t chunk = blockIdx.x * 4 + threadIdx.x / 32;
  const std::uint32_t tile = blockIdx.y;
  const std::uint32_t lane = threadIdx.x % 32;
  if (chunk >= p.chunks) return;
  std::uint8_t* to = out + (std::uint64_t{p.first_row / 16 + tile} * p.chunks + chunk) * chunk_bytes(F);
  const auto inside = [&](std::uint32_t row, std::uint32_t col) {
    return p.first_row + tile * 16 + row < p.rows && chunk * 64 + col < p.cols;
  };
  write_codes<F>(to, lane, [&](std::uint32_t row, std::uint32_t col) -> std::uint32_t {
    return inside(row, col) ? raw[(tile * 16 + row) * row_bytes + chunk * 64 + col] : 0u;
  });
  float* scales = reinterpret_cast<float*>(to + (has_nibbles(F) ? 512 : 1024));
  for (std::uint32_t i = lane; i < 64; i += 32) {  // a row's four floats
    const std::uint32_t row = i / 4;
    const std::uint32_t which = i % 4;
    const float* from = reinterpret_cast<const float*>(raw + (tile * 16 + row) * row_bytes + p.cols);
    const float value = inside(row, which * 16) ? from[chunk * 4 + which] : 0.0f;
    if constexpr (has_minima(F)) {
      scales[affine_index(row, which / 2) + which % 2 * 2] = value;
    } else {
      scales[step_scale_index(row, which)] = value;
    }
  }
}

// One warp packs one chunk from f32 rows; a 32-block's scale is a power of two that keeps it within f16.
__global__ void pack_floats(const float* raw, Piece p, std::uint8_t* out) {
  const std::uint32_t chunk = blockIdx.x * 4 + threadIdx.x / 32;
  const std::uint32_t tile = blockIdx.y;
  const std::uint32_t lane = threadIdx.x % 32;
  if (chunk >= p.chunks) return;
  std::uint8_t* to =
      out + (std::uint64_t{p.first_row / 16 + tile} * p.chunks + chunk) * chunk_bytes(Format::kH16);
  // Lane: one row and one block.
  const std::uint32_t row = lane % 16;
  const std::uint32_t block = lane / 16;
  const std::uint32_t r = tile * 16 + row;
  const auto value = [&](std::uint32_t i) -> float {
    const std::uint32_t c = chunk * 64 + block * 32 + i;
    return p.first_row + r < p.rows && c < p.cols ? raw[std::uint64_t{r} * p.cols + c] : 0.0f;
  };
  float largest = 0;
  for (std::uint32_t i = 0; i < 32; ++i) largest = fmaxf(largest, fabsf(value(i)));
  int exponent = 0;
  if (largest > 0) frexpf(largest, &exponent);
  exponent = max(exponent - 14, -100);
  const float down = ldexpf(1.0f, -exponent);
  for (std::uint32_t i = 0; i < 32; ++i) {
    const __half h = __float2half_rn(value(i) * down);
    *reinterpret_cast<__half*>(to + h16_byte(place_of(row, block * 32 + i))) = h;
  }
  reinterpret_cast<float*>(to + 2048)[scale_index(row, block)] = ldexpf(1.0f, exponent);
}

__global__ void gather(Format format, const std::uint8_t* data, std::uint32_t bytes, std::uint32_t chunks,
                       std::uint32_t cols, const RowInfo* rows, float multiplier, float* out,
                       std::uint32_t pitch) {
  const std::int32_t id = rows[blockIdx.y].token;
  const std::uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
  if (id < 0 || col >= cols) return;
  const std::uint32_t row = static_cast<std::uint32_t>(id);
  const std::uint8_t* chunk = data + (std::uint64_t{row / 16} * chunks + col / 64) * bytes;
  out[std::uint64_t{blockIdx.y} * pitch + col] = unpack(format, chunk, row % 16, col % 64) * multiplier;
}

// One warp a chunk: 16 rows of 64 columns.
__global__ void expand(Format format, const std::uint8_t* data, std::uint32_t bytes, std::uint32_t chunks,
                       std::uint32_t rows, std::uint32_t cols, __nv_bfloat16* out) {
  const std::uint64_t index = std::uint64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  const std::uint32_t tile = static_cast<std::uint32_t>(index / chunks);
  const std::uint32_t chunk = static_cast<std::uint32_t>(index % chunks);
  const std::uint32_t lane = threadIdx.x % 32;
  if (tile * 16 >= rows) return;
  const std::uint8_t* from = data + index * bytes;
  const std::uint32_t col = chunk * 64 + lane * 2;
  if (col >= cols) return;
#pragma unroll 4
  for (std::uint32_t row = 0; row < 16; ++row) {
    if (tile * 16 + row >= rows) break;
    const __nv_bfloat162 pair =
        __floats2bfloat162_rn(unpack(format, from, row, lane * 2), unpack(format, from, row, lane * 2 + 1));
    *reinterpret_cast<__nv_bfloat162*>(out + std::uint64_t{tile * 16 + row} * cols + col) = pair;
  }
}

}  // namespace

Format format_of(const Matrix& m, Precision precision) {
  constexpr std::uint64_t kLarge = 1u << 20;
  const bool large = std::uint64_t{m.rows} * m.cols >= kLarge && m.cols % 32 == 0;
  Format format = Format::kH16;
  if (m.type == StorageType::kQ4_0) {
    format = Format::kQ4;
  } else if (m.type == StorageType::kQ8_0) {
    format = Format::kQ8;
  } else if (m.type == StorageType::kAffine) {
    format = m.affine.bits <= 4 ? Format::kA4 : Format::kA8;
  } else if (const auto codes = code_info(m.type)) {
    format = codes->is_signed ? Format::kS8 : codes->bits <= 4 ? Format::kA4 : Format::kA8;
  }
  return precision == Precision::kFourBits && large && !has_nibbles(format) ? Format::kQ4 : format;
}

std::uint64_t packed_bytes(const Matrix& matrix, Precision precision) {
  if (matrix.rows == 0) return 0;
  const std::uint64_t tiles = (std::uint64_t{matrix.rows} + kTileRows - 1) / kTileRows;
  const std::uint64_t chunks = (std::uint64_t{matrix.cols} + kChunkCols - 1) / kChunkCols;
  return tiles * chunks * chunk_bytes(format_of(matrix, precision));
}

Packer::Packer(cudaStream_t stream, Precision precision) : stream_(stream), precision_(precision) {
  for (int i = 0; i < 2; ++i) {
    host_[i].reserve(kPiece);
    raw_[i].resize(kPiece);
    check(cudaEventCreateWithFlags(&free_[i], cudaEventDisableTiming), "creating an event");
  }
}

Packer::~Packer() {
  cudaStreamSynchronize(stream_);
  for (cudaEvent_t event : free_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

namespace {

// What is uploaded of a row.
enum class Raw { kBlocks, kFloats, kCodes };
Raw raw_of(const Matrix& m, Format format) {
  if (format == Format::kH16) return Raw::kFloats;
  return format == Format::kQ4 || format == Format::kQ8 ? Raw::kBlocks : Raw::kCodes;
}
std::size_t raw_row_bytes(const Matrix& m, Format format) {
  switch (raw_of(m, format)) {
    case Raw::kFloats:
      return m.cols * sizeof(float);
    case Raw::kBlocks:
      return *storage_bytes(format == Format::kQ4 ? StorageType::kQ4_0 : StorageType::kQ8_0, m.cols);
    default:
      return m.cols + m.cols / 16 * sizeof(float);
  }
}

// Codes and scales as pack_codes() reads them.
void write_raw_codes(const Matrix& m, std::uint32_t row, std::uint8_t* to) {
  float* out = reinterpret_cast<float*>(to + m.cols);
  if (m.type == StorageType::kAffine) {
    unpack_codes(m.affine.bits, m.row(row), 0, m.cols, to);
    const std::uint32_t group = m.affine.group;
    for (std::uint32_t b = 0; b < m.cols / 32; ++b) {
      const std::size_t at = std::size_t{row} * (m.cols / group) + b * 32 / group;
      out[2 * b] = m.affine.scale(at);
      out[2 * b + 1] = m.affine.bias(at);
    }
    return;
  }
  const CodeInfo info = *code_info(m.type);
  std::vector<float> scales(m.cols / info.group), minima(m.cols / info.group);
  read_codes(m.type, m.row(row), m.cols, to, scales.data(), minima.data());
  for (std::uint32_t i = 0; i < m.cols / 16; ++i)
    out[i] = info.is_signed ? scales[i * 16 / info.group] : i % 2 == 0 ? scales[i / 2] : minima[i / 2];
}

}  // namespace

PackedMatrix Packer::pack(const Matrix& m) {
  PackedMatrix packed;
  if (m.rows == 0) return packed;
  packed.format = format_of(m, precision_);
  packed.rows = m.rows;
  packed.cols = m.cols;
  packed.tiles = (m.rows + kTileRows - 1) / kTileRows;
  packed.chunks = (m.cols + kChunkCols - 1) / kChunkCols;
  packed.data.resize(packed_bytes(m, precision_));
  const Raw raw = raw_of(m, packed.format);
  const bool as_stored = (m.type == StorageType::kQ4_0 && packed.format == Format::kQ4) ||
                         (m.type == StorageType::kQ8_0 && packed.format == Format::kQ8);
  const std::size_t row_bytes = raw_row_bytes(m, packed.format);
  const std::size_t tile_bytes = row_bytes * kTileRows;
  if (tile_bytes > kPiece) raise(cudaErrorInvalidValue, "a matrix has too many columns to be packed");
  const auto tiles_at_once = static_cast<std::uint32_t>(std::min<std::size_t>(kPiece / tile_bytes, 32768));
  for (std::uint32_t tile = 0; tile < packed.tiles; tile += tiles_at_once) {
    const std::uint32_t tiles = std::min(tiles_at_once, packed.tiles - tile);
    const std::uint32_t first = tile * kTileRows;
    const std::uint32_t rows = std::min(tiles * kTileRows, m.rows - first);
    const int slot = next_;
    next_ ^= 1;
    check(cudaEventSynchronize(free_[slot]), "waiting for a packing buffer");
    std::uint8_t* host = host_[slot].data();
    // Pages come in faster on several threads.
    const unsigned threads = std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u);
    std::vector<std::thread> copiers;
    for (unsigned t = 0; t < threads; ++t) {
      copiers.emplace_back([&, t] {
        const std::uint32_t begin = static_cast<std::uint32_t>(std::uint64_t{rows} * t / threads);
        const std::uint32_t end = static_cast<std::uint32_t>(std::uint64_t{rows} * (t + 1) / threads);
        if (as_stored) {
          std::memcpy(host + begin * row_bytes, m.row(first + begin), (end - begin) * row_bytes);
          return;
        }
        std::vector<float> values(raw == Raw::kBlocks ? m.cols : 0);
        for (std::uint32_t r = begin; r < end; ++r) {
          std::uint8_t* to = host + r * row_bytes;
          switch (raw) {
            case Raw::kCodes:
              write_raw_codes(m, first + r, to);
              break;
            case Raw::kFloats:
              m.expand_row(first + r, reinterpret_cast<float*>(to));
              break;
            case Raw::kBlocks:
              m.expand_row(first + r, values.data());
              quantize(StorageType::kQ4_0, values.data(), to, m.cols);
              break;
          }
        }
      });
    }
    for (std::thread& thread : copiers) thread.join();
    check(cudaMemcpyAsync(raw_[slot].data(), host, rows * row_bytes, cudaMemcpyHostToDevice, stream_),
          "uploading weights");
    pack_piece(packed, raw_[slot].data(), row_bytes, first, tiles);
    check(cudaEventRecord(free_[slot], stream_), "recording an event");
  }
  return packed;
}

void Packer::pack_piece(const PackedMatrix& packed, const std::uint8_t* raw, std::uint64_t row_bytes,
                        std::uint32_t first_row, std::uint32_t tiles) {
  const LaunchShape shape = {dim3((packed.chunks + 3) / 4, tiles), 128, 0, stream_};
  const Piece piece = {first_row, packed.rows, packed.cols, packed.chunks};
  std::uint8_t* out = packed.data.data();
  switch (packed.format) {
    case Format::kQ4:
      launch(pack_blocks<Format::kQ4>, shape, raw, row_bytes, piece, out);
      break;
    case Format::kQ8:
      launch(pack_blocks<Format::kQ8>, shape, raw, row_bytes, piece, out);
      break;
    case Format::kH16:
      launch(pack_floats, shape, reinterpret_cast<const float*>(raw), piece, out);
      break;
    case Format::kA4:
      launch(pack_codes<Format::kA4>, shape, raw, row_bytes, piece, out);
      break;
    case Format::kA8:
      launch(pack_codes<Format::kA8>, shape, raw, row_bytes, piece, out);
      break;
    case Format::kS8:
      launch(pack_codes<Format::kS8>, shape, raw, row_bytes, piece, out);
      break;
  }
  check_launch("packing weights");
}

void gather_rows(const PackedMatrix& m, const RowInfo* rows, std::uint32_t count, float multiplier,
                 float* out, std::uint32_t pitch, cudaStream_t stream) {
  launch(gather, {dim3((m.cols + 255) / 256, count), 256, 0, stream}, m.format, m.data.data(),
         chunk_bytes(m.format), m.chunks, m.cols, rows, multiplier, out, pitch);
  check_launch("gather");
}

void expand_bf16(const PackedMatrix& m, std::uint16_t* out, cudaStream_t stream) {
  const std::uint64_t warps = std::uint64_t{m.tiles} * m.chunks;
  launch(expand, {static_cast<unsigned>((warps + 3) / 4), 128, 0, stream}, m.format, m.data.data(),
         chunk_bytes(m.format), m.chunks, m.rows, m.cols, reinterpret_cast<__nv_bfloat16*>(out));
  check_launch("expand");
}

}  // namespace gem::cuda
