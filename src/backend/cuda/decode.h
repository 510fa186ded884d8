// The decode path: one persistent kernel that runs whole rounds of a few rows.
//
// One block on every multiprocessor, all of them resident, goes through the stages of all layers with
// barriers of the whole grid between them. What makes it fast is that the weights do not wait for the
// barriers: every warp knows which pieces of which matrices it will multiply in the whole round and keeps a
// ring of copies of them in flight, so that the memory works on while activations are exchanged.
//
// How sums are cut (law 1). The columns of a matrix are cut into `parts`, a part into kSlices slices, both
// from the matrix alone. A slice is summed by one warp, column after column; a part is (s0 + s1) + (s2 + s3);
// a row of the result is the sum of the parts in order. Rounds of more rows keep less of the columns in a
// block (a half or a quarter of a part) and leave the last additions to whoever reads the result: the same
// sums in the same order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/cuda/packed.h"
#include "backend/cuda/rows.h"

namespace gem::cuda {

constexpr std::uint32_t kSlices = 4;          // of a part
constexpr std::uint32_t kLongestPart = 2048;  // columns
constexpr std::uint32_t kMostPassRows = 32;   // rows that share a reading of the weights
constexpr std::uint32_t kOpsOfLayer = 4;
constexpr std::uint32_t kWidestRow = 6144;  // of the residual stream

// How the columns of a matrix are cut: chunks of 64 columns into parts.
struct DecodeCut {
  std::uint16_t chunks = 0, parts = 0;
  bool operator==(const DecodeCut&) const = default;
};
constexpr std::uint32_t kMostCuts = 8;  // that differ, of a model

// Matrices of one column count side by side: y = W x, matrix i's rows after those of the matrices before it.
// All products of a round lie in every block's shared memory.
struct DecodeOp {
  const std::uint8_t* data[3] = {};
  std::uint32_t rows[3] = {};
  std::uint32_t tiles_end[3] = {};  // tiles of the matrices up to this one
  std::uint16_t chunks = 0;         // of 64 columns
  std::uint16_t parts = 0;
  std::uint32_t width = 0;  // rows of all matrices
  std::uint8_t format[3] = {};
  std::uint8_t cut = 0;       // index of DecodeJob::cuts
  std::uint8_t unit[3] = {};  // a chunk of each matrix, in 16 bytes
  bool near = true;  // the matrices lie within 2^31 times 16 bytes: two tiles can be asked for as one piece
};
static_assert(sizeof(DecodeOp) == 64);

struct DecodeLayer {
  const float* attn_norm = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* post_attention_norm = nullptr;
  const float* ffn_norm = nullptr;
  const float* post_ffw_norm = nullptr;
  HeadShape shape;
  std::uint32_t window = 0;  // 0: all keys
  std::uint32_t kind = 0;    // index of RowInfo::first_unit
  float scale = 1;           // of the residual at the layer's end
};

// Stages of a round, as bits. A whole round asks for all that have to run.
enum DecodePhase : std::uint32_t {
  kPhaseNormIn = 1,
  kPhaseQkv = 2,
  kPhasePrepare = 4,  // alone, or where spans have several rows: else a whole round prepares heads where
                      // attention reads them
  kPhaseAttend = 8,
  kPhaseMerge = 16,
  kPhaseOut = 32,
  kPhaseAddOut = 64,
  kPhaseNormFfn = 128,
  kPhaseGateUp = 256,
  kPhaseActivate = 512,
  kPhaseDown = 1024,
  kPhaseAddDown = 2048,
  kPhaseFinal = 4096,
  kPhaseHead = 8192,
};
constexpr std::uint32_t kPhasesOfLayer = 4095 & ~kPhasePrepare;

// A round, as the kernel gets it. Rows of buffers are the round's decode rows; `finals` may name any row of
// `residual`.
struct DecodeJob {
  const DecodeLayer* layers = nullptr;
  const DecodeOp* ops = nullptr;  // [layers * 4 + 1]: QKV, O, gate and up, down of each; the head
  std::uint32_t layer_count = 0, hidden = 0, ffn = 0, vocab = 0;
  float epsilon = 0, softcap = 0;
  const float* output_norm = nullptr;
  DecodeCut cuts[kMostCuts] = {};

  const RowInfo* rows = nullptr;
  std::uint32_t row_count = 0;
  std::uint32_t units[2] = {};  // chunks of keys of all rows, in sliding and full layers
  std::uint32_t tasks[2] = {};  // as plan_attention() gives them, like the next two
  std::uint32_t chunks_of_task[2] = {};
  std::uint32_t longest[2] = {};
  bool halves[2] = {};  // all caches keep these layers' keys and values in f16
  const std::uint32_t* finals = nullptr;
  std::uint32_t final_count = 0;
  const std::uint32_t* logit_rows = nullptr;  // indices into finals
  std::uint32_t logit_count = 0;

  std::uint32_t phases = 0;
  bool whole =
      false;  // from one phase to the next without the caller; else each reads and writes global memory
  bool fused = false;  // whole: every block makes the rows that it multiplies, without a barrier in between
  // Products, and with each what comes before it: index of the first, one past the last. The head is the last
  // one.
  std::uint32_t first_op = 0, end_op = 0;
  std::uint32_t end_products = 0;  // one past the last that is multiplied

  float* residual = nullptr;  // [rows, hidden]
  float* between = nullptr;   // [rows, hidden]: the residual between attention and the feed-forward
  float* qkv = nullptr;       // [parts][rows][width], as all results of products
  float* branch = nullptr;
  float* both = nullptr;
  float* query = nullptr;             // [rows, heads * head_dim] (kPhasePrepare)
  const double* frequencies[2] = {};  // of sliding and full layers, [head_dim / 2]: radians a position
  std::uint32_t head_dims[2] = {};
  std::uint32_t kv_heads[2] = {};  // the most of any layer
  float2* turns = nullptr;  // [rows][256 + 256]: cosine and sine of every pair's angle, sliding then full
  float* sums = nullptr;    // [units][heads][head_dim]
  float2* stats = nullptr;  // [units][heads]: maximum and sum
  std::uint32_t* operand = nullptr;  // of the next product, see decode_operand.cuh
  uint2* origins = nullptr;
  float* final_rows = nullptr;  // [finals, hidden]
  float* head = nullptr;        // [parts][logits][vocab]
  float* logits = nullptr;      // [logits, vocab]
  unsigned* barrier = nullptr;  // zero at the start

  std::uint32_t slots = 0, slot_bytes = 0;  // of a warp's ring
  // Of the operand with the place where slices meet (the last part, from reduce_at on), or of attention.
  std::uint32_t region_bytes = 0, reduce_at = 0;
  std::uint32_t most_queries = 0;  // that a unit of attention takes at once
};

// Chunks of keys are the units of work of attention, one for each KV head. Their length depends on the row's
// own keys and the layer's heads: as short as makes no more units than a large device takes at once, since
// the others would wait for a second round of a few.
struct KeyChunks {
  std::uint32_t length = 0;  // keys
  std::uint32_t first = 0;   // index of the first chunk that the row sees
  std::uint32_t count = 0;
};
constexpr std::uint32_t kMostUnits = 256;  // of a row and all KV heads; a row has two chunks in any case
// The first key that a row sees.
__host__ __device__ inline std::uint32_t first_key(std::uint32_t position, std::uint32_t window) {
  return window != 0 && position + 1 > window ? position + 1 - window : 0;
}
// Of a row that sees keys first .. last; `block`: keys that a block takes at a time, 32 or a quarter of the
// head width.
__host__ __device__ inline KeyChunks key_chunks(std::uint32_t first, std::uint32_t last, std::uint32_t block,
                                                std::uint32_t kv_heads) {
  std::uint32_t length = block;
  while (length <= last - first && ((last - first) / length + 2) * kv_heads > kMostUnits) length *= 2;
  return {length, first / length, last / length - first / length + 1};
}
__host__ __device__ inline std::uint32_t key_block(std::uint32_t head_dim) {
  const std::uint32_t quarter = (head_dim + 31) / 32 * 8;
  return quarter < 32 ? 32 : quarter;
}

// What the device can hold: sizes that decide how matrices are cut.
struct DecodeLimits {
  std::uint32_t processors = 0;
  std::uint32_t shared_bytes = 0;  // a block may have, beside what the decode kernel declares
  std::uint32_t block_bytes = 0;   // a block may have in all
  static DecodeLimits of(int device);
  std::uint32_t longest_part() const;  // columns
  std::uint32_t parts_of(std::uint32_t cols) const;
};

// Rows of a pass for a round of that many: 8, 16 or 32.
std::uint32_t decode_pass_rows(const DecodeLimits& limits, std::uint32_t rows, std::uint32_t most_parts);
// Partial results that a product leaves for each part.
inline std::uint32_t decode_pieces(std::uint32_t pass_rows) {
  return pass_rows / 8;
}

constexpr std::uint32_t kMostPairs = 256;  // of a head

// What a model needs of a block's shared memory, over all its products and layers.
struct DecodeSizes {
  std::uint32_t most_parts = 1;
  std::uint32_t most_part_chunks = 1;  // chunks of the longest part
  std::uint32_t least_chunk_bytes = ~0u, most_chunk_bytes = 0;
  std::vector<HeadShape> shapes;  // of the layers' heads, each once
};

// How a launch divides a block's shared memory. Bits do not depend on it.
struct DecodeLayout {
  std::uint32_t pieces = 0;
  std::uint32_t most_queries = 0;
  std::uint32_t region_bytes = 0, reduce_at = 0;
  std::uint32_t slots = 0, slot_bytes = 0;
  std::uint32_t total = 0;  // bytes
};
// For that many rows (or rows of logits, where these are more), of which up to `run` meet their keys
// together. Nothing when it does not fit.
std::optional<DecodeLayout> decode_layout(const DecodeLimits& limits, const DecodeSizes& sizes,
                                          std::uint32_t layers, std::uint32_t rows, std::uint32_t run);
// Rows of a run that a unit takes at once, of layers whose KV heads serve so many query heads each.
__host__ __device__ constexpr std::uint32_t rows_together(std::uint32_t run, std::uint32_t heads,
                                                          std::uint32_t most_queries) {
  const std::uint32_t fit = most_queries / heads;
  return fit < 2 ? 1 : fit < run ? fit : run;
}

// Launches the job, whose layout is set here. Error when the model does not fit the device's shared memory.
void decode(DecodeJob job, const DecodeLimits& limits, const DecodeSizes& sizes, cudaStream_t stream);

}  // namespace gem::cuda
