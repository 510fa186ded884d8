// The weights on their way: every warp knows which pieces of which tiles it will multiply next in the round,
// and keeps a ring of copies of them under way, from product to product.
#pragma once

#include "backend/cuda/decode_operand.cuh"

namespace gem::cuda {

// Chunks that a slot of the ring takes at once: a power of two, for divisions; slots are a few chunks of the
// smallest format.
__device__ __forceinline__ std::uint32_t log_chunks_of_slot(std::uint32_t chunk_bytes,
                                                            std::uint32_t slot_bytes) {
  return slot_bytes >= 4 * chunk_bytes ? 2 : slot_bytes >= 2 * chunk_bytes ? 1 : 0;
}
__device__ __forceinline__ std::uint32_t chunks_of_slot(Format format, std::uint32_t slot_bytes) {
  return 1u << log_chunks_of_slot(chunk_bytes(format), slot_bytes);
}

// Whether a warp multiplies two of its tiles at once, so that what it reads of the operand serves both: where
// it reads much of it. Their pieces of weights are smaller for it, which costs where little is multiplied.
template <int Groups>
constexpr bool kPaired = Groups == 4;
template <int Groups>
__device__ __forceinline__ bool pairs_tiles(const DecodeOp& op, std::uint32_t log_chunks_of_slot) {
  return kPaired<Groups> && op.near && log_chunks_of_slot > 0;
}

// Matrices of one format are gone through together.
__device__ __forceinline__ bool one_format(const DecodeOp& op) {
  return op.format[0] == op.format[1] && op.format[1] == op.format[2];
}
// Where the run of tiles of one format that has `tile` in it ends.
__device__ __forceinline__ std::uint32_t run_end(const DecodeOp& op, std::uint32_t tile) {
  if (one_format(op) || tile >= op.tiles_end[1]) return op.tiles_end[2];
  return tile < op.tiles_end[0] ? op.tiles_end[0] : op.tiles_end[1];
}
__device__ __forceinline__ int matrix_of(const DecodeOp& op, std::uint32_t tile) {
  return tile < op.tiles_end[0] ? 0 : tile < op.tiles_end[1] ? 1 : 2;
}
// A chunk of a tile. `unit`: a chunk's 16 bytes.
__device__ __forceinline__ const std::uint8_t* chunk_at(const DecodeOp& op, std::uint32_t tile,
                                                        std::uint32_t chunk, std::uint32_t unit) {
  const std::uint8_t* data = op.data[0];
  if (tile >= op.tiles_end[0]) {
    const bool last = tile >= op.tiles_end[1];
    data = last ? op.data[2] : op.data[1];
    tile -= last ? op.tiles_end[1] : op.tiles_end[0];
  }
  return data + std::uint64_t{tile * op.chunks + chunk} * (unit * 16);
}
// Divides by a number whose inverse is known to a few units in the last place: exact for numbers as small as
// these.
__device__ __forceinline__ std::uint32_t whole_times(std::uint32_t n, float inverse) {
  return static_cast<std::uint32_t>((static_cast<float>(n) + 0.5f) * inverse);
}

// A warp's tiles in a run of tiles of one format, as planning wants them: one after the other, or two at a
// time and perhaps a last one.
struct Run {
  std::uint32_t tile = 0, tiles = 0;  // the first one and how many, each `workers` after the one before
  std::uint32_t workers = 0;
  std::uint32_t begin = 0, count = 0;  // chunks
  std::uint32_t unit = 0;              // a chunk's 16 bytes
  std::uint32_t log_at_once = 0;       // of the chunks of a piece of one tile
  std::uint32_t pairs = 0;

  __device__ __forceinline__ std::uint32_t log_of_pair() const {
    return log_at_once > 0 ? log_at_once - 1 : 0;
  }
  // Pieces.
  __device__ __forceinline__ std::uint32_t of_tile() const {
    return (count + (1u << log_at_once) - 1) >> log_at_once;
  }
  __device__ __forceinline__ std::uint32_t of_pair() const {
    return (count + (1u << log_of_pair()) - 1) >> log_of_pair();
  }
  __device__ __forceinline__ std::uint32_t pieces() const {
    return pairs * of_pair() + (tiles - 2 * pairs) * of_tile();
  }
};
template <int Pieces>
__device__ __forceinline__ Run run_of(const DecodeOp& o, std::uint32_t run) {
  const DecodeShared& s = block_state();
  const MyPart part = my_part<Pieces>(o);
  Run r;
  r.workers = part.workers;
  r.begin = part.begin;
  r.count = part.end - part.begin;
  r.unit = o.unit[run];
  r.log_at_once = log_chunks_of_slot(r.unit * 16, s.job.slot_bytes);
  const std::uint32_t first = run == 0 ? 0 : o.tiles_end[run - 1];
  const std::uint32_t end = !one_format(o) ? o.tiles_end[run] : run == 0 ? o.tiles_end[2] : 0;
  const float per_worker = s.cuts[o.cut].per_worker;
  const auto steps = [&](std::uint32_t tiles) { return whole_times(tiles + r.workers - 1, per_worker); };
  r.tile = part.worker;
  if (part.worker < first) r.tile += steps(first - part.worker) * r.workers;
  if (part.worker >= r.workers || r.count == 0 || r.tile >= end) return r;
  r.tiles = steps(end - r.tile);
  r.pairs = pairs_tiles<Pieces>(o, r.log_at_once) ? r.tiles / 2 : 0;
  return r;
}

// Finds the pieces of weights that the warp will multiply after those that it knows, so that these are 32
// again, as the loops that multiply have no time for it. Every lane looks at one of the next 32 runs, then
// finds in whose run the piece lies that it will know.
template <int Pieces>
__device__ __noinline__ void plan_pieces() {
  constexpr std::uint32_t kRows = 8 * Pieces;
  DecodeShared& s = block_state();
  const std::uint32_t warp = thread_index() / 32;
  const std::uint32_t lane = thread_index() % 32;
  const std::uint32_t next = s.readers[warp].next;
  Piece mine = s.pieces[warp][(lane + next) % 32];
  std::int32_t second = kPaired<Pieces> ? s.seconds[warp][(lane + next) % 32] : 0;
  CursorState c = s.cursors[warp];
  __syncwarp();
  std::uint32_t known = 32 - next;
  if (lane >= known) mine = Piece{};
  const std::uint32_t head = s.job.layer_count * kOpsOfLayer;
  const std::uint32_t passes = (s.job.row_count + kRows - 1) / kRows;
  const std::uint32_t head_passes = (s.job.logit_count + kRows - 1) / kRows;
  const std::uint32_t end = s.job.end_products;
  // The place of the run that is `ahead` runs after the cursor's; three for each pass of a product.
  const auto place = [&](std::uint32_t ahead) {
    CursorState at = {c.op, 0, 0, 0};
    std::uint32_t run = ahead + c.pass * 3 + c.run;
    const std::uint32_t of_op = passes * 3;
    if (at.op < head) {
      const std::uint32_t whole =
          min(whole_times(run, __fdividef(1.0f, static_cast<float>(of_op))), head - at.op);
      at.op += whole;
      run -= whole * of_op;
    }
    at.pass = whole_times(run, 1.0f / 3);
    at.run = run - at.pass * 3;
    if (at.op == head && at.pass >= head_passes) at.op = head + 1;
    return at;
  };
#pragma unroll 1
  while (known < 32 && c.op < end) {
    const CursorState at = place(lane);
    Run run;
    if (at.op < end) run = run_of<Pieces>(product_of(at.op), at.run);
    // Pieces in the runs up to this lane's.
    const std::uint32_t own = run.pieces() - (lane == 0 ? c.piece : 0);
    std::uint32_t until = own;
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
      const std::uint32_t before = __shfl_up_sync(~0u, until, step);
      if (lane >= step) until += before;
    }
    const std::uint32_t used = min(__shfl_sync(~0u, until, 31), 32 - known);
    const bool found = lane >= known && lane - known < used;
    const std::uint32_t wanted = found ? lane - known : 0;
    int owner = 0;  // the lane in whose run it lies
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      if (__shfl_sync(~0u, until, owner + step - 1) <= wanted) owner += step;
    }
    const auto of_owner = [&](std::uint32_t value) { return __shfl_sync(~0u, value, owner); };
    const std::uint32_t start = of_owner(until - own);
    const std::uint32_t op = of_owner(at.op);
    const std::uint32_t chunks = of_owner(run.begin << 16 | run.count);
    const std::uint32_t sizes = of_owner(run.workers << 16 | run.unit << 8 | run.log_at_once);
    Run theirs;
    theirs.tile = of_owner(run.tile);
    if constexpr (kPaired<Pieces>) theirs.pairs = of_owner(run.pairs);
    theirs.workers = sizes >> 16;
    theirs.unit = sizes >> 8 & 0xff;
    theirs.log_at_once = sizes & 0xff;
    theirs.begin = chunks >> 16;
    theirs.count = chunks & 0xffff;
    if (found) {
      const DecodeOp& o = product_of(op);
      std::uint32_t i = wanted - start + (owner == 0 ? c.piece : 0);
      const std::uint32_t in_pairs = theirs.pairs * theirs.of_pair();
      const bool two = kPaired<Pieces> && i < in_pairs;
      if (!two) i -= in_pairs;
      const std::uint32_t of_piece = two ? theirs.of_pair() : theirs.of_tile();
      const std::uint32_t log_of_piece = two ? theirs.log_of_pair() : theirs.log_at_once;
      const std::uint32_t n = whole_times(i, __fdividef(1.0f, static_cast<float>(of_piece)));
      const std::uint32_t tile = theirs.tile + (two ? 2 * n : 2 * theirs.pairs + n) * theirs.workers;
      const std::uint32_t chunk = (i - n * of_piece) << log_of_piece;
      const std::uint32_t bytes = min(1u << log_of_piece, theirs.count - chunk) * theirs.unit * 16;
      const std::uint8_t* from = chunk_at(o, tile, theirs.begin + chunk, theirs.unit);
      const std::int64_t apart =
          two ? chunk_at(o, tile + theirs.workers, theirs.begin + chunk, theirs.unit) - from : 0;
      mine = Piece::of(from, bytes);
      second = static_cast<std::int32_t>(apart / 16);
    }
    known += used;
    // The first piece that is not known lies in the run after those that are used up.
    const unsigned used_up = __ballot_sync(~0u, until <= used);
    if (used_up == ~0u) {
      c = place(32);
      continue;
    }
    const int last = __popc(used_up);
    const std::uint32_t into = used - __shfl_sync(~0u, until - own, last);
    c = {__shfl_sync(~0u, at.op, last), __shfl_sync(~0u, at.pass, last), __shfl_sync(~0u, at.run, last),
         into + (last == 0 ? c.piece : 0)};
  }
  s.pieces[warp][lane] = mine;
  if constexpr (kPaired<Pieces>) s.seconds[warp][lane] = second;
  __syncwarp();
  if (lane == 0) {
    s.cursors[warp] = c;
    s.readers[warp].next = 0;
  }
  __syncwarp();
}

// Plans unless the warp knows all pieces of product `o`: seldom, as the other blocks wait for it.
template <int Pieces>
__device__ __forceinline__ void plan_for(std::uint32_t o) {
  const DecodeShared& s = block_state();
  const std::uint32_t known = 32 - s.readers[thread_index() / 32].next;
  if (known > 32 / 2) return;
  const DecodeOp& op = product_of(o);
  std::uint32_t wanted = 0;
#pragma unroll 1
  for (std::uint32_t run = 0; run < (one_format(op) ? 1 : 3); ++run)
    wanted += run_of<Pieces>(op, run).pieces();
  if (known < wanted) plan_pieces<Pieces>();
}

// Starts the copies of piece `next` into a slot; nothing when there is none. The second tile's chunks come
// after the first one's. `once`: read_once().
template <int Pieces>
__device__ __forceinline__ void request(std::uint32_t warp, std::uint32_t next, std::uint8_t* slot,
                                        std::uint64_t* barrier, std::uint64_t once) {
  const DecodeShared& s = block_state();
  const Piece piece = s.pieces[warp][next];
  const std::int32_t second = kPaired<Pieces> ? s.seconds[warp][next] : 0;
  const std::uint8_t* from = piece.from();
  const std::uint32_t bytes = piece.bytes();
#if __CUDA_ARCH__ >= 900
  if (!one_lane() || bytes == 0) return;
  slot_expect(barrier, second != 0 ? 2 * bytes : bytes);
  slot_copy(barrier, slot, from, bytes, once);
  if (second != 0) slot_copy(barrier, slot + bytes, from + std::int64_t{second} * 16, bytes, once);
#else
  static_cast<void>(barrier);
  static_cast<void>(once);
#pragma unroll 1
  for (std::uint32_t i = thread_index() % 32 * 16; i < bytes; i += 512) {
    copy16(slot + i, from + i);
    if (second != 0) copy16(slot + bytes + i, from + std::int64_t{second} * 16 + i);
  }
  copies_commit();
#endif
}

// The ring of a warp.
__device__ __forceinline__ std::uint8_t* ring_of(std::uint32_t warp) {
  const DecodeShared& s = block_state();
  return dynamic_shared() + s.rings + warp * s.job.slots * s.job.slot_bytes;
}

// The round's first copies.
template <int Pieces>
__device__ __forceinline__ void request_first() {
  DecodeShared& s = block_state();
  const std::uint32_t warp = thread_index() / 32;
  const std::uint32_t lane = thread_index() % 32;
  if (lane == 0) {
    s.cursors[warp] = {s.job.first_op, 0, 0, 0};
    s.readers[warp] = {0, 0, 32};
  }
  s.pieces[warp][lane] = {};
  __syncwarp();
  plan_pieces<Pieces>();
#pragma unroll 1
  for (std::uint32_t i = 0; i < s.job.slots; ++i) {
    request<Pieces>(warp, i, ring_of(warp) + i * s.job.slot_bytes, s.barriers[warp] + i, read_once());
  }
  if (lane == 0) s.readers[warp].next = s.job.slots;
  __syncwarp();
}

// What a warp reads from its ring.
struct Reader {
  std::uint32_t slot;
  unsigned parity;
  std::uint32_t next_piece;
  std::uint32_t warp;
  std::uint64_t once;

  __device__ __forceinline__ Reader() {
    warp = thread_index() / 32;
    const ReaderState& state = block_state().readers[warp];
    slot = state.slot;
    parity = state.parity;
    next_piece = state.next;
    once = read_once();
  }
  // For the next piece of weights.
  template <int Pieces>
  __device__ __forceinline__ void ask(std::uint8_t* slot_at, std::uint64_t* barrier) {
    if (next_piece == 32) {
      leave();
      plan_pieces<Pieces>();
      next_piece = 0;
    }
    request<Pieces>(warp, next_piece++, slot_at, barrier, once);
  }
  __device__ __forceinline__ void leave() const {
    __syncwarp();  // all lanes have read it
    if (thread_index() % 32 == 0) block_state().readers[warp] = {slot, parity, next_piece};
    __syncwarp();
  }
  __device__ __forceinline__ void wait(std::uint64_t* barriers, std::uint32_t slots) const {
#if __CUDA_ARCH__ >= 900
    static_cast<void>(slots);
    slot_wait(barriers + slot, parity);
#else
    static_cast<void>(barriers);
    // As many groups are under way as there are slots; the oldest must have ended.
    switch (slots) {
      case 1:
        copies_wait<0>();
        break;
      case 2:
        copies_wait<1>();
        break;
      case 3:
        copies_wait<2>();
        break;
      case 4:
        copies_wait<3>();
        break;
      case 5:
        copies_wait<4>();
        break;
      case 6:
        copies_wait<5>();
        break;
      case 7:
        copies_wait<6>();
        break;
      default:
        copies_wait<7>();
        break;
    }
    __syncwarp();
#endif
  }
  __device__ __forceinline__ void next(std::uint32_t slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace gem::cuda
