// backend/cuda/ptx.cuh for the emulated device.
#pragma once

#include <cuda_fp16.h>

namespace gem::cuda {

inline std::uint32_t thread_index() {
  return threadIdx.x;
}
inline std::uint32_t block_index() {
  return blockIdx.x;
}
inline void renew(std::uint32_t&) {}
inline void renew(float&) {}

inline std::uint8_t* dynamic_shared() {
  return emulation::dynamic_shared();
}
template <typename T>
T& block_shared() {
  return *static_cast<T*>(emulation::block_shared(typeid(T), sizeof(T)));
}

inline void group_sync(int barrier, int threads) {
  emulation::block_barrier(barrier, static_cast<unsigned>(threads));
}
inline void add_release(unsigned* counter) {
  ++*counter;
}
inline unsigned load_counter(const unsigned* counter) {
  const unsigned seen = *counter;
  emulation::give_way();
  return seen;
}

inline void prefetch(const void*) {}
inline uint2 read8(const std::uint32_t* p) {
  return {p[0], p[1]};
}

inline void copy8(void* to, const void* from) {
  emulation::copy_later(to, from, 8);
}
inline void copy16(void* to, const void* from) {
  emulation::copy_later(to, from, 16);
}
inline void copies_commit() {
  emulation::copies_commit();
}
template <int Pending>
void copies_wait() {
  emulation::copies_wait(Pending);
}
inline void copies_wait_all() {
  emulation::copies_commit();
  emulation::copies_wait(0);
}
inline void slot_init(std::uint64_t* barrier) {
  emulation::slot_init(barrier);
}
inline void slots_ready() {}
inline bool one_lane() {
  return thread_index() % 32 == 0;
}
inline void copies_see_writes() {}
inline void slot_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  emulation::slot_expect(barrier, bytes);
}
inline std::uint64_t read_once() {
  return 0;
}
inline void slot_copy(std::uint64_t* barrier, void* to, const void* from, std::uint32_t bytes,
                      std::uint64_t) {
  emulation::slot_copy(barrier, to, from, bytes);
}
inline void slot_wait(std::uint64_t* barrier, unsigned parity) {
  emulation::slot_wait(barrier, parity);
}

// Rows of A are lane / 4 and 8 later, its columns 2 (lane % 4), the next, and those 8 later; B has its column
// at lane / 4, c its columns at 2 (lane % 4). (PTX ISA, "Matrix Fragments for mma.m16n8k16".)
inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Mine {
    float* c;
    const unsigned* a;
    unsigned b[2];
  };
  Mine mine = {c, a, {b0, b1}};
  emulation::warp_meet(~0u, &mine, [](emulation::Brought all) {
    const float* halves = emulation::kHalves.data();
    float left[16][16];
    float right[16][8];
    float sums[16][8];
    for (int l = 0; l < 32; ++l) {
      const Mine& m = *static_cast<const Mine*>(all[static_cast<std::size_t>(l)]);
      const int row = l / 4;
      const int col = l % 4 * 2;
      for (int i = 0; i < 4; ++i) {
        left[row + i % 2 * 8][col + i / 2 * 8] = halves[m.a[i] & 0xffff];
        left[row + i % 2 * 8][col + 1 + i / 2 * 8] = halves[m.a[i] >> 16];
        sums[row + i / 2 * 8][col + i % 2] = m.c[i];
      }
      for (int i = 0; i < 2; ++i) {
        right[col + i * 8][row] = halves[m.b[i] & 0xffff];
        right[col + 1 + i * 8][row] = halves[m.b[i] >> 16];
      }
    }
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 16; ++k) {
        for (int col = 0; col < 8; ++col) sums[row][col] += left[row][k] * right[k][col];
      }
    }
    for (int l = 0; l < 32; ++l) {
      const Mine& m = *static_cast<const Mine*>(all[static_cast<std::size_t>(l)]);
      for (int i = 0; i < 4; ++i) m.c[i] = sums[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    }
  });
}
// The same of bytes: four columns of A a register, those of B 4 (lane % 4) and on. Steps of 16 columns.
template <int Steps, bool Signed>
void mma_bytes_of(int (&d)[4], const int (&c)[4], const unsigned* a, const unsigned* b) {
  struct Mine {
    int* d;
    const int* c;
    const unsigned* a;
    const unsigned* b;
  };
  Mine mine = {d, c, a, b};
  emulation::warp_meet(~0u, &mine, [](emulation::Brought all) {
    const auto byte = [](unsigned word, int i, bool is_signed) {
      const unsigned v = word >> (8 * i) & 0xff;
      return is_signed ? static_cast<int>(static_cast<std::int8_t>(v)) : static_cast<int>(v);
    };
    int left[16][16 * Steps];
    int right[16 * Steps][8];
    unsigned sums[16][8];
    for (int l = 0; l < 32; ++l) {
      const Mine& m = *static_cast<const Mine*>(all[static_cast<std::size_t>(l)]);
      for (int i = 0; i < 4; ++i) {
        const int col = l % 4 * 4 + i;
        for (int step = 0; step < Steps; ++step) {
          left[l / 4][col + 16 * step] = byte(m.a[2 * step], i, Signed);
          left[l / 4 + 8][col + 16 * step] = byte(m.a[2 * step + 1], i, Signed);
          right[col + 16 * step][l / 4] = byte(m.b[step], i, true);
        }
        sums[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2] = static_cast<unsigned>(m.c[i]);
      }
    }
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 16 * Steps; ++k) {
        for (int col = 0; col < 8; ++col)
          sums[row][col] += static_cast<unsigned>(left[row][k] * right[k][col]);
      }
    }
    for (int l = 0; l < 32; ++l) {
      const Mine& m = *static_cast<const Mine*>(all[static_cast<std::size_t>(l)]);
      for (int i = 0; i < 4; ++i) m.d[i] = static_cast<int>(sums[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2]);
    }
  });
}
template <bool Signed>
void mma_bytes(int (&d)[4], const int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned b[2] = {b0, b1};
  mma_bytes_of<2, Signed>(d, c, a, b);
}
inline void mma_bytes(int (&d)[4], const int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  const unsigned a[2] = {a0, a1};
  mma_bytes_of<1, true>(d, c, a, &b);
}
inline void load_matrices(unsigned (&r)[4], const void* row) {
  struct Mine {
    unsigned* r;
    const void* row;
  };
  Mine mine = {r, row};
  emulation::warp_meet(~0u, &mine, [](emulation::Brought all) {
    for (std::size_t l = 0; l < 32; ++l) {
      for (std::size_t i = 0; i < 4; ++i) {
        const void* from = static_cast<const Mine*>(all[i * 8 + l / 4])->row;
        static_cast<const Mine*>(all[l])->r[i] = static_cast<const unsigned*>(from)[l % 4];
      }
    }
  });
}

}  // namespace gem::cuda
