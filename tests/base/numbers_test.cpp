// The 16-bit floats against their definitions, in long double arithmetic, over every value there is.
#include "base/numbers.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace gem {
namespace {

// Value of a binary floating-point format by its definition: sign, exponent field, mantissa field.
long double by_definition(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const auto mantissa = static_cast<long double>(bits & ((1u << mantissa_bits) - 1));
  const long double sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1.0L : 1.0L;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(1.0L + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
}

TEST(F16, EveryValueReadsAsDefined) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const float value = f16_to_f32(static_cast<std::uint16_t>(h));
    if ((h & 0x7c00u) == 0x7c00u) {
      if ((h & 0x3ffu) != 0) {
        EXPECT_TRUE(std::isnan(value)) << std::hex << h;
      } else {
        EXPECT_EQ(value, (h & 0x8000u) != 0 ? -INFINITY : INFINITY) << std::hex << h;
      }
      continue;
    }
    ASSERT_EQ(static_cast<long double>(value), by_definition(h, 5, 10)) << std::hex << h;
    ASSERT_EQ(std::signbit(value), (h & 0x8000u) != 0) << std::hex << h;
  }
}

TEST(F16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const std::uint16_t back = f32_to_f16(f16_to_f32(half));
    if ((h & 0x7c00u) == 0x7c00u && (h & 0x3ffu) != 0) {
      EXPECT_EQ(back & 0x7e00u, 0x7e00u) << std::hex << h;  // a quiet NaN
      EXPECT_EQ(back & 0x8000u, h & 0x8000u) << std::hex << h;
    } else {
      ASSERT_EQ(back, half) << std::hex << h;
    }
  }
}

// Between each two neighbours the middle goes to the even one and everything else to the nearer one. Middles
// of f16 (12 significant bits) and of bf16 (9) are exact in f32.
template <typename To, typename From>
void check_rounding(std::uint32_t finite_end, To to_16, From from_16) {
  for (std::uint32_t h = 0; h + 1 < finite_end; ++h) {
    const float low = from_16(static_cast<std::uint16_t>(h));
    const float high = from_16(static_cast<std::uint16_t>(h + 1));
    const auto middle = static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
    const std::uint32_t even = (h & 1u) == 0 ? h : h + 1;
    if (middle > low && middle < high) {  // the smallest bf16 subnormals have their middle in f32 too
      ASSERT_EQ(to_16(middle), even) << h;
      ASSERT_EQ(to_16(-middle), even | 0x8000u) << h;
      ASSERT_EQ(to_16(std::nextafter(middle, low)), h);
      ASSERT_EQ(to_16(std::nextafter(middle, high)), h + 1);
      ASSERT_EQ(to_16(-std::nextafter(middle, high)), (h + 1) | 0x8000u);
    }
    ASSERT_EQ(to_16(low), h);
  }
}

TEST(F16, RoundsToNearestTiesToEven) {
  check_rounding(0x7c00, f32_to_f16, f16_to_f32);
}

TEST(F16, OverflowsToInfinityFromTheMiddleAbove65504) {
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);  // the tie goes to the even neighbour, which is infinity
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(f32_to_f16(INFINITY), 0x7c00);
}

TEST(F16, TinyValuesBecomeSignedZero) {
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // the tie between 0 and 2^-24
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(f32_to_f16(-0x1p-26f), 0x8000);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0x0000);
}

TEST(F16, NanStaysQuietNan) {
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::quiet_NaN()) & 0x7e00u, 0x7e00u);
  EXPECT_EQ(f32_to_f16(std::bit_cast<float>(0x7f800001u)) & 0x7e00u,
            0x7e00u);  // signalling, payload in low bits
}

TEST(Bf16, EveryValueReadsAsDefined) {
  for (std::uint32_t b = 0; b < 0x10000; ++b) {
    const float value = bf16_to_f32(static_cast<std::uint16_t>(b));
    if ((b & 0x7f80u) == 0x7f80u) {
      EXPECT_EQ(std::isnan(value), (b & 0x7fu) != 0) << std::hex << b;
      EXPECT_EQ(std::isinf(value), (b & 0x7fu) == 0) << std::hex << b;
      continue;
    }
    ASSERT_EQ(static_cast<long double>(value), by_definition(b, 8, 7)) << std::hex << b;
  }
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t b = 0; b < 0x10000; ++b) {
    const std::uint16_t back = f32_to_bf16(bf16_to_f32(static_cast<std::uint16_t>(b)));
    const bool nan = (b & 0x7f80u) == 0x7f80u && (b & 0x7fu) != 0;
    ASSERT_EQ(back, nan ? b | 0x40u : b) << std::hex << b;
  }
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  check_rounding(0x7f80, f32_to_bf16, bf16_to_f32);
}

TEST(Bf16, OverflowsToInfinityAndKeepsNan) {
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-INFINITY), 0xff80);
  // A NaN whose payload lies in the lower half only must not become infinity.
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
}

}  // namespace
}  // namespace gem
