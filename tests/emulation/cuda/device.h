// A CUDA device in software, so that the cuda backend's kernels run in tests on any machine, under the
// sanitizers too: every thread of a launch is a fiber, all of one operating system thread. Slow, and
// deterministic: threads run in a fixed order, or, where GEM_EMULATION_SEED names a number, in
// an order drawn from it (a missing barrier then changes results).
//
// What the device checks by itself: memory it hands out is filled with NaNs; a copy into shared memory leaves
// NaNs until it has been waited for; threads that wait for each other for ever end the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <typeinfo>

namespace emulation {

struct Place {
  unsigned x = 1, y = 1, z = 1;
};

// The device's size: what a backend asks for when it lays out its work. Small, as every thread costs time.
constexpr unsigned kMultiprocessors = 4;
#ifndef GEM_EMULATED_SHARED_KB
#define GEM_EMULATED_SHARED_KB 227
#endif
constexpr unsigned kSharedBytes = GEM_EMULATED_SHARED_KB * 1024;

// Set by tests.
inline bool device_is_lost = false;

// Runs `thread` as every thread of every block; `resident`: all blocks at once, else one after another.
void run(Place grid, Place block, std::size_t shared_bytes, bool resident,
         const std::function<void()>& thread);

// ---- of the running thread

const Place& thread_place();
const Place& block_place();
const Place& block_size();
const Place& grid_size();
std::uint8_t* dynamic_shared();
// The block's own memory of this type and size, zero at first.
void* block_shared(const std::type_info& type, std::size_t bytes);

// Lets others run; who waits in a loop calls it.
void give_way();
// Waits for `count` threads of the block that name the same barrier. 0: all of the block that have not ended.
void block_barrier(int barrier, unsigned count);
// The lanes of `mask` meet; the last one calls `together` with what every lane brought (null for others).
using Brought = std::span<void* const>;
void warp_meet(unsigned mask, void* mine, void (*together)(Brought));

// Copies that are made when they are waited for; until then the place holds NaNs.
void copy_later(void* to, const void* from, std::size_t bytes);
void copies_commit();
void copies_wait(std::size_t pending);
void slot_init(std::uint64_t* barrier);
void slot_expect(std::uint64_t* barrier, std::size_t bytes);
void slot_copy(std::uint64_t* barrier, void* to, const void* from, std::size_t bytes);
void slot_wait(std::uint64_t* barrier, unsigned parity);

}  // namespace emulation
