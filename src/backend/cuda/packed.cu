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

// One warp packs one chunk from raw blocks of rows first_row .. of the matrix (whole tiles).
template <Format F>
__global__ void pack_blocks(const std::uint8_t* raw, std::uint64_t row_bytes, std::uint32_t first_row,
                            std::uint32_t rows, std::uint32_t cols, std::uint32_t chunks, std::uint8_t* out) {
  const std::uint32_t chunk = blockIdx.x * 4 + threadIdx.x / 32;
  const std::uint32_t tile = blockIdx.y;  // within the piece
  const std::uint32_t lane = threadIdx.x % 32;
  if (chunk >= chunks) return;
  std::uint8_t* to =
      out + (std::uint64_t{first_row / 16 + tile} * chunks + chunk) * (F == Format::kQ4 ? 576u : 1088u);
  constexpr std::uint32_t kBlock = F == Format::kQ4 ? 18 : 34;
  const auto code = [&](std::uint32_t row, std::uint32_t col) -> std::uint32_t {
    const std::uint32_t r = tile * 16 + row;
    const std::uint32_t c = chunk * 64 + col;
    if (first_row + r >= rows || c >= cols) return F == Format::kQ4 ? 8 : 0;
    const std::uint8_t* block = raw + r * row_bytes + (c / 32) * kBlock + 2;
    if constexpr (F == Format::kQ4) {
      const std::uint8_t byte = block[c % 16];
      return c % 32 < 16 ? byte & 15u : byte >> 4;
    } else {
      return block[c % 32];
    }
  };
  for (std::uint32_t i = lane; i < 16 * 64; i += 32) {
    // Walk by destination word so that no two lanes write one byte.
    if constexpr (F == Format::kQ8) {
      const std::uint32_t row = i / 64;
      const std::uint32_t col = i % 64;
      to[q8_byte(place_of(row, col))] = static_cast<std::uint8_t>(code(row, col));
    }
  }
  if constexpr (F == Format::kQ4) {
    for (std::uint32_t step = 0; step < 4; ++step) {
      std::uint32_t word = 0;
      for (std::uint32_t reg = 0; reg < 4; ++reg) {
        for (std::uint32_t half = 0; half < 2; ++half) {
          const std::uint32_t row = lane / 4 + (reg % 2) * 8;
          const std::uint32_t col = step * 16 + (lane % 4) * 2 + (reg / 2) * 8 + half;
          word |= code(row, col) << (half * 16 + reg * 4);
        }
      }
      reinterpret_cast<std::uint32_t*>(to)[lane * 4 + step] = word;
    }
  }
  if (lane < 32) {
    const std::uint32_t row = lane % 16;
    const std::uint32_t block = lane / 16;
    const std::uint32_t r = tile * 16 + row;
    const std::uint32_t c = chunk * 64 + block * 32;
    std::uint16_t scale = 0;
    if (first_row + r < rows && c < cols) memcpy(&scale, raw + r * row_bytes + (c / 32) * kBlock, 2);
    reinterpret_cast<std::uint16_t*>(to + (F == Format::kQ4 ? 512 : 1024))[scale_index(row, block)] = scale;
  }
}

// One warp packs one chunk from f32 rows; a 32-block's scale is a power of two that keeps it within f16.
__global__ void pack_floats(const float* raw, std::uint32_t first_row, std::uint32_t rows, std::uint32_t cols,
                            std::uint32_t chunks, std::uint8_t* out) {
  const std::uint32_t chunk = blockIdx.x * 4 + threadIdx.x / 32;
  const std::uint32_t tile = blockIdx.y;
  const std::uint32_t lane = threadIdx.x % 32;
  if (chunk >= chunks) return;
  std::uint8_t* to = out + (std::uint64_t{first_row / 16 + tile} * chunks + chunk) * 2176u;
  // Lane: one row and one block.
  const std::uint32_t row = lane % 16;
  const std::uint32_t block = lane / 16;
  const std::uint32_t r = tile * 16 + row;
  const auto value = [&](std::uint32_t i) -> float {
    const std::uint32_t c = chunk * 64 + block * 32 + i;
    return first_row + r < rows && c < cols ? raw[std::uint64_t{r} * cols + c] : 0.0f;
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

Format format_of(const Matrix& m, Floats floats) {
  if (m.type == StorageType::kQ4_0) return Format::kQ4;
  if (m.type == StorageType::kQ8_0) return Format::kQ8;
  constexpr std::uint64_t kLarge = 1u << 20;
  const bool of_floats =
      m.type == StorageType::kF32 || m.type == StorageType::kF16 || m.type == StorageType::kBF16;
  if (floats == Floats::kShortened && of_floats && m.cols % 32 == 0 &&
      std::uint64_t{m.rows} * m.cols >= kLarge)
    return Format::kQ4;
  return Format::kH16;
}

std::uint64_t packed_bytes(const Matrix& matrix, Floats floats) {
  if (matrix.rows == 0) return 0;
  const std::uint64_t tiles = (std::uint64_t{matrix.rows} + kTileRows - 1) / kTileRows;
  const std::uint64_t chunks = (std::uint64_t{matrix.cols} + kChunkCols - 1) / kChunkCols;
  return tiles * chunks * chunk_bytes(format_of(matrix, floats));
}

Packer::Packer(cudaStream_t stream, Floats floats) : stream_(stream), floats_(floats) {
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

PackedMatrix Packer::pack(const Matrix& m) {
  PackedMatrix packed;
  if (m.rows == 0) return packed;
  packed.format = format_of(m, floats_);
  packed.rows = m.rows;
  packed.cols = m.cols;
  packed.tiles = (m.rows + kTileRows - 1) / kTileRows;
  packed.chunks = (m.cols + kChunkCols - 1) / kChunkCols;
  packed.data.resize(packed_bytes(m, floats_));
  const bool floats = packed.format == Format::kH16;
  const bool rounded = packed.format == Format::kQ4 && m.type != StorageType::kQ4_0;
  const std::size_t row_bytes = floats    ? m.cols * sizeof(float)
                                : rounded ? *storage_bytes(StorageType::kQ4_0, m.cols)
                                          : m.row_bytes();
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
        if (!floats && !rounded) {
          std::memcpy(host + begin * row_bytes, m.row(first + begin), (end - begin) * row_bytes);
          return;
        }
        std::vector<float> values(rounded ? m.cols : 0);
        for (std::uint32_t r = begin; r < end; ++r) {
          std::uint8_t* to = host + r * row_bytes;
          m.expand_row(first + r, rounded ? values.data() : reinterpret_cast<float*>(to));
          if (rounded) quantize(StorageType::kQ4_0, values.data(), to, m.cols);
        }
      });
    }
    for (std::thread& thread : copiers) thread.join();
    check(cudaMemcpyAsync(raw_[slot].data(), host, rows * row_bytes, cudaMemcpyHostToDevice, stream_),
          "uploading weights");
    const dim3 grid((packed.chunks + 3) / 4, tiles);
    switch (packed.format) {
      case Format::kQ4:
        launch(pack_blocks<Format::kQ4>, {grid, 128, 0, stream_}, raw_[slot].data(), row_bytes, first, m.rows,
               m.cols, packed.chunks, packed.data.data());
        break;
      case Format::kQ8:
        launch(pack_blocks<Format::kQ8>, {grid, 128, 0, stream_}, raw_[slot].data(), row_bytes, first, m.rows,
               m.cols, packed.chunks, packed.data.data());
        break;
      case Format::kH16:
        launch(pack_floats, {grid, 128, 0, stream_}, reinterpret_cast<const float*>(raw_[slot].data()), first,
               m.rows, m.cols, packed.chunks, packed.data.data());
        break;
    }
    check_launch("packing weights");
    check(cudaEventRecord(free_[slot], stream_), "recording an event");
  }
  return packed;
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
