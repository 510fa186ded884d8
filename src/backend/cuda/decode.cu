#include "backend/cuda/decode.h"

#include <algorithm>

#include "backend/cuda/decode_attention.cuh"
#include "backend/cuda/decode_product.cuh"
#include "backend/cuda/decode_rows.cuh"
#include "backend/cuda/launch.cuh"

namespace gem::cuda {
namespace {

// The residual rows before product `o`: a branch added, the next norm taken, as far as the phases ask for it.
enum class Made { kNothing, kHere, kGlobally };
template <int Pieces>
__device__ __noinline__ Made make_rows(std::uint32_t o) {
  constexpr std::uint32_t kRows = 8 * Pieces;
  const DecodeShared& s = block_state();
  const DecodeJob& job = s.job;
  const DecodeOp& op = product_of(o);
  const bool final = o == job.layer_count * kOpsOfLayer;
  const bool closes = final || o % kOpsOfLayer == 0;  // the layer before
  const DecodeLayer& layer = s.layers[o / kOpsOfLayer % 2];
  const DecodeLayer& before = s.layers[(o / kOpsOfLayer + 1) % 2];
  const bool adds = o > job.first_op && (job.phases & (closes ? kPhaseAddDown : kPhaseAddOut));
  const bool norms = job.phases & (final ? kPhaseFinal : closes ? kPhaseNormIn : kPhaseNormFfn);
  const bool named = final && norms;  // rows are those of `finals`
  const bool here = job.fused && norms && !final;
  RowStep step;
  step.waits = here;
  if (!here) grid_wait();  // others may still read the operand that is made here
  if (!adds && !norms) return Made::kNothing;
  step.branch = {job.branch, adds ? product_of(o - 1).parts : 0u, job.row_count, job.hidden};
  step.weight = closes ? before.post_ffw_norm : layer.post_attention_norm;
  step.scale = closes ? before.scale : 1.0f;
  step.next = !norms ? nullptr : final ? job.output_norm : closes ? layer.attn_norm : layer.ffn_norm;
  step.makes_operand = norms && !final;
  // A whole round has the residual between the two halves of a layer in a place of its own: while some blocks
  // still read the one before, others write it.
  const float* in = closes && adds && job.whole ? job.between : job.residual;
  float* out = closes || !job.whole ? job.residual : job.between;
  const std::uint32_t count = named ? job.final_count : job.row_count;
  const std::uint32_t block = block_index();
#pragma unroll 1
  for (std::uint32_t i = here ? 0 : block; i < count; i += here ? 1 : gridDim.x) {
    const std::uint32_t row = named ? job.finals[i] : i;
    // Rows of a prompt have gone through their layers before.
    step.adds = adds && row < job.row_count;
    step.branch_row = row;
    step.in = (named && !step.adds ? job.residual : in) + std::size_t{row} * job.hidden;
    step.out = adds && !named && (!here || block == 0) ? out + std::size_t{row} * job.hidden : nullptr;
    step.plain = named ? job.final_rows + std::size_t{i} * job.hidden : nullptr;
    if (step.makes_operand) {
      const std::uint32_t rows = min(kRows, job.row_count - row / kRows * kRows);
      step.operand = here ? shared_operand<Pieces>(my_part<Pieces>(op), rows)
                          : global_operand<Pieces>(job, op, row / kRows, rows);
      step.operand_row = row % kRows;
    }
    row_step<Pieces>(job.hidden, job.epsilon, step);
    step.place ^= 2;
    step.waits = false;
  }
  return here ? Made::kHere : Made::kGlobally;
}

// A block's way through a round. What needs many registers is a function of its own (rows, heads, products);
// between them nothing is kept but what lies in shared memory.
template <int Pieces>
struct Round {
  static constexpr std::uint32_t kRows = 8 * Pieces;  // of a pass

  // After rows were made: in shared memory for this block, where product() waits for its threads, or in
  // global memory for all.
  static __device__ __forceinline__ void made(bool here) {
    if (!here) grid_sync();
  }

  static __device__ __forceinline__ std::uint32_t rows_of(std::uint32_t total, std::uint32_t pass) {
    return min(kRows, total - pass * kRows);
  }
  static __device__ __forceinline__ Operand operand(const DecodeJob& job, const DecodeOp& op,
                                                    std::uint32_t pass, std::uint32_t rows, bool here) {
    return here ? shared_operand<Pieces>(my_part<Pieces>(op), rows)
                : global_operand<Pieces>(job, op, pass, rows);
  }

  // Whether the merged rows are here, in this block's shared memory.
  static __device__ __forceinline__ bool heads(const DecodeJob& job, std::uint32_t o, std::uint32_t l,
                                               const DecodeLayer& layer) {
    const DecodeOp& op = product_of(o);
    const std::uint32_t width = (layer.shape.head_dim + 31) / 32;
    if (job.phases & kPhasePrepare) {
      grid_wait();
      switch (width) {
        case 1:
          prepare_all<32, Pieces>(l);
          break;
        case 2:
          prepare_all<64, Pieces>(l);
          break;
        case 4:
          prepare_all<128, Pieces>(l);
          break;
        case 8:
          prepare_all<256, Pieces>(l);
          break;
        default:
          prepare_all<512, Pieces>(l);
          break;
      }
      grid_sync();
    }
    if (!(job.phases & kPhaseAttend)) {
      grid_wait();
    } else {
      const std::uint32_t of_kv_head = layer.shape.heads / layer.shape.kv_heads;
      const bool few = min(of_kv_head, job.most_queries) *
                           rows_together(job.longest[layer.kind], of_kv_head, job.most_queries) <=
                       8;
      const auto attend = [&](auto octets, auto halves) {
        constexpr int kOctets = octets();
        constexpr bool kHalves = halves();
        switch (width) {
          case 1:
            return attend_all<32, Pieces, kOctets, kHalves>(l);
          case 2:
            return attend_all<64, Pieces, kOctets, kHalves>(l);
          case 4:
            return attend_all<128, Pieces, kOctets, kHalves>(l);
          case 8:
            return attend_all<256, Pieces, kOctets, kHalves>(l);
          default:
            return attend_all<512, Pieces, kOctets, kHalves>(l);
        }
      };
      constexpr std::integral_constant<int, 1> kOne;
      constexpr std::integral_constant<int, 2> kTwo;
      if (job.halves[layer.kind]) {
        few ? attend(kOne, std::true_type()) : attend(kTwo, std::true_type());
      } else {
        few ? attend(kOne, std::false_type()) : attend(kTwo, std::false_type());
      }
      // Most blocks have nothing to attend to, and time to plan a layer's pieces.
      grid_arrive();
      if (job.whole) plan_pieces<Pieces>();
      grid_wait();
    }
    // Few chunks are merged by every block that needs them, many are shared out: a thread has all chunks of
    // its columns, or a warp a group of them.
    const bool many = job.units[layer.kind] > 24 * job.row_count;
    const bool here = job.fused && !many;
    if (!(job.phases & kPhaseMerge)) return here;
#pragma unroll 1
    for (std::uint32_t pass = 0; pass * kRows < job.row_count; ++pass) {
      const std::uint32_t count = rows_of(job.row_count, pass);
      const Operand x = operand(job, op, pass, count, here);
      const std::uint32_t vectors = (x.chunk1 - x.chunk0) * 16;
      if (many) {
        const std::uint32_t columns = (vectors * 4 + kMergeColumns - 1) / kMergeColumns;
#pragma unroll 1
        for (std::uint32_t i = block_index(); i < count * columns; i += gridDim.x) {
          const std::uint32_t row = i / columns;
          const std::uint32_t col = i % columns * kMergeColumns;
          const float4 y =
              merged_by_block(job, layer, pass * kRows + row, col, reinterpret_cast<Merged*>(region()));
          const std::uint32_t mine = col + thread_index() * 4;
          if (thread_index() < 32 && mine < vectors * 4) store_operand(x, row, mine, y);
        }
        continue;
      }
      const std::uint32_t first = here ? thread_index() : block_index() * kThreads + thread_index();
#pragma unroll 1
      for (std::uint32_t i = first; i < count * vectors; i += here ? kThreads : gridDim.x * kThreads) {
        const std::uint32_t row = i / vectors;
        const std::uint32_t col = x.chunk0 * 64 + i % vectors * 4;
        store_operand(x, row, col, merged(job, layer, pass * kRows + row, col));
      }
    }
    made(here);
    return here;
  }

  static __device__ __forceinline__ void activate(const DecodeJob& job, std::uint32_t o) {
    grid_wait();
    if (!(job.phases & kPhaseActivate)) return;
    const DecodeOp& op = product_of(o);
    const DecodeOp& before = product_of(o - 1);
    const Parts both = {job.both, before.parts, job.row_count, before.width};
    // Those of this block's columns, or all, shared out.
#pragma unroll 1
    for (std::uint32_t pass = 0; pass * kRows < job.row_count; ++pass) {
      const std::uint32_t count = rows_of(job.row_count, pass);
      const Operand x = operand(job, op, pass, count, job.fused);
      const std::uint32_t vectors = (x.chunk1 - x.chunk0) * 16;
      const std::uint32_t first = job.fused ? thread_index() : block_index() * kThreads + thread_index();
#pragma unroll 1
      for (std::uint32_t i = first; i < count * vectors; i += job.fused ? kThreads : gridDim.x * kThreads) {
        const std::uint32_t row = i / vectors;
        const std::uint32_t col = x.chunk0 * 64 + i % vectors * 4;
        store_operand(x, row, col, activated<Pieces>(job.ffn, both, pass * kRows + row, col));
      }
    }
    made(job.fused);
  }

  static __device__ __forceinline__ void finish_logits(const DecodeJob& job, const DecodeOp& op,
                                                       std::uint32_t count, std::uint32_t pass) {
    const Parts parts = {job.head, op.parts, count, job.vocab};
    float* logits = job.logits + std::size_t{pass} * kRows * job.vocab;
    const std::uint32_t vectors = job.vocab / 4;
#pragma unroll 1
    for (std::uint32_t i = block_index() * kThreads + thread_index(); i < count * vectors;
         i += gridDim.x * kThreads) {
      const std::uint32_t row = i / vectors;
      const std::uint32_t col = i % vectors * 4;
      const float* at[1] = {parts.row(row) + col};
      float4 sums[1];
      sum_parts<Pieces>(parts, at, sums);
      float4 v = sums[0];
      if (job.softcap > 0) {
        v.x = job.softcap * tanhf(v.x / job.softcap);
        v.y = job.softcap * tanhf(v.y / job.softcap);
        v.z = job.softcap * tanhf(v.z / job.softcap);
        v.w = job.softcap * tanhf(v.w / job.softcap);
      }
      *reinterpret_cast<float4*>(logits + std::size_t{row} * job.vocab + col) = v;
    }
  }

  // What a layer is and where the rows' caches of it lie, into shared memory: asked for a layer ahead.
  static __device__ __forceinline__ void fetch(std::uint32_t layer) {
    DecodeShared& s = block_state();
    const DecodeJob& job = s.job;
    if (layer >= job.layer_count) return;
    static_assert(sizeof(DecodeLayer) % 8 == 0 && sizeof(CacheLayer) == 24);
    const std::uint32_t thread = thread_index();
    if (thread < sizeof(DecodeLayer) / 8)
      copy8(reinterpret_cast<std::uint64_t*>(&s.layers[layer % 2]) + thread,
            reinterpret_cast<const std::uint64_t*>(job.layers + layer) + thread);
    if (thread < min(job.row_count, kCachedRows) * 3)
      copy8(reinterpret_cast<std::uint64_t*>(s.caches[layer % 2]) + thread,
            reinterpret_cast<const std::uint64_t*>(s.rows[thread / 3].layers + layer) + thread % 3);
  }
  static __device__ __forceinline__ void fetched() {
    copies_wait_all();
  }

  // One product and what comes before it, which begins by waiting for the blocks to end the step before.
  static __device__ __forceinline__ void step(std::uint32_t o) {
    const DecodeShared& s = block_state();
    const DecodeJob& job = s.job;
    const std::uint32_t l = o / kOpsOfLayer;
    const bool is_head = o == job.layer_count * kOpsOfLayer;
    const std::uint32_t which = is_head ? 4 : o % kOpsOfLayer;
    const DecodeLayer& layer = s.layers[l % 2];
    bool here = job.fused;  // the operand
    // While the others end the step before.
    if (job.whole) plan_for<Pieces>(o);
    if (which == 1) {
      here = heads(job, o, l, layer);
    } else if (which == 3) {
      activate(job, o);
    } else {
      const Made made_rows = make_rows<Pieces>(o);
      if (made_rows != Made::kNothing) made(made_rows == Made::kHere);
    }
    const std::uint32_t wanted = which == 0   ? kPhaseQkv
                                 : which == 1 ? kPhaseOut
                                 : which == 2 ? kPhaseGateUp
                                 : which == 3 ? kPhaseDown
                                              : kPhaseHead;
    if (!(job.phases & wanted)) return;
    if (which == 0) fetch(l + 1);
    const DecodeOp& op = product_of(o);
    const MyPart part = my_part<Pieces>(op);
    const std::uint32_t total = is_head ? job.logit_count : job.row_count;
    float* out = which == 0 ? job.qkv : which == 2 ? job.both : is_head ? job.head : job.branch;
#pragma unroll 1
    for (std::uint32_t pass = 0; pass * kRows < total; ++pass) {
      const std::uint32_t count = rows_of(total, pass);
      const Operand x = shared_operand<Pieces>(part, count);
      if (is_head) {
        operand_from_rows(job.final_rows, job.logit_rows, pass * kRows, job.hidden, x);
      } else if (!here) {
        load_operand(global_operand<Pieces>(job, op, pass, count), x);
      }
      const std::uint32_t out_rows = is_head ? count : total;
      const std::uint32_t first_row = is_head ? 0 : pass * kRows;
      if constexpr (Pieces == 1) {
        if (count <= kFewRows) {
          product<1, true>(o, count, out, out_rows, first_row);
        } else {
          product<1, false>(o, count, out, out_rows, first_row);
        }
      } else {
        product<Pieces, false>(o, count, out, out_rows, first_row);
      }
      if (!is_head && !here && thread_index() == 0) ++block_state().operands;
      if (is_head) {
        // Pass after pass, so that partial sums are kept for one pass only.
        grid_sync();
        finish_logits(job, op, count, pass);
        if ((pass + 1) * kRows < total) grid_sync();
      } else if ((pass + 1) * kRows < total) {
        __syncthreads();  // before the next operand
      }
    }
    if (which == 0) fetched();    // read after the barrier
    if (!is_head) grid_arrive();  // the next step waits
  }

  static __device__ __forceinline__ void run() {
    const DecodeJob& job = block_state().job;
    fetch(job.first_op / kOpsOfLayer);
    make_turns(job);
    fetched();
    __syncthreads();
    // The turns are read by other blocks after a barrier; a lone stage may have none before its heads.
    if (!job.whole) grid_sync();
#pragma unroll 1
    for (std::uint32_t o = job.first_op; o < job.end_op; ++o) step(o);
  }
};

template <int Pieces>
__global__ void __launch_bounds__(kThreads, 1) decode_kernel(const __grid_constant__ DecodeJob given) {
  std::uint8_t* dynamic = dynamic_shared();
  DecodeShared& shared = block_state();
  static_assert(sizeof(DecodeJob) % 8 == 0 && sizeof(DecodeJob) / 8 <= kThreads);
  if (threadIdx.x < sizeof(DecodeJob) / 8)
    reinterpret_cast<std::uint64_t*>(&shared.job)[threadIdx.x] =
        reinterpret_cast<const std::uint64_t*>(&given)[threadIdx.x];
  __syncthreads();
  const DecodeJob& job = shared.job;
  const std::uint32_t warp = thread_index() / 32;

  DecodeOp* ops = reinterpret_cast<DecodeOp*>(dynamic);
  const std::uint32_t op_words = (job.layer_count * kOpsOfLayer + 1) * (sizeof(DecodeOp) / 16);
#pragma unroll 1
  for (std::uint32_t i = thread_index(); i < op_words; i += kThreads)
    reinterpret_cast<uint4*>(ops)[i] = __ldg(reinterpret_cast<const uint4*>(job.ops) + i);
#pragma unroll 1
  for (std::uint32_t i = thread_index(); i < min(job.row_count, kCachedRows); i += kThreads)
    shared.rows[i] = job.rows[i];
  if (threadIdx.x == 0) {
    shared.rings = (op_words * 16 + 127) / 128 * 128;
    shared.region = shared.rings + kWarps * job.slots * job.slot_bytes;
    shared.reduce = shared.region + job.reduce_at;
    shared.target = 0;
    shared.operands = 0;
  }
  if (threadIdx.x % 32 == 0) {
#if __CUDA_ARCH__ >= 900
#pragma unroll 1
    for (std::uint32_t i = 0; i < job.slots; ++i) slot_init(shared.barriers[warp] + i);
    if (warp == 0) slot_init(&shared.operand_barrier);
    slots_ready();
#endif
  }
  if (threadIdx.x < 2 * kWarps) shared.plans[threadIdx.x / kWarps][threadIdx.x % kWarps].item = ~0u;
  if (threadIdx.x < kMostCuts) shared.cuts[threadIdx.x] = cut_here<Pieces>(job.cuts[threadIdx.x]);
  __syncthreads();  // the products and rows are there
  request_first<Pieces>();
  Round<Pieces>::run();
}

template <int Pieces>
void start(const DecodeJob& job, std::size_t shared, const DecodeLimits& limits, cudaStream_t stream) {
  static thread_local std::size_t allowed = 0;
  if (shared > allowed) {
    check(cudaFuncSetAttribute(decode_kernel<Pieces>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          "shared memory of the decode kernel");
    allowed = shared;
  }
  check(launch_resident(decode_kernel<Pieces>, {limits.processors, kThreads, shared, stream}, job),
        "the decode kernel");
}

// Shared memory that a block may have beside what the kernel declares.
constexpr std::size_t kDeclared = sizeof(DecodeShared) + 256;
// What a launch takes if it can: the rest of the memory is the first-level cache, which has to hold what does
// not fit the registers. (docs/performance.md has what more and less did.)
constexpr std::uint32_t preferred_bytes(std::uint32_t rows) {
  return (rows <= 4 ? 164 : 196) * 1024 - static_cast<std::uint32_t>(kDeclared);
}
constexpr std::uint32_t kAmple = 128 * 1024;  // less is short of memory

// Bytes that attention needs for layers of that shape, when a unit takes up to so many queries.
std::size_t attention_bytes(const HeadShape& s, std::uint32_t run, std::uint32_t most_queries) {
  const std::uint32_t heads = s.heads / s.kv_heads;
  const std::uint32_t group = std::min(heads, most_queries) * rows_together(run, heads, most_queries);
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

constexpr std::size_t align(std::size_t bytes) {
  return (bytes + 127) / 128 * 128;
}

}  // namespace

DecodeLimits DecodeLimits::of(int device) {
  DecodeLimits limits;
  int value = 0;
  check(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device), "asking for the device");
  limits.processors = static_cast<std::uint32_t>(value);
  check(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "asking for the device");
  limits.block_bytes = static_cast<std::uint32_t>(value);
  limits.shared_bytes = limits.block_bytes - static_cast<std::uint32_t>(kDeclared);
  return limits;
}

// Eight rows of a part, at four bytes a value, take 64 KB, or two ninths of the memory where the rest would
// not hold the weights under way.
std::uint32_t DecodeLimits::longest_part() const {
  if (shared_bytes >= kAmple) return kLongestPart;
  return std::max(256u, shared_bytes * 2 / 9 / 32 / kChunkCols * kChunkCols);
}

std::uint32_t DecodeLimits::parts_of(std::uint32_t cols) const {
  return (cols + longest_part() - 1) / longest_part();
}

// Of 16 rows, slices meet in 32 KB: too much beside the weights under way where memory is short. Of 32 they
// do not meet at all.
std::uint32_t decode_pass_rows(const DecodeLimits& limits, std::uint32_t rows, std::uint32_t most_parts) {
  const bool ample = limits.shared_bytes >= kAmple;
  if (rows <= 8 || most_parts * 2 > limits.processors) return 8;
  if ((rows > 16 || !ample) && most_parts * 4 <= limits.processors) return 32;
  return ample ? 16 : 8;
}

std::optional<DecodeLayout> decode_layout(const DecodeLimits& limits, const DecodeSizes& sizes,
                                          std::uint32_t layers, std::uint32_t rows, std::uint32_t run) {
  const std::uint32_t pass_rows = decode_pass_rows(limits, rows, sizes.most_parts);
  DecodeLayout layout;
  layout.pieces = decode_pieces(pass_rows);
  const std::size_t in_pass = std::min(rows, pass_rows);
  const std::size_t chunks = (sizes.most_part_chunks + layout.pieces - 1) / layout.pieces;
  const std::size_t operand = align(chunks * 2 * block_rows(pass_rows, static_cast<std::uint32_t>(in_pass)) *
                                    (kRowWords * 4 + sizeof(Origin)));
  const std::size_t reduce = layout.pieces < 4 ? std::size_t{2} * kWarps * 16 * in_pass * 4 : 0;
  const std::size_t ops = align((std::size_t{layers} * kOpsOfLayer + 1) * sizeof(DecodeOp));
  const std::size_t shared = limits.shared_bytes;
  // As many chunks of weights a copy, as many queries at once, and as much of the first-level cache as leave
  // every warp two copies under way; where nothing does, one copy.
  constexpr std::uint32_t kMostSlotBytes = 4 * chunk_bytes(Format::kA4);
  for (const std::size_t least_slots : {2, 1}) {
    for (const std::uint32_t at_once : {4u, 2u, 1u}) {
      const std::uint32_t least = sizes.least_chunk_bytes;
      if (at_once > 1 && at_once * least > kMostSlotBytes) continue;
      layout.slot_bytes = std::max(at_once * least, sizes.most_chunk_bytes);
      const std::size_t ring = std::size_t{kWarps} * layout.slot_bytes;
      for (layout.most_queries = kMaxGroup; layout.most_queries > 0; layout.most_queries /= 2) {
        std::size_t region = std::max<std::size_t>(operand + reduce, kMergeBytes);
        for (const HeadShape& s : sizes.shapes)
          region = std::max(region, attention_bytes(s, run, layout.most_queries));
        region = align(region);
        for (const std::size_t room : {std::min<std::size_t>(shared, preferred_bytes(rows)), shared}) {
          if (region + ops + least_slots * ring > room) continue;
          layout.region_bytes = static_cast<std::uint32_t>(region);
          layout.reduce_at = static_cast<std::uint32_t>(region - reduce);
          layout.slots =
              static_cast<std::uint32_t>(std::min<std::size_t>((room - region - ops) / ring, kMostSlots));
          layout.total = static_cast<std::uint32_t>(region + ops + layout.slots * ring);
          return layout;
        }
      }
    }
  }
  return std::nullopt;
}

void decode(DecodeJob job, const DecodeLimits& limits, const DecodeSizes& sizes, cudaStream_t stream) {
  const std::uint32_t rows = std::max(job.row_count, job.logit_count);
  const std::uint32_t run = std::max({job.longest[0], job.longest[1], 1u});
  const std::optional<DecodeLayout> layout = decode_layout(limits, sizes, job.layer_count, rows, run);
  if (!layout) raise(cudaErrorInvalidValue, "this model's rows do not fit the device's shared memory");
  job.most_queries = layout->most_queries;
  job.region_bytes = layout->region_bytes;
  job.reduce_at = layout->reduce_at;
  job.slots = layout->slots;
  job.slot_bytes = layout->slot_bytes;
  job.end_products = job.end_op;
  if (!job.whole) {
    // A lone stage has one product at most.
    const std::uint32_t products =
        job.phases & (kPhaseQkv | kPhaseOut | kPhaseGateUp | kPhaseDown | kPhaseHead);
    job.end_products = job.first_op + (products != 0 ? 1 : 0);
  } else if (!(job.phases & kPhaseHead)) {
    job.end_products = std::min(job.end_op, job.layer_count * kOpsOfLayer);
  }
  switch (layout->pieces) {
    case 1:
      return start<1>(job, layout->total, limits, stream);
    case 2:
      return start<2>(job, layout->total, limits, stream);
    default:
      return start<4>(job, layout->total, limits, stream);
  }
}

}  // namespace gem::cuda
