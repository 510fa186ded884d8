// AVX-512 products of Q4_K, Q5_K and Q6_K groups with few rows, decoded in registers
// (backend/cpu/super_blocks.h says how they lie). A block goes through the sums that `tile` forms of its
// panel, so the bits are the same.
#if defined(__x86_64__)

#include "backend/cpu/super_avx512.h"

#include "backend/cpu/registers_avx512.h"
#include "backend/cpu/super_blocks.h"

namespace gem::cpu::avx512 {
namespace {

__m512 sixteen_bytes(const std::byte* p, bool is_signed) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
}

// Nibble i of each word, with the bits above it where the type has any.
template <StorageType kType, unsigned kNibble>
__m512i code(__m512i words, __m512i bits) {
  constexpr int kAbove = bits_above(kType);
  const __m512i nibble = _mm512_and_si512(_mm512_srli_epi16(words, 4 * kNibble), _mm512_set1_epi16(15));
  if constexpr (kAbove == 0) return nibble;
  constexpr unsigned kFrom = 4 * ((kNibble + 1) % 4);
  __m512i moved;
  if constexpr (kFrom < 4) {
    moved = _mm512_slli_epi16(bits, 4 - kFrom);
  } else {
    moved = _mm512_srli_epi16(bits, kFrom - 4);
  }
  constexpr int kOr = 0xf8;  // a | (b & c)
  return _mm512_ternarylogic_epi64(nibble, moved, _mm512_set1_epi16(((1 << kAbove) - 1) << 4), kOr);
}

template <StorageType kType>
constexpr bool kSix = kType == StorageType::kQ6_K;

// What a super-block's blocks are scaled by.
template <StorageType kType>
class Scales {
 public:
  explicit Scales(const std::byte* super)
      : factors_(super + super_factors(kType)),
        d_(sixteen_halves(super)),
        dmin_(kSix<kType> ? d_ : sixteen_halves(super + 2 * kGroupRows)) {}
  // Of part p of the super-block: block p, or half p % 2 of block p / 2.
  __m512 scale(std::size_t p) const {
    return _mm512_mul_ps(d_, sixteen_bytes(factors_ + p * kGroupRows, kSix<kType>));
  }
  __m512 minimum(std::size_t block) const {
    return _mm512_mul_ps(dmin_, sixteen_bytes(factors_ + (8 + block) * kGroupRows, false));
  }

 private:
  const std::byte* factors_;
  __m512 d_;
  __m512 dmin_;
};

// The bits above the nibbles of a part's first vector.
template <StorageType kType>
__m512i first_bits(const std::byte* super, std::size_t block, std::size_t part) {
  if constexpr (bits_above(kType) == 0) return _mm512_setzero_si512();
  return load(super + super_layout(kType).bits(block) + 64 * part);
}

// Q6_K's codes 0 to 63 are 32 too much.
template <StorageType kType>
__m512i start(const Activations& x, std::size_t row, std::size_t block, std::size_t part) {
  if constexpr (kSix<kType>) return _mm512_set1_epi32(-32 * x.half_sum(row, block, part));
  return _mm512_setzero_si512();
}

// Puts the bits above a vector's nibbles over them where they stand, and goes on to the next vector's.
template <StorageType kType>
void put_above(__m512i& bits, __m512i (&w)[4]) {
  constexpr int kAbove = bits_above(kType);
  constexpr int kOnes = (1 << kAbove) - 1;
  if constexpr (kAbove == 0) return;
  constexpr int kOr = 0xf8;  // a | (b & c)
  for (int i = 0; i < 3; ++i)
    w[i] = _mm512_ternarylogic_epi64(w[i], bits, _mm512_set1_epi16(static_cast<short>(kOnes << (4 * i + 4))),
                                     kOr);
  w[3] = _mm512_ternarylogic_epi64(w[3], _mm512_slli_epi16(bits, 4), _mm512_set1_epi16(kOnes << 4), kOr);
  bits = _mm512_srli_epi16(bits, kAbove);
}

template <StorageType kType>
void one_row(const std::byte* super, const Activations& x, float* out) {
  constexpr SuperLayout layout = super_layout(kType);
  const std::int16_t* q = x.q;
  __m512 y = _mm512_setzero_ps();
  for (std::size_t b = 0; b < x.blocks; super += layout.bytes()) {
    const Scales<kType> scales(super);
    prefetch(super, (layout.scales + 63) / 64);
    for (std::size_t block = 0; block < 8; ++block, ++b) {
      const std::byte* codes = super + layout.nibbles(block);
      prefetch(codes, 4);
      if (layout.high != 0) prefetch(super + layout.bits(block), layout.high / 64);
#pragma GCC unroll 2
      for (unsigned part = 0; part < kBlockParts<kType>; ++part) {
        __m512i bits = first_bits<kType>(super, block, part);
        const __m512i dot = add_nibbles<kPartVectors<kType>>(
            codes, q, start<kType>(x, 0, b, part), [&bits](__m512i(&w)[4]) { put_above<kType>(bits, w); });
        y = add_block(dot, scales.scale(kBlockParts<kType> * block + part), x.scale[b], y);
        codes += 64 * kPartVectors<kType>;
        q += 8 * kPartVectors<kType>;
      }
      if constexpr (!kSix<kType>)
        y = _mm512_fnmadd_ps(scales.minimum(block), _mm512_set1_ps(x.scaled_sum(0, b)), y);
    }
  }
  _mm512_storeu_ps(out, y);
}

template <StorageType kType, unsigned R>
void rows_super(const std::byte* super, const Activations& x, float* out) {
  if constexpr (R == 1) return one_row<kType>(super, x, out);
  constexpr SuperLayout layout = super_layout(kType);
  const std::int16_t* q = x.q;
  __m512 y[R];
  for (unsigned r = 0; r < R; ++r) y[r] = _mm512_setzero_ps();
  for (std::size_t b = 0; b < x.blocks; super += layout.bytes()) {
    const Scales<kType> scales(super);
    for (std::size_t block = 0; block < 8; ++block, ++b) {
      const std::byte* codes = super + layout.nibbles(block);
      for (unsigned part = 0; part < kBlockParts<kType>; ++part) {
        Dots<R, kChains<R>> dots;
        dots.clear();
        for (unsigned r = 0; kSix<kType> && r < R; ++r) dots.chain[r][0] = start<kType>(x, r, b, part);
        __m512i bits = first_bits<kType>(super, block, part);
#pragma GCC unroll 4
        for (unsigned v = 0; v < kPartVectors<kType>; ++v, codes += 64, q += 8) {
          const __m512i words = load(codes);
          const __m512i w[4] = {code<kType, 0>(words, bits), code<kType, 1>(words, bits),
                                code<kType, 2>(words, bits), code<kType, 3>(words, bits)};
          for (unsigned i = 0; i < 4; ++i) {
            for (unsigned r = 0; r < R; ++r) dots.add(r, i, w[i], q + r * x.stride + 2 * i);
          }
          bits = _mm512_srli_epi16(bits, bits_above(kType));
        }
        const __m512 scale = scales.scale(kBlockParts<kType> * block + part);
        for (unsigned r = 0; r < R; ++r)
          y[r] = add_block(dots.sum(r), scale, x.scale[r * x.blocks + b], y[r]);
      }
      if constexpr (!kSix<kType>) {
        const __m512 minimum = scales.minimum(block);
        for (unsigned r = 0; r < R; ++r)
          y[r] = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(x.scaled_sum(r, b)), y[r]);
      }
    }
  }
  for (unsigned r = 0; r < R; ++r) _mm512_storeu_ps(out + r * kGroupRows, y[r]);
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

}  // namespace gem::cpu::avx512

#endif
