#include "backend/cuda/matvec.h"

#include <algorithm>

#include "backend/cuda/launch.h"

namespace gem::cuda {
namespace {

constexpr int kWarps = 16;
constexpr std::size_t kSharedLimit = 226 * 1024;  // of one block on sm_90
constexpr std::uint32_t kLongestPart = 2688;      // columns: 16 rows of a part fit beside the rings

template <Format F>
struct Ring {
  static constexpr std::uint32_t kChunkBytes = chunk_bytes(F);
  static constexpr std::uint32_t kStageChunks = F == Format::kQ4 ? 2 : 1;
  static constexpr std::uint32_t kStageBytes = kChunkBytes * kStageChunks;
};

struct Segment {
  const std::uint8_t* data;
  std::uint32_t tiles;
  std::uint32_t rows;
  std::uint32_t first_row;  // in the output
};

struct Job {
  Segment segments[3];
  std::uint32_t count, tiles, chunks, parts, groups;  // groups: blocks a part
  const std::uint32_t* halves;
  const float* scales;
  std::uint32_t cols;
  std::uint32_t first, rows;  // rows of the operand in this pass
  float* out;
  std::uint32_t out_rows, width;
  std::uint32_t depth;  // stages of a ring
};

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ inline void barrier_init(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)));
}
__device__ inline void barrier_wait(std::uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra "
      "again;\n"
      "done:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// Starts a copy of `bytes` (a multiple of 16) that the barrier counts.
__device__ inline void bulk_copy(void* to, const void* from, unsigned bytes, std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

__device__ inline unsigned half_pair(float value) {
  const __half2 h = __float2half2_rn(value);
  return *reinterpret_cast<const unsigned*>(&h);
}
__device__ inline unsigned subtract(unsigned a, unsigned b) {
  const __half2 r = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<const unsigned*>(&r);
}
__device__ inline unsigned multiply_add(unsigned a, unsigned b, unsigned c) {
  const __half2 r = __hfma2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b),
                            *reinterpret_cast<__half2*>(&c));
  return *reinterpret_cast<const unsigned*>(&r);
}

// The A operand of one step of 16 columns. Codes become f16 exactly: a code in the low mantissa bits of 1024
// is 1024 + code, one in bits 4..7 is 1024 + 16 code.
template <Format F>
struct Fragment;

template <>
struct Fragment<Format::kQ4> {
  uint4 words;
  float2 scale[2];  // rows {r, r + 8} of each 32-block
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    const uint2 s = *reinterpret_cast<const uint2*>(chunk + 512 + (lane >> 2) * 8);
    scale[0] = __half22float2(*reinterpret_cast<const __half2*>(&s.x));
    scale[1] = __half22float2(*reinterpret_cast<const __half2*>(&s.y));
  }
  template <int Step>
  __device__ void step(unsigned (&a)[4]) const {
    const unsigned w = Step == 0 ? words.x : Step == 1 ? words.y : Step == 2 ? words.z : words.w;
    const unsigned low = half_pair(1032.0f);        // 1024 + 8
    const unsigned sixteenth = half_pair(0.0625f);  // (1024 + 16 c) / 16 - 72 = c - 8
    const unsigned offset = half_pair(-72.0f);
    const unsigned v = w >> 8;
    a[0] = subtract((w & 0x000f000fu) | 0x64006400u, low);
    a[1] = multiply_add((w & 0x00f000f0u) | 0x64006400u, sixteenth, offset);
    a[2] = subtract((v & 0x000f000fu) | 0x64006400u, low);
    a[3] = multiply_add((v & 0x00f000f0u) | 0x64006400u, sixteenth, offset);
  }
};

template <>
struct Fragment<Format::kQ8> {
  uint4 words[2];
  float2 scale[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
    const uint2 s = *reinterpret_cast<const uint2*>(chunk + 1024 + (lane >> 2) * 8);
    scale[0] = __half22float2(*reinterpret_cast<const __half2*>(&s.x));
    scale[1] = __half22float2(*reinterpret_cast<const __half2*>(&s.y));
  }
  template <int Step>
  __device__ void step(unsigned (&a)[4]) const {
    const uint4& q = words[Step / 2];
    const unsigned first = (Step % 2 == 0 ? q.x : q.z) ^ 0x80808080u;
    const unsigned second = (Step % 2 == 0 ? q.y : q.w) ^ 0x80808080u;
    const unsigned bias = half_pair(1152.0f);  // 1024 + 128
    a[0] = subtract(__byte_perm(first, 0x64646464u, 0x4240), bias);
    a[1] = subtract(__byte_perm(first, 0x64646464u, 0x4341), bias);
    a[2] = subtract(__byte_perm(second, 0x64646464u, 0x4240), bias);
    a[3] = subtract(__byte_perm(second, 0x64646464u, 0x4341), bias);
  }
};

template <>
struct Fragment<Format::kH16> {
  uint4 words[4];
  float2 scale[2];
  __device__ void load(const std::uint8_t* chunk, int lane) {
#pragma unroll
    for (int s = 0; s < 4; ++s) words[s] = *reinterpret_cast<const uint4*>(chunk + s * 512 + lane * 16);
    const float4 s = *reinterpret_cast<const float4*>(chunk + 2048 + (lane >> 2) * 16);
    scale[0] = make_float2(s.x, s.y);
    scale[1] = make_float2(s.z, s.w);
  }
  template <int Step>
  __device__ void step(unsigned (&a)[4]) const {
    a[0] = words[Step].x;
    a[1] = words[Step].y;
    a[2] = words[Step].z;
    a[3] = words[Step].w;
  }
};

// One block: a group of a part's warps. Warp g of a part takes tiles g, g + (warps of the part), ...
template <Format F, int NT>
__global__ void __launch_bounds__(kWarps * 32, 1) product(const __grid_constant__ Job job) {
  using R = Ring<F>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ std::uint64_t barriers[kWarps][8];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::uint32_t part = blockIdx.x % job.parts;
  const std::uint32_t group = blockIdx.x / job.parts;
  const std::uint32_t chunk0 = part * job.chunks / job.parts;
  const std::uint32_t my_chunks = (part + 1) * job.chunks / job.parts - chunk0;
  const std::uint32_t worker = group * kWarps + warp;
  const std::uint32_t workers = job.groups * kWarps;
  const std::uint32_t my_tiles = worker < job.tiles ? (job.tiles - worker + workers - 1) / workers : 0;
  const std::uint32_t stages_of_tile = (my_chunks + R::kStageChunks - 1) / R::kStageChunks;
  const std::uint32_t stages = my_tiles * stages_of_tile;
  std::uint8_t* ring = shared + warp * job.depth * R::kStageBytes;

  if (lane == 0) {
    for (std::uint32_t i = 0; i < job.depth; ++i) barrier_init(&barriers[warp][i]);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
  std::uint32_t next_tile = worker;  // of the next copy
  std::uint32_t next_stage = 0;
  const auto request = [&](std::uint32_t slot) {
    std::uint32_t tile = next_tile;
    const std::uint8_t* data = job.segments[0].data;
    if (job.count > 1 && tile >= job.segments[0].tiles) {
      tile -= job.segments[0].tiles;
      data = job.segments[1].data;
      if (job.count > 2 && tile >= job.segments[1].tiles) {
        tile -= job.segments[1].tiles;
        data = job.segments[2].data;
      }
    }
    const std::uint32_t at = next_stage * R::kStageChunks;
    const std::uint32_t count = min(R::kStageChunks, my_chunks - at);
    bulk_copy(ring + slot * R::kStageBytes,
              data + (std::uint64_t{tile} * job.chunks + chunk0 + at) * R::kChunkBytes,
              count * R::kChunkBytes, &barriers[warp][slot]);
    if (++next_stage == stages_of_tile) {
      next_stage = 0;
      next_tile += workers;
    }
  };
  // The weights depend on nothing that runs before: they are on their way while it ends.
  if (lane == 0) {
    for (std::uint32_t i = 0; i < min(job.depth, stages); ++i) request(i);
  }
  let_next_start();
  wait_for_previous();

  // The operand of this part: a row's steps lie together, an odd multiple of 64 bytes apart, so that the four
  // rows of a column tile are read without conflicts.
  const std::uint32_t row_words = my_chunks * 64;   // 16 words a step, 4 steps a chunk
  const std::uint32_t row_stride = row_words + 16;  // words
  std::uint32_t* halves = reinterpret_cast<std::uint32_t*>(shared + kWarps * job.depth * R::kStageBytes);
  float* scales = reinterpret_cast<float*>(halves + job.rows * row_stride);
  const std::uint32_t blocks = my_chunks * 2;
  for (std::uint32_t i = threadIdx.x; i < job.rows * (row_words / 4); i += kWarps * 32) {
    const std::uint32_t r = i / (row_words / 4);
    const std::uint32_t c = i % (row_words / 4);
    *reinterpret_cast<uint4*>(halves + r * row_stride + c * 4) = *reinterpret_cast<const uint4*>(
        job.halves + std::size_t{job.first + r} * job.cols + std::size_t{chunk0} * 64 + c * 4);
  }
  for (std::uint32_t i = threadIdx.x; i < job.rows * blocks; i += kWarps * 32) {
    const std::uint32_t r = i / blocks;
    scales[i] = job.scales[std::size_t{job.first + r} * (job.cols / 32) + chunk0 * 2 + i % blocks];
  }
  __syncthreads();

  // Lane l reads column l / 4 of B: row (l / 4) / 2 of a column tile, its high (even) or low (odd) halves;
  // and gets the sums of row l % 4.
  const std::uint32_t read_row = lane / 8;
  const std::uint32_t read_at = ((lane / 4) % 2) * 8 + (lane % 4) * 2;
  // Columns without a row read the last one's; nobody reads their sums.
  const std::uint32_t* reads[NT];
  const float* factors[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    reads[n] = halves + min(n * 4 + read_row, job.rows - 1) * row_stride + read_at;
    factors[n] = scales + min(n * 4 + lane % 4u, job.rows - 1) * blocks;
  }
  const auto add_chunk = [&](const std::uint8_t* from, std::uint32_t chunk, float(&sum)[NT][2]) {
    Fragment<F> weights;
    weights.load(from, lane);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      unsigned a0[4];
      unsigned a1[4];
      if (block == 0) {
        weights.template step<0>(a0);
        weights.template step<1>(a1);
      } else {
        weights.template step<2>(a0);
        weights.template step<3>(a1);
      }
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const std::uint32_t* step = reads[n] + (chunk * 4 + block * 2) * 16;
        const uint2 b0 = *reinterpret_cast<const uint2*>(step);
        const uint2 b1 = *reinterpret_cast<const uint2*>(step + 16);
        float d[4] = {0, 0, 0, 0};
        mma(d, a0, b0);
        mma(d, a1, b1);
        const float x = factors[n][chunk * 2 + block];
        sum[n][0] = fmaf(weights.scale[block].x * x, d[0] + d[1], sum[n][0]);
        sum[n][1] = fmaf(weights.scale[block].y * x, d[2] + d[3], sum[n][1]);
      }
    }
  };
  std::uint32_t slot = 0;
  unsigned parity = 0;
  std::uint32_t issued = min(job.depth, stages);
  for (std::uint32_t t = 0; t < my_tiles; ++t) {
    float sum[NT][2] = {};
    for (std::uint32_t s = 0; s < stages_of_tile; ++s) {
      barrier_wait(&barriers[warp][slot], parity);
      const std::uint8_t* stage = ring + slot * R::kStageBytes;
      const std::uint32_t at = s * R::kStageChunks;
      const std::uint32_t count = min(R::kStageChunks, my_chunks - at);
      if (count == R::kStageChunks) {
#pragma unroll
        for (std::uint32_t c = 0; c < R::kStageChunks; ++c)
          add_chunk(stage + c * R::kChunkBytes, at + c, sum);
      } else {
        for (std::uint32_t c = 0; c < count; ++c) add_chunk(stage + c * R::kChunkBytes, at + c, sum);
      }
      __syncwarp();
      if (issued < stages) {
        if (lane == 0) request(slot);
        ++issued;
      }
      if (++slot == job.depth) {
        slot = 0;
        parity ^= 1;
      }
    }
    std::uint32_t tile = worker + t * workers;
    std::uint32_t which = 0;
    while (which + 1 < job.count && tile >= job.segments[which].tiles) tile -= job.segments[which++].tiles;
    const Segment& segment = job.segments[which];
    const std::uint32_t r = tile * kTileRows + lane / 4;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const std::uint32_t row = n * 4 + lane % 4;
      if (row >= job.rows) continue;
      float* out =
          job.out + (std::size_t{part} * job.out_rows + job.first + row) * job.width + segment.first_row;
      if (r < segment.rows) out[r] = sum[n][0];
      if (r + 8 < segment.rows) out[r + 8] = sum[n][1];
    }
  }
}

struct Device {
  int processors = 132;
};
const Device& device() {
  static const Device found = [] {
    Device d;
    int id = 0;
    check(cudaGetDevice(&id), "asking for the device");
    check(cudaDeviceGetAttribute(&d.processors, cudaDevAttrMultiProcessorCount, id), "asking for the device");
    return d;
  }();
  return found;
}

template <Format F, int NT>
void run(Job job, cudaStream_t stream) {
  using R = Ring<F>;
  static const bool ready = [] {
    check(cudaFuncSetAttribute(product<F, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kSharedLimit)),
          "shared memory of the products");
    return true;
  }();
  (void)ready;
  const std::uint32_t part_chunks = (job.chunks + job.parts - 1) / job.parts;
  const std::size_t operand = std::size_t{job.rows} * ((part_chunks * 64 + 16) * 4 + part_chunks * 2 * 4);
  const std::size_t stage = std::size_t{kWarps} * R::kStageBytes;
  // As deep as needed to hide the memory's latency, and so that two blocks fit where the operand is small.
  const std::size_t room = kSharedLimit - operand;
  job.depth = static_cast<std::uint32_t>(std::clamp<std::size_t>(room / stage, 1, 5));
  job.groups = std::max(1u, static_cast<std::uint32_t>(device().processors) / job.parts);
  const std::uint32_t needed = (job.tiles + kWarps - 1) / kWarps;
  job.groups = std::min(job.groups, needed);
  launch("product", product<F, NT>, dim3(job.groups * job.parts), dim3(kWarps * 32),
         job.depth * stage + operand, stream, job);
}

template <Format F>
void dispatch(const Job& job, cudaStream_t stream) {
  switch ((job.rows + 3) / 4) {
    case 1:
      return run<F, 1>(job, stream);
    case 2:
      return run<F, 2>(job, stream);
    case 3:
      return run<F, 3>(job, stream);
    default:
      return run<F, 4>(job, stream);
  }
}

}  // namespace

std::uint32_t parts_of(std::uint32_t tiles, std::uint32_t cols) {
  const std::uint32_t workers = static_cast<std::uint32_t>(device().processors) * kWarps;
  const std::uint32_t shortest = std::max(1u, cols / 512);
  const std::uint32_t for_workers = std::max(1u, workers / tiles);
  return std::max((cols + kLongestPart - 1) / kLongestPart, std::min(shortest, for_workers));
}

void multiply(std::span<const PackedMatrix* const> matrices, const OperandView& x, std::uint32_t rows,
              const Partials& out, cudaStream_t stream) {
  // Neighbours of one format go together.
  std::uint32_t first_row = 0;
  for (std::size_t i = 0; i < matrices.size();) {
    Job job = {};
    const Format format = matrices[i]->format;
    job.chunks = matrices[i]->chunks;
    for (; i < matrices.size() && job.count < 3 && matrices[i]->format == format; ++i) {
      const PackedMatrix& m = *matrices[i];
      job.segments[job.count++] = {m.data.data(), m.tiles, m.rows, first_row};
      job.tiles += m.tiles;
      first_row += m.rows;
    }
    job.parts = out.parts;
    job.halves = x.halves;
    job.scales = x.scales;
    job.cols = x.cols;
    job.out = out.data;
    job.out_rows = out.rows;
    job.width = out.width;
    for (std::uint32_t first = 0; first < rows; first += kPassRows) {
      job.first = first;
      job.rows = std::min(kPassRows, rows - first);
      switch (format) {
        case Format::kQ4:
          dispatch<Format::kQ4>(job, stream);
          break;
        case Format::kQ8:
          dispatch<Format::kQ8>(job, stream);
          break;
        case Format::kH16:
          dispatch<Format::kH16>(job, stream);
          break;
      }
    }
  }
}

}  // namespace gem::cuda
