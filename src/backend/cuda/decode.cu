#include "backend/cuda/decode.h"

#include <algorithm>

#include "backend/cuda/decode_attention.cuh"
#include "backend/cuda/decode_product.cuh"
#include "backend/cuda/decode_rows.cuh"

namespace gem::cuda {
namespace {

template <int Pieces>
struct Round {
  static constexpr std::uint32_t kRows = 8 * Pieces;  // of a pass

  const DecodeJob& job;
  DecodeShared& s;
  std::uint8_t* region;
  float* reduce;
  Cursor<Pieces> cursor;
  Reader reader;
  unsigned flip = 0;
  unsigned target = 0;
  float (*largest)[kTeamWarps];

  __device__ void sync() { grid_sync(job.barrier, target); }

  __device__ std::uint32_t rows_of(std::uint32_t total, std::uint32_t pass) const {
    return min(kRows, total - pass * kRows);
  }

  // The product of the rows that the global operand holds.
  __device__ void multiply(const DecodeOp& op, float* out) {
    const MyPart part = my_part<Pieces>(op);
    for (std::uint32_t pass = 0; pass * kRows < job.row_count; ++pass) {
      const std::uint32_t rows = rows_of(job.row_count, pass);
      const Operand x = shared_operand<Pieces>(region, part, rows);
      if (!job.fused) {
        load_operand(global_operand<Pieces>(job, op, pass, rows), x, kSlices / Pieces);
        __syncthreads();
      }
      product<Pieces>(cursor, reader, op, part, x, reduce, out, job.row_count, pass * kRows);
      __syncthreads();  // before the next operand
    }
    sync();
  }

  // The norm before a product, after what is still to be added to the residual. Fused rounds leave the block's
  // columns in shared memory, others all in global memory.
  __device__ void rows_stage(const DecodeOp* op, const float* in, float* out, const Parts* branch,
                             const float* weight, float scale, const float* next, float up) {
    RowStep step;
    step.branch = branch;
    step.weight = weight;
    step.scale = scale;
    step.next = next;
    step.up = up;
    const bool fused = job.fused && next != nullptr;
    const std::uint32_t first = fused ? 0 : blockIdx.x;
    const std::uint32_t stride = fused ? 1 : gridDim.x;
    for (std::uint32_t row = first; row < job.row_count; row += stride) {
      step.in = in + std::size_t{row} * job.hidden;
      step.out = out != nullptr && (!fused || blockIdx.x == 0) ? out + std::size_t{row} * job.hidden : nullptr;
      step.branch_row = row;
      Operand x = {};
      if (next != nullptr) {
        x = operand(*op, row / kRows, rows_of(job.row_count, row / kRows), fused);
        step.operand = &x;
        step.operand_row = row % kRows;
        if (fused ? row == 0 : row % kRows == 0)
          fill_scales(x, fused ? kSlices / Pieces : op->parts * kSlices, up);
      }
      row_step<Pieces>(s, flip, job.hidden, job.epsilon, step);
    }
    if (fused) {
      __syncthreads();
    } else {
      sync();
    }
  }
  __device__ Operand operand(const DecodeOp& op, std::uint32_t pass, std::uint32_t rows, bool fused) const {
    return fused ? shared_operand<Pieces>(region, my_part<Pieces>(op), rows) : global_operand<Pieces>(job, op, pass, rows);
  }

  __device__ void prepare(const DecodeLayer& layer, std::uint32_t index, const Parts& qkv) {
    switch ((layer.shape.head_dim + 31) / 32) {
      case 1: return prepare_all<32, Pieces>(job, layer, index, qkv);
      case 2: return prepare_all<64, Pieces>(job, layer, index, qkv);
      case 4: return prepare_all<128, Pieces>(job, layer, index, qkv);
      case 8: return prepare_all<256, Pieces>(job, layer, index, qkv);
      default: return prepare_all<512, Pieces>(job, layer, index, qkv);
    }
  }
  __device__ void attend(const DecodeLayer& layer, std::uint32_t index, const Parts& qkv) {
    switch ((layer.shape.head_dim + 31) / 32) {
      case 1: return attend_all<32, Pieces>(job, layer, index, qkv, region);
      case 2: return attend_all<64, Pieces>(job, layer, index, qkv, region);
      case 4: return attend_all<128, Pieces>(job, layer, index, qkv, region);
      case 8: return attend_all<256, Pieces>(job, layer, index, qkv, region);
      default: return attend_all<512, Pieces>(job, layer, index, qkv, region);
    }
  }

  __device__ void merge(const DecodeLayer& layer, const DecodeOp& op) {
    for (std::uint32_t pass = 0; pass * kRows < job.row_count; ++pass) {
      const std::uint32_t rows = rows_of(job.row_count, pass);
      const Operand x = operand(op, pass, rows, job.fused);
      if (job.fused || blockIdx.x == 0)
        fill_scales(x, job.fused ? kSlices / Pieces : op.parts * kSlices, kAttendedUp);
      const std::uint32_t vectors = (x.chunk1 - x.chunk0) * 16;
      const std::uint32_t first = job.fused ? threadIdx.x : blockIdx.x * kThreads + threadIdx.x;
      const std::uint32_t stride = job.fused ? kThreads : gridDim.x * kThreads;
      for (std::uint32_t i = first; i < rows * vectors; i += stride) {
        const std::uint32_t row = i / vectors;
        const std::uint32_t col = x.chunk0 * 64 + i % vectors * 4;
        store_operand(x, row, col, merged(job, layer, pass * kRows + row, col), kAttendedUp);
      }
    }
    if (job.fused) {
      __syncthreads();
    } else {
      sync();
    }
  }

  __device__ void activate(const DecodeOp& op, const Parts& both) {
    const std::uint32_t team = threadIdx.x / (kTeamWarps * 32);
    if (job.fused) {
      const MyPart part = my_part<Pieces>(op);
      const Operand x = shared_operand<Pieces>(region, part, job.row_count);
      constexpr std::uint32_t kOwn = kSlices / Pieces;
      for (std::uint32_t u = team; u < job.row_count * kOwn; u += kTeams)
        activate_slice<Pieces>(largest, op, job.ffn, both, u / kOwn, part.slice0 + u % kOwn, x, u / kOwn);
      __syncthreads();
      return;
    }
    const std::uint32_t slices = op.parts * kSlices;
    for (std::uint32_t u = blockIdx.x * kTeams + team; u < job.row_count * slices; u += gridDim.x * kTeams) {
      const std::uint32_t row = u / slices;
      const Operand x = global_operand<Pieces>(job, op, row / kRows, rows_of(job.row_count, row / kRows));
      activate_slice<Pieces>(largest, op, job.ffn, both, row, u % slices, x, row % kRows);
    }
    sync();
  }

  // Layer structures in shared memory, two at a time.
  __device__ void fetch(std::uint32_t layer) {
    if (layer >= job.last_layer) return;
    const auto copy = [](void* to, const void* from, std::size_t bytes) {
      for (std::size_t i = threadIdx.x; i < bytes / 4; i += kThreads)
        static_cast<std::uint32_t*>(to)[i] = __ldg(static_cast<const std::uint32_t*>(from) + i);
    };
    copy(&s.layers[layer % 2], job.layers + layer, sizeof(DecodeLayer));
    copy(s.ops[layer % 2], job.ops + layer * kOpsOfLayer, sizeof(DecodeOp) * kOpsOfLayer);
  }

  __device__ void run_layers() {
    fetch(job.first_layer);
    __syncthreads();
    for (std::uint32_t l = job.first_layer; l < job.last_layer; ++l) {
      const DecodeLayer& layer = s.layers[l % 2];
      const DecodeOp* ops = s.ops[l % 2];
      const DecodeLayer& before = s.layers[(l + 1) % 2];
      const Parts qkv = {job.qkv, ops[0].parts, job.row_count, ops[0].width};
      const Parts attended = {job.branch, ops[1].parts, job.row_count, job.hidden};
      const Parts both = {job.both, ops[2].parts, job.row_count, ops[2].width};
      const Parts fed = {job.branch, ops[3].parts, job.row_count, job.hidden};
      const std::uint32_t phases = job.phases;
      if (phases & kPhaseNormIn) {
        if (job.whole && l > job.first_layer) {
          const Parts last = {job.branch, s.ops[(l + 1) % 2][3].parts, job.row_count, job.hidden};
          rows_stage(&ops[0], job.between, job.residual, &last, before.post_ffw_norm, before.scale, layer.attn_norm,
                     layer.attn_up);
        } else {
          rows_stage(&ops[0], job.residual, nullptr, nullptr, nullptr, 1, layer.attn_norm, layer.attn_up);
        }
      }
      if (phases & kPhaseQkv) {
        fetch(l + 1);
        multiply(ops[0], job.qkv);
      }
      if (phases & kPhasePrepare) {
        prepare(layer, l, qkv);
        sync();
      }
      if (phases & kPhaseAttend) {
        attend(layer, l, qkv);
        sync();
      }
      if (phases & kPhaseMerge) merge(layer, ops[1]);
      if (phases & kPhaseOut) multiply(ops[1], job.branch);
      if (phases & (kPhaseAddOut | kPhaseNormFfn)) {
        // Alone, the two leave and find the residual where every stage does.
        rows_stage(&ops[2], job.residual, job.whole ? job.between : job.residual,
                   phases & kPhaseAddOut ? &attended : nullptr, layer.post_attention_norm, 1.0f,
                   phases & kPhaseNormFfn ? layer.ffn_norm : nullptr, layer.ffn_up);
      }
      if (phases & kPhaseGateUp) multiply(ops[2], job.both);
      if (phases & kPhaseActivate) activate(ops[3], both);
      if (phases & kPhaseDown) multiply(ops[3], job.branch);
      if ((phases & kPhaseAddDown) && !job.whole)
        rows_stage(nullptr, job.residual, job.residual, &fed, layer.post_ffw_norm, layer.scale, nullptr, 1);
    }
  }

  // The rows after the final norm; a whole round still has the last layer's branch to add.
  __device__ void run_final() {
    RowStep step;
    Parts fed = {};
    const bool pending = job.whole && job.last_layer > job.first_layer;
    if (pending) {
      const DecodeLayer& layer = s.layers[(job.last_layer - 1) % 2];
      fed = {job.branch, s.ops[(job.last_layer - 1) % 2][3].parts, job.row_count, job.hidden};
      step.weight = layer.post_ffw_norm;
      step.scale = layer.scale;
    }
    step.next = job.output_norm;
    for (std::uint32_t i = blockIdx.x; i < job.final_count; i += gridDim.x) {
      const std::uint32_t row = job.finals[i];
      // Rows of a prompt have gone through their layers before.
      const bool mine = pending && row < job.row_count;
      step.branch = mine ? &fed : nullptr;
      step.branch_row = row;
      step.in = (mine ? job.between : job.residual) + std::size_t{row} * job.hidden;
      step.plain = job.final_rows + std::size_t{i} * job.hidden;
      row_step<Pieces>(s, flip, job.hidden, job.epsilon, step);
    }
    sync();
  }

  // Pass after pass, so that partial sums are kept for one pass only.
  __device__ void run_head() {
    const DecodeOp& op = job.ops[job.layer_count * kOpsOfLayer];
    const MyPart part = my_part<Pieces>(op);
    for (std::uint32_t pass = 0; pass * kRows < job.logit_count; ++pass) {
      const std::uint32_t rows = rows_of(job.logit_count, pass);
      const Operand x = shared_operand<Pieces>(region, part, rows);
      fill_scales(x, kSlices / Pieces, job.output_up);
      operand_from_rows(job.final_rows, job.logit_rows, pass * kRows, job.hidden, x, job.output_up);
      __syncthreads();
      product<Pieces>(cursor, reader, op, part, x, reduce, job.head, rows, 0);
      sync();
      const Parts parts = {job.head, op.parts, rows, job.vocab};
      float* logits = job.logits + std::size_t{pass} * kRows * job.vocab;
      const std::uint32_t vectors = job.vocab / 4;
      for (std::uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < rows * vectors; i += gridDim.x * kThreads) {
        const std::uint32_t row = i / vectors;
        const std::uint32_t col = i % vectors * 4;
        float4 v = load_sum4<Pieces>(parts, row, col);
        if (job.softcap > 0) {
          v.x = job.softcap * tanhf(v.x / job.softcap);
          v.y = job.softcap * tanhf(v.y / job.softcap);
          v.z = job.softcap * tanhf(v.z / job.softcap);
          v.w = job.softcap * tanhf(v.w / job.softcap);
        }
        *reinterpret_cast<float4*>(logits + std::size_t{row} * job.vocab + col) = v;
      }
      if ((pass + 1) * kRows < job.logit_count) sync();
    }
  }
};

template <int Pieces>
__global__ void __launch_bounds__(kThreads, 1) decode_kernel(const __grid_constant__ DecodeJob job) {
  extern __shared__ __align__(128) std::uint8_t dynamic[];
  __shared__ DecodeShared shared;
  __shared__ float largest[kTeams][kTeamWarps];
  const std::uint32_t warp = threadIdx.x / 32;
  constexpr std::uint32_t kRows = 8 * Pieces;

  Round<Pieces> round = {job, shared, dynamic + std::size_t{kWarps} * job.slots * job.slot_bytes, nullptr, {}, {}, 0, 0, largest};
  round.reduce = reinterpret_cast<float*>(round.region + job.region_bytes);
  Cursor<Pieces>& cursor = round.cursor;
  const bool products = (job.phases & (kPhaseQkv | kPhaseOut | kPhaseGateUp | kPhaseDown)) != 0 && job.row_count > 0;
  const bool head = (job.phases & kPhaseHead) != 0 && job.logit_count > 0;
  cursor.ops = job.ops;
  cursor.layer_ops = job.layer_count * kOpsOfLayer;
  if (job.whole) {
    cursor.op = products ? job.first_layer * kOpsOfLayer : cursor.layer_ops;
    cursor.end = head ? cursor.layer_ops + 1 : job.last_layer * kOpsOfLayer;
  } else {
    // One stage, so at most one product.
    const std::uint32_t which = job.phases & kPhaseQkv ? 0 : job.phases & kPhaseOut ? 1 : job.phases & kPhaseGateUp ? 2 : 3;
    cursor.op = products ? job.first_layer * kOpsOfLayer + which : cursor.layer_ops;
    cursor.end = products ? cursor.op + 1 : cursor.layer_ops + (head ? 1 : 0);
  }
  cursor.row_passes = (job.row_count + kRows - 1) / kRows;
  cursor.head_passes = (job.logit_count + kRows - 1) / kRows;
  cursor.pass = 0;
  cursor.slot = 0;
  cursor.slots = job.slots;
  cursor.slot_bytes = job.slot_bytes;
  cursor.ring = dynamic + std::size_t{warp} * job.slots * job.slot_bytes;
  cursor.barriers = shared.barriers[warp];
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x % 32 == 0) {
    for (std::uint32_t i = 0; i < job.slots; ++i) slot_init(cursor.barriers + i);
    slots_ready();
  }
  __syncwarp();
#endif
  cursor.open();
  for (std::uint32_t i = 0; i < job.slots; ++i) cursor.request();

  if (job.phases & 4095) round.run_layers();
  if (job.phases & kPhaseFinal) round.run_final();
  if (job.phases & kPhaseHead) round.run_head();
}

template <int Pieces>
void launch(const DecodeJob& job, std::size_t shared, const DecodeLimits& limits, cudaStream_t stream) {
  static thread_local std::size_t allowed = 0;
  if (shared > allowed) {
    check(cudaFuncSetAttribute(decode_kernel<Pieces>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          "shared memory of the decode kernel");
    allowed = shared;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(limits.processors);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, decode_kernel<Pieces>, job), "the decode kernel");
}

// Shared memory that a block may have beside what the kernel declares.
constexpr std::size_t kDeclared = sizeof(DecodeShared) + sizeof(float) * kTeams * kTeamWarps + 256;
constexpr std::uint32_t kSlotBytes = 4 * chunk_bytes(Format::kQ4);

// Bytes that attention needs for one layer.
std::size_t attention_bytes(const HeadShape& s) {
  const std::uint32_t group = s.heads / s.kv_heads;
  switch ((s.head_dim + 31) / 32) {
    case 1:
      return std::size_t{Unit<32>::bytes(group)} * Unit<32>::kAtOnce;
    case 2:
      return std::size_t{Unit<64>::bytes(group)} * Unit<64>::kAtOnce;
    case 4:
      return std::size_t{Unit<128>::bytes(group)} * Unit<128>::kAtOnce;
    case 8:
      return std::size_t{Unit<256>::bytes(group)} * Unit<256>::kAtOnce;
    case 16:
      return std::size_t{Unit<512>::bytes(group)} * Unit<512>::kAtOnce;
    default:
      raise(cudaErrorInvalidValue, "this head width has no attention kernel");
  }
}

}  // namespace

DecodeLimits DecodeLimits::of(int device) {
  DecodeLimits limits;
  int value = 0;
  check(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device), "asking for the device");
  limits.processors = static_cast<std::uint32_t>(value);
  check(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "asking for the device");
  limits.shared_bytes = static_cast<std::uint32_t>(value - static_cast<int>(kDeclared));
  return limits;
}

// Eight rows of a part, at four bytes a value, take about two fifths of the memory.
std::uint32_t DecodeLimits::longest_part() const {
  return std::max(256u, shared_bytes * 2 / 5 / 32 / kChunkCols * kChunkCols);
}

std::uint32_t DecodeLimits::parts_of(std::uint32_t cols) const {
  return (cols + longest_part() - 1) / longest_part();
}

std::uint32_t decode_pass_rows(const DecodeLimits& limits, std::uint32_t rows, std::uint32_t most_parts) {
  if (rows <= 8 || most_parts * 2 > limits.processors) return 8;
  if (rows <= 16 || most_parts * 4 > limits.processors) return 16;
  return 32;
}

std::size_t decode_attention_bytes(const HeadShape& shape) {
  return attention_bytes(shape);
}

void decode(DecodeJob job, const DecodeLimits& limits, const DecodeSizes& sizes, cudaStream_t stream) {
  const std::uint32_t rows = std::max(job.row_count, job.logit_count);
  const std::uint32_t pass_rows = decode_pass_rows(limits, rows, sizes.most_parts);
  const std::uint32_t pieces = decode_pieces(pass_rows);
  const std::size_t in_pass = std::min(rows, pass_rows);
  // The operand: steps, sums, scales. A piece is at most a chunk a slice longer than its share.
  const std::size_t chunks = (sizes.most_part_chunks + pieces - 1) / pieces + kSlices;
  const std::size_t operand = chunks * 4 * in_pass * 64 + chunks * 2 * pass_rows * 4 + kSlices * pass_rows * 4;
  const std::size_t reduce = pieces < 4 ? std::size_t{2} * kWarps * 16 * in_pass * 4 : 0;
  job.region_bytes = static_cast<std::uint32_t>((std::max(operand, sizes.attention_bytes) + 127) / 128 * 128);
  const std::size_t fixed = job.region_bytes + reduce;
  job.slot_bytes = std::max(kSlotBytes, sizes.most_chunk_bytes);
  const std::size_t ring = std::size_t{kWarps} * job.slot_bytes;
  if (fixed + ring > limits.shared_bytes)
    raise(cudaErrorInvalidValue, "this model's rows do not fit the device's shared memory");
  job.slots = static_cast<std::uint32_t>(std::min<std::size_t>((limits.shared_bytes - fixed) / ring, kMostSlots));
  const std::size_t shared = fixed + job.slots * ring;
  switch (pieces) {
    case 1:
      return launch<1>(job, shared, limits, stream);
    case 2:
      return launch<2>(job, shared, limits, stream);
    default:
      return launch<4>(job, shared, limits, stream);
  }
}

}  // namespace gem::cuda
