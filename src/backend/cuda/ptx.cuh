// The few instructions and declarations that CUDA C++ has no portable word for, each behind a name of its
// own. (Tests put another file of this name in front: tests/emulation/cuda.)
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace gem::cuda {

// The thread and block, read anew at every call: what is derived from them is not kept in registers through
// a long kernel (the compiler would, and spill).
__device__ __forceinline__ std::uint32_t thread_index() {
  std::uint32_t i;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i));
  return i;
}
__device__ __forceinline__ std::uint32_t block_index() {
  std::uint32_t i;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(i));
  return i;
}
// To the compiler the number is another one afterwards: what is derived from it is not kept through a loop.
__device__ __forceinline__ void renew(std::uint32_t& number) {
  asm volatile("" : "+r"(number));
}
__device__ __forceinline__ void renew(float& number) {
  asm volatile("" : "+f"(number));
}

// The block's shared memory whose size the launch says, and that of one T which the kernel declares.
__device__ __forceinline__ std::uint8_t* dynamic_shared() {
  extern __shared__ __align__(128) std::uint8_t dynamic[];
  return dynamic;
}
template <typename T>
__device__ __forceinline__ T& block_shared() {
  __shared__ T memory;
  return memory;
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// ---- waiting

// Waits for `threads` threads of the block that name the same barrier (1 .. 15).
__device__ __forceinline__ void group_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Adds one, after all that this thread wrote.
__device__ __forceinline__ void add_release(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// As the second-level cache has it, where all that was written before an add_release() is by then. To acquire
// formally would empty the first-level cache, with the registers that a long kernel keeps there: whoever has
// waited reads what others wrote past that cache (__ldcg).
__device__ __forceinline__ unsigned load_counter(const unsigned* counter) {
  unsigned seen = 0;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  return seen;
}

// ---- loads

__device__ __forceinline__ void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
// Eight bytes of shared memory, not joined with the next eight: lanes that read the same eight are served at
// once, of sixteen they are not.
__device__ __forceinline__ uint2 read8(const std::uint32_t* p) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(shared_address(p)));
  return v;
}

// ---- copies from global to shared memory

// By every thread for itself: 8 or 16 bytes; groups of them are waited for in order.
__device__ __forceinline__ void copy8(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most `Pending` groups are under way.
template <int Pending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ void copies_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

#if __CUDA_ARCH__ < 900
__device__ __forceinline__ std::uint64_t read_once() {
  return 0;
}
#else
// By the copy engine: a barrier a slot. One thread starts a copy, all wait for it; parity: that of the copies
// made through the slot before.
__device__ __forceinline__ void slot_init(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)));
}
__device__ __forceinline__ void slots_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// True for one lane of the warp, and the compiler knows that it is one.
__device__ __forceinline__ bool one_lane() {
  unsigned chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
  return chosen != 0;
}
// Before copies of what threads, also those of other blocks, wrote, or over what they read; by the thread
// that starts them, after it has waited for those.
__device__ __forceinline__ void copies_see_writes() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
// All bytes that the slot's copies bring, before the first.
__device__ __forceinline__ void slot_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// How a copy treats the second-level cache: what is read once a round shall not push everything else out.
__device__ __forceinline__ std::uint64_t read_once() {
  std::uint64_t once;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  return once;
}
__device__ __forceinline__ void slot_copy(std::uint64_t* barrier, void* to, const void* from,
                                          std::uint32_t bytes, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void slot_wait(std::uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra "
      "again;\n"
      "done:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
#endif

// ---- tensor cores

// c += A B: A 16 x 16 and B 16 x 8 of f16, c 16 x 8 of f32, spread over a warp as mma.m16n8k16 wants them.
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d = c + A B: A 16 x 32 and B 32 x 8 of bytes, those of B signed, c and d 16 x 8 of 32 bits, which wrap
// around; spread over a warp as mma.m16n8k32 wants them.
template <bool Signed>
__device__ __forceinline__ void mma_bytes(int (&d)[4], const int (&c)[4], const unsigned (&a)[4], unsigned b0,
                                          unsigned b1) {
  if constexpr (Signed) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
  }
}
// Of 16 columns of signed bytes: mma.m16n8k16.
__device__ __forceinline__ void mma_bytes(int (&d)[4], const int (&c)[4], unsigned a0, unsigned a1,
                                          unsigned b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
// Four matrices of 8 x 8 halves; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

}  // namespace gem::cuda
