// AVX2 products of Q4_K, Q5_K and Q6_K groups with few rows, decoded in registers (backend/cpu/super_blocks.h
// says how they lie). A block goes through the sums that `tile` forms of its panel, so the bits are the same.
#if defined(__x86_64__)

#include "backend/cpu/super_avx2.h"

#include <immintrin.h>

#include "backend/cpu/registers_avx2.h"
#include "backend/cpu/super_blocks.h"

namespace gem::cpu::avx2 {
namespace {

template <StorageType kType>
constexpr bool kSix = kType == StorageType::kQ6_K;

__m256 eight_bytes(const std::byte* p, bool is_signed) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
}

// What a super-block's blocks are scaled by.
template <StorageType kType>
class Scales {
 public:
  explicit Scales(const std::byte* super) : factors_(super + super_factors(kType)) {
    for (std::size_t half = 0; half < 2; ++half) {
      d_[half] = eight_halves(super + 16 * half);
      if constexpr (!kSix<kType>) dmin_[half] = eight_halves(super + 2 * kGroupRows + 16 * half);
    }
  }
  // Of part p of the super-block: block p, or half p % 2 of block p / 2.
  __m256 scale(std::size_t p, std::size_t half) const {
    return _mm256_mul_ps(d_[half], eight_bytes(factors_ + p * kGroupRows + 8 * half, kSix<kType>));
  }
  __m256 minimum(std::size_t block, std::size_t half) const {
    return _mm256_mul_ps(dmin_[half], eight_bytes(factors_ + (8 + block) * kGroupRows + 8 * half, false));
  }

 private:
  const std::byte* factors_;
  __m256 d_[2];
  __m256 dmin_[2];
};

// The bits above the nibbles of a part, for both halves of the rows, vector by vector.
template <StorageType kType>
class Above {
 public:
  explicit Above(const std::byte* bits) {
    for (std::size_t half = 0; bits_above(kType) != 0 && half < 2; ++half)
      bits_[half] = load(bits + 32 * half);
  }
  // Over nibble i of the next vector, which stands at `place`.
  template <int kNibble, int kPlace>
  __m256i over(__m256i w, std::size_t half) const {
    if constexpr (bits_above(kType) == 0) return w;
    constexpr int kFrom = 4 * ((kNibble + 1) % 4);
    constexpr int kTo = kPlace + 4;
    constexpr int kMask = ((1 << bits_above(kType)) - 1) << kTo;
    const __m256i moved = kFrom < kTo   ? _mm256_slli_epi16(bits_[half], kTo - kFrom)
                          : kFrom > kTo ? _mm256_srli_epi16(bits_[half], kFrom - kTo)
                                        : bits_[half];
    return _mm256_or_si256(w, _mm256_and_si256(moved, _mm256_set1_epi16(kMask)));
  }
  void next(std::size_t half) {
    if constexpr (bits_above(kType) != 0) bits_[half] = _mm256_srli_epi16(bits_[half], bits_above(kType));
  }

 private:
  __m256i bits_[2];
};

// Q6_K's codes 0 to 63 are 32 too much.
template <StorageType kType>
__m256i start(const Activations& x, std::size_t row, std::size_t block, std::size_t part) {
  if constexpr (kSix<kType>) return _mm256_set1_epi32(-32 * x.half_sum(row, block, part));
  return _mm256_setzero_si256();
}

template <StorageType kType>
[[gnu::always_inline]] inline void prefetch_block(const std::byte* super, std::size_t block) {
  constexpr SuperLayout layout = super_layout(kType);
  if (block == 0) prefetch(super, (layout.scales + 63) / 64);
  prefetch(super + layout.nibbles(block), 4);
  if constexpr (layout.high != 0) prefetch(super + layout.bits(block), layout.high / 64);
}

template <StorageType kType>
void one_row(const std::byte* super, const Activations& x, float* out) {
  constexpr SuperLayout layout = super_layout(kType);
  const std::int16_t* q = x.q;
  __m256 y[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (std::size_t b = 0; b < x.blocks; super += layout.bytes()) {
    const Scales<kType> scales(super);
    for (std::size_t block = 0; block < 8; ++block, ++b) {
      prefetch_block<kType>(super, block);
      const std::byte* codes = super + layout.nibbles(block);
      const __m256 x_scale = _mm256_set1_ps(x.scale[b]);
      for (std::size_t part = 0; part < kBlockParts<kType>; ++part) {
        Above<kType> above(super + layout.bits(block) + 64 * part);
        const __m256i first = start<kType>(x, 0, b, part);
        __m256i dot[2] = {first, first};
        add_nibbles<kPartVectors<kType>>(codes, q, dot, [&](std::size_t half, __m256i(&w)[4]) {
          w[0] = above.template over<0, 0>(w[0], half);
          w[1] = above.template over<1, 4>(w[1], half);
          w[2] = above.template over<2, 8>(w[2], half);
          w[3] = above.template over<3, 0>(w[3], half);
          above.next(half);
        });
        for (std::size_t half = 0; half < 2; ++half)
          y[half] =
              add_block(dot[half], scales.scale(kBlockParts<kType> * block + part, half), x_scale, y[half]);
        codes += 64 * kPartVectors<kType>;
        q += 8 * kPartVectors<kType>;
      }
      if constexpr (!kSix<kType>) {
        const __m256 x_sum = _mm256_set1_ps(x.scaled_sum(0, b));
        for (std::size_t half = 0; half < 2; ++half)
          y[half] = _mm256_fnmadd_ps(scales.minimum(block, half), x_sum, y[half]);
      }
    }
  }
  _mm256_storeu_ps(out, y[0]);
  _mm256_storeu_ps(out + 8, y[1]);
}

// R rows of activations. The sums stay in memory: the dot products take the registers.
template <StorageType kType, unsigned R>
void rows_super(const std::byte* super, const Activations& x, float* out) {
  if constexpr (R == 1) return one_row<kType>(super, x, out);
  constexpr SuperLayout layout = super_layout(kType);
  const __m256i mask = _mm256_set1_epi16(15);
  const std::int16_t* q = x.q;
  for (unsigned r = 0; r < 2 * R; ++r) _mm256_storeu_ps(out + 8 * r, _mm256_setzero_ps());
  for (std::size_t b = 0; b < x.blocks; super += layout.bytes()) {
    const Scales<kType> scales(super);
    for (std::size_t block = 0; block < 8; ++block, ++b) {
      prefetch_block<kType>(super, block);
      const std::byte* codes = super + layout.nibbles(block);
      for (std::size_t part = 0; part < kBlockParts<kType>; ++part) {
        Above<kType> above(super + layout.bits(block) + 64 * part);
        __m256i dot[R][2];
        for (unsigned r = 0; r < R; ++r) dot[r][0] = dot[r][1] = start<kType>(x, r, b, part);
        const auto add_pair = [&](__m256i low, __m256i high) {
          for (unsigned r = 0; r < R; ++r) {
            const __m256i columns = two_columns(q + r * x.stride);
            dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(low, columns));
            dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(high, columns));
            keep(dot[r][0]);
            keep(dot[r][1]);
          }
          q += 2;
        };
#pragma GCC unroll 4
        for (std::size_t v = 0; v < kPartVectors<kType>; ++v, codes += 64) {
          const __m256i low = load(codes);
          const __m256i high = load(codes + 32);
          const auto nibble = [&]<int kNibble>(std::integral_constant<int, kNibble>) {
            const __m256i w0 = _mm256_and_si256(_mm256_srli_epi16(low, 4 * kNibble), mask);
            const __m256i w1 = _mm256_and_si256(_mm256_srli_epi16(high, 4 * kNibble), mask);
            add_pair(above.template over<kNibble, 0>(w0, 0), above.template over<kNibble, 0>(w1, 1));
          };
          nibble(std::integral_constant<int, 0>());
          nibble(std::integral_constant<int, 1>());
          nibble(std::integral_constant<int, 2>());
          nibble(std::integral_constant<int, 3>());
          above.next(0);
          above.next(1);
        }
        for (std::size_t half = 0; half < 2; ++half) {
          const __m256 scale = scales.scale(kBlockParts<kType> * block + part, half);
          for (unsigned r = 0; r < R; ++r) {
            float* const y = out + r * kGroupRows + 8 * half;
            const __m256 x_scale = _mm256_set1_ps(x.scale[r * x.blocks + b]);
            _mm256_storeu_ps(y, add_block(dot[r][half], scale, x_scale, _mm256_loadu_ps(y)));
          }
        }
      }
      for (std::size_t half = 0; !kSix<kType> && half < 2; ++half) {
        const __m256 minimum = scales.minimum(block, half);
        for (unsigned r = 0; r < R; ++r) {
          float* const y = out + r * kGroupRows + 8 * half;
          const __m256 x_sum = _mm256_set1_ps(x.scaled_sum(r, b));
          _mm256_storeu_ps(y, _mm256_fnmadd_ps(minimum, x_sum, _mm256_loadu_ps(y)));
        }
      }
    }
  }
}

template <StorageType kType>
struct Of {
  template <unsigned R>
  struct Run {
    static void run(const std::byte* group, const Activations& x, float* out) {
      rows_super<kType, R>(group, x, out);
    }
  };
};

}  // namespace

void group_super(StorageType type, const std::byte* group, const Activations& x, std::size_t rows,
                 float* out) {
  for_super_type(type, [&](auto constant) { by_tiles<Of<constant()>::template Run>(group, x, rows, out); });
}

}  // namespace gem::cpu::avx2

#endif
