// Each storage type against blocks written out by hand from the format's definition (docs/models.md): the
// expected values are worked out in the comments, or by a formula over the element's number, never by the
// code under test.
#include "base/storage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/numbers.h"

namespace gem {
namespace {

using Bytes = std::vector<std::uint8_t>;

// f16 bit patterns used as scales: sign, exponent + 15, mantissa.
constexpr std::uint16_t kHalf = 0x3800;          // 0.5
constexpr std::uint16_t kQuarter = 0x3400;       // 0.25
constexpr std::uint16_t kMinusQuarter = 0xb400;  // -0.25
constexpr std::uint16_t kEighth = 0x3000;        // 0.125
constexpr std::uint16_t kTwo = 0x4000;           // 2
constexpr std::uint16_t kThree = 0x4200;         // 3 = 1.5 * 2
constexpr std::uint16_t kMinus1_25 = 0xbd00;     // -1.25
constexpr std::uint16_t kSubnormal = 0x0001;     // 2^-24
constexpr std::uint16_t kNan = 0x7e00;
constexpr std::uint16_t kInfinity = 0x7c00;

void put16(Bytes& out, std::uint16_t value) {
  out.push_back(static_cast<std::uint8_t>(value & 0xff));
  out.push_back(static_cast<std::uint8_t>(value >> 8));
}

std::vector<float> expand(StorageType type, const Bytes& bytes, std::size_t elements) {
  EXPECT_EQ(bytes.size(), storage_bytes(type, elements));
  std::vector<float> out(elements, -12345.0f);
  dequantize(type, bytes.data(), out.data(), elements);
  return out;
}

std::vector<std::uint8_t> quantized(StorageType type, const std::vector<float>& values) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(storage_bytes(type, values.size()).value()));
  quantize(type, values.data(), out.data(), values.size());
  return out;
}

// Byte j holds j in its low nibble and 15 - j in its high nibble.
void put_counting_nibbles(Bytes& out) {
  for (unsigned j = 0; j < 16; ++j) out.push_back(static_cast<std::uint8_t>(j | ((15 - j) << 4)));
}

TEST(Storage, TableMatchesTheFormat) {
  struct Row {
    const char* name;
    std::uint32_t id, elements, bytes;
  };
  for (const Row& row : std::initializer_list<Row>{{"F32", 0, 1, 4},
                                                   {"F16", 1, 1, 2},
                                                   {"Q4_0", 2, 32, 18},
                                                   {"Q4_1", 3, 32, 20},
                                                   {"Q5_0", 6, 32, 22},
                                                   {"Q5_1", 7, 32, 24},
                                                   {"Q8_0", 8, 32, 34},
                                                   {"Q4_K", 12, 256, 144},
                                                   {"Q5_K", 13, 256, 176},
                                                   {"Q6_K", 14, 256, 210},
                                                   {"BF16", 30, 1, 2}}) {
    const auto type = storage_from_name(row.name);
    ASSERT_TRUE(type) << row.name;
    EXPECT_EQ(storage_from_ggml(row.id), type) << row.name;
    EXPECT_EQ(storage_info(*type).name, row.name);
    EXPECT_EQ(storage_info(*type).ggml_id, row.id);
    EXPECT_EQ(storage_info(*type).block_elements, row.elements) << row.name;
    EXPECT_EQ(storage_info(*type).block_bytes, row.bytes) << row.name;
  }
  for (const std::uint32_t id : {4u, 5u, 9u, 10u, 15u, 20u, 24u, 28u, 31u, 39u, 1000u})
    EXPECT_FALSE(storage_from_ggml(id)) << id;
  EXPECT_FALSE(storage_from_name("q4_0"));
  EXPECT_FALSE(storage_from_name(""));
}

TEST(Storage, BytesOfElements) {
  EXPECT_EQ(storage_bytes(StorageType::kQ4_0, 0), 0u);
  EXPECT_EQ(storage_bytes(StorageType::kQ4_0, 64), 36u);
  EXPECT_EQ(storage_bytes(StorageType::kQ4_0, 33), std::nullopt);
  EXPECT_EQ(storage_bytes(StorageType::kQ6_K, 256 * 3), 630u);
  EXPECT_EQ(storage_bytes(StorageType::kQ6_K, 32), std::nullopt);
  EXPECT_EQ(storage_bytes(StorageType::kF32, std::uint64_t{1} << 62), std::nullopt);  // 2^64 bytes
  EXPECT_EQ(storage_bytes(StorageType::kF16, std::uint64_t{1} << 62), std::uint64_t{1} << 63);
  EXPECT_EQ(storage_bytes(StorageType::kQ8_0, ~std::uint64_t{0} - 31), std::nullopt);  // 34 (2^59 - 1) > 2^64
}

TEST(Storage, FloatsReadAsTheyAre) {
  const std::array<float, 3> values = {1.5f, -0.0f, 3.25e-40f};
  Bytes raw(12);
  std::memcpy(raw.data(), values.data(), 12);
  const auto read = expand(StorageType::kF32, raw, 3);
  EXPECT_EQ(std::memcmp(read.data(), values.data(), 12), 0);
  // 0x3e00 = 1.5; 0x8001 = -2^-24. bf16 0x40a0 = 5; 0xbf80 = -1.
  EXPECT_EQ(expand(StorageType::kF16, {0x00, 0x3e, 0x01, 0x80}, 2), (std::vector<float>{1.5f, -0x1p-24f}));
  EXPECT_EQ(expand(StorageType::kBF16, {0xa0, 0x40, 0x80, 0xbf}, 2), (std::vector<float>{5.0f, -1.0f}));
}

TEST(Storage, Q4_0) {
  Bytes block;
  put16(block, kHalf);
  put_counting_nibbles(block);
  put16(block, kMinusQuarter);
  put_counting_nibbles(block);
  const auto y = expand(StorageType::kQ4_0, block, 64);
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(y[static_cast<std::size_t>(j)], 0.5f * static_cast<float>(j - 8));
    EXPECT_EQ(y[static_cast<std::size_t>(j + 16)], 0.5f * static_cast<float>(7 - j));  // (15 - j) - 8
    EXPECT_EQ(y[static_cast<std::size_t>(j + 32)], -0.25f * static_cast<float>(j - 8));
    EXPECT_EQ(y[static_cast<std::size_t>(j + 48)], -0.25f * static_cast<float>(7 - j));
  }
}

TEST(Storage, Q4_0SubnormalScale) {
  Bytes block;
  put16(block, kSubnormal);
  for (int j = 0; j < 16; ++j) block.push_back(0xf0);  // low 0: -8, high 15: 7
  const auto y = expand(StorageType::kQ4_0, block, 32);
  EXPECT_EQ(y[0], -8 * 0x1p-24f);
  EXPECT_EQ(y[31], 7 * 0x1p-24f);
}

TEST(Storage, Q4_1) {
  Bytes block;
  put16(block, kHalf);
  put16(block, kMinus1_25);
  put_counting_nibbles(block);
  const auto y = expand(StorageType::kQ4_1, block, 32);
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(y[static_cast<std::size_t>(j)], 0.5f * static_cast<float>(j) - 1.25f);
    EXPECT_EQ(y[static_cast<std::size_t>(j + 16)], 0.5f * static_cast<float>(15 - j) - 1.25f);
  }
}

// Fifth bits of elements 1, 16 and 31: 2^1 + 2^16 + 2^31 = 0x80010002, little-endian.
void put_three_fifth_bits(Bytes& out) {
  out.insert(out.end(), {0x02, 0x00, 0x01, 0x80});
}

TEST(Storage, Q5_0) {
  Bytes block;
  put16(block, kTwo);
  put_three_fifth_bits(block);
  for (int j = 0; j < 16; ++j) block.push_back(0x73);  // low 3, high 7
  const auto y = expand(StorageType::kQ5_0, block, 32);
  for (std::size_t i = 0; i < 32; ++i) {
    // 2 (3 - 16) = -26, 2 (7 - 16) = -18; with the fifth bit 2 * 3 = 6 and 2 * 7 = 14.
    const float expected = i == 1 ? 6.0f : i == 16 || i == 31 ? 14.0f : i < 16 ? -26.0f : -18.0f;
    EXPECT_EQ(y[i], expected) << i;
  }
}

TEST(Storage, Q5_1) {
  Bytes block;
  put16(block, kEighth);
  put16(block, kThree);
  put_three_fifth_bits(block);
  for (int j = 0; j < 16; ++j) block.push_back(0x73);
  const auto y = expand(StorageType::kQ5_1, block, 32);
  for (std::size_t i = 0; i < 32; ++i) {
    // 3/8 + 3, 7/8 + 3; with the fifth bit 19/8 + 3 and 23/8 + 3.
    const float expected = i == 1 ? 5.375f : i == 16 || i == 31 ? 5.875f : i < 16 ? 3.375f : 3.875f;
    EXPECT_EQ(y[i], expected) << i;
  }
}

TEST(Storage, Q8_0) {
  Bytes block;
  put16(block, kMinusQuarter);
  for (int j = 0; j < 32; ++j) block.push_back(static_cast<std::uint8_t>(8 * j - 128));  // -128 ... 120
  const auto y = expand(StorageType::kQ8_0, block, 32);
  for (int j = 0; j < 32; ++j)
    EXPECT_EQ(y[static_cast<std::size_t>(j)], -0.25f * static_cast<float>(8 * j - 128));
}

// Scales 1 2 3 63 17 34 51 60 and minima 5 6 7 62 18 33 48 63 of the sub-blocks, packed by hand:
//   bytes 0-3:  scale b     | (scale b+4 >> 4) << 6:   1|1<<6  2|2<<6  3|3<<6  63|3<<6
//   bytes 4-7:  minimum b   | (minimum b+4 >> 4) << 6: 5|1<<6  6|2<<6  7|3<<6  62|3<<6
//   bytes 8-11: scale b+4 & 15 | (minimum b+4 & 15) << 4: 1|2<<4  2|1<<4  3|0<<4  12|15<<4
constexpr std::array<std::uint8_t, 12> kPackedScales = {65,  130, 195,  255,  69,   134,
                                                        199, 254, 0x21, 0x12, 0x03, 0xfc};
constexpr std::array<int, 8> kScales = {1, 2, 3, 63, 17, 34, 51, 60};
constexpr std::array<int, 8> kMinima = {5, 6, 7, 62, 18, 33, 48, 63};

// Byte l of group g holds (l + g) mod 16 for sub-block 2g and its complement to 15 for sub-block 2g + 1.
void put_group_nibbles(Bytes& out) {
  for (unsigned g = 0; g < 4; ++g)
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned n = (l + g) % 16;
      out.push_back(static_cast<std::uint8_t>(n | ((15 - n) << 4)));
    }
}
int group_nibble(int sub_block, int l) {
  const int n = (l + sub_block / 2) % 16;
  return sub_block % 2 == 0 ? n : 15 - n;
}

TEST(Storage, Q4_K) {
  Bytes block;
  put16(block, kHalf);
  put16(block, kQuarter);
  block.insert(block.end(), kPackedScales.begin(), kPackedScales.end());
  put_group_nibbles(block);
  const auto y = expand(StorageType::kQ4_K, block, 256);
  for (int b = 0; b < 8; ++b)
    for (int l = 0; l < 32; ++l) {
      const auto i = static_cast<std::size_t>(b);
      const double expected = 0.5 * kScales[i] * group_nibble(b, l) - 0.25 * kMinima[i];
      EXPECT_EQ(y[static_cast<std::size_t>(32 * b + l)], static_cast<float>(expected)) << b << ' ' << l;
    }
  EXPECT_EQ(y[0], -1.25f);            // n = 0: -0.25 * 5
  EXPECT_EQ(y[32 * 7 + 1], 314.25f);  // n = 15 - (1 + 3) = 11: 0.5 * 60 * 11 - 0.25 * 63
}

TEST(Storage, Q5_K) {
  Bytes block;
  put16(block, kHalf);
  put16(block, kQuarter);
  block.insert(block.end(), kPackedScales.begin(), kPackedScales.end());
  // Bit b of byte l: element l of sub-block b has its fifth bit set, here where l + b is a multiple of 3.
  for (int l = 0; l < 32; ++l) {
    int bits = 0;
    for (int b = 0; b < 8; ++b)
      if ((l + b) % 3 == 0) bits += 1 << b;
    block.push_back(static_cast<std::uint8_t>(bits));
  }
  put_group_nibbles(block);
  const auto y = expand(StorageType::kQ5_K, block, 256);
  for (int b = 0; b < 8; ++b)
    for (int l = 0; l < 32; ++l) {
      const auto i = static_cast<std::size_t>(b);
      const int n = group_nibble(b, l) + ((l + b) % 3 == 0 ? 16 : 0);
      const double expected = 0.5 * kScales[i] * n - 0.25 * kMinima[i];
      EXPECT_EQ(y[static_cast<std::size_t>(32 * b + l)], static_cast<float>(expected)) << b << ' ' << l;
    }
}

TEST(Storage, Q6_K) {
  // Element e holds the 6-bit value v(e) = (7 e + 5 floor(e / 32) + 3) mod 64 and belongs to scale e / 16,
  // which is e / 16 - 8. Laid out as the format says: within each half of 128 elements, low nibbles of
  // elements l, l+32 then l+64, l+96 above them; upper pairs of the four in one byte.
  const auto v = [](unsigned e) { return (7 * e + 5 * (e / 32) + 3) % 64; };
  Bytes block(210);
  for (unsigned t = 0; t < 2; ++t)
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned e = 128 * t + l;
      block[64 * t + l] = static_cast<std::uint8_t>(v(e) % 16 + 16 * (v(e + 64) % 16));
      block[64 * t + 32 + l] = static_cast<std::uint8_t>(v(e + 32) % 16 + 16 * (v(e + 96) % 16));
      block[128 + 32 * t + l] = static_cast<std::uint8_t>(v(e) / 16 + 4 * (v(e + 32) / 16) +
                                                          16 * (v(e + 64) / 16) + 64 * (v(e + 96) / 16));
    }
  for (int i = 0; i < 16; ++i) block[static_cast<std::size_t>(192 + i)] = static_cast<std::uint8_t>(i - 8);
  block[208] = kQuarter & 0xff;
  block[209] = kQuarter >> 8;
  const auto y = expand(StorageType::kQ6_K, block, 256);
  for (unsigned e = 0; e < 256; ++e) {
    const double expected = 0.25 * (static_cast<int>(e / 16) - 8) * (static_cast<int>(v(e)) - 32);
    EXPECT_EQ(y[e], static_cast<float>(expected)) << e;
  }
  EXPECT_EQ(y[0], 58.0f);  // 0.25 * -8 * (3 - 32)
}

TEST(Storage, ScalesOfNanAndInfinityStayVisible) {
  // Case 29: a broken scale must show in the values, not vanish.
  for (const StorageType type : {StorageType::kQ4_0, StorageType::kQ5_0, StorageType::kQ8_0}) {
    Bytes block(storage_info(type).block_bytes, 0x11);
    block[0] = kNan & 0xff;
    block[1] = kNan >> 8;
    for (const float y : expand(type, block, 32)) EXPECT_TRUE(std::isnan(y));
    block[0] = kInfinity & 0xff;
    block[1] = kInfinity >> 8;
    for (const float y : expand(type, block, 32)) EXPECT_FALSE(std::isfinite(y));
  }
}

TEST(Storage, RefusesPartsOfBlocksAndTypesItDoesNotWrite) {
  std::array<float, 256> values{};
  std::array<std::uint8_t, 256> bytes{};
  EXPECT_THROW(dequantize(StorageType::kQ4_0, bytes.data(), values.data(), 31), Error);
  EXPECT_THROW(quantize(StorageType::kQ8_0, values.data(), bytes.data(), 33), Error);
  EXPECT_THROW(quantize(StorageType::kQ6_K, values.data(), bytes.data(), 256), Error);
  EXPECT_FALSE(can_quantize(StorageType::kQ4_K));
  EXPECT_TRUE(can_quantize(StorageType::kQ4_0));
}

TEST(Quantize, Q4_0MapsTheLargestMagnitudeToMinusEight) {
  // x_i = i/4 - 4: the extreme is -4, so d = 0.5 and the nibble is trunc(x / 0.5 + 8.5) = trunc(i/2 + 0.5),
  // at most 15.
  std::vector<float> x(32);
  for (std::size_t i = 0; i < 32; ++i) x[i] = static_cast<float>(i) / 4 - 4;
  const auto block = quantized(StorageType::kQ4_0, x);
  ASSERT_EQ(block.size(), 18u);
  EXPECT_EQ(block[0] | block[1] << 8, kHalf);
  for (unsigned j = 0; j < 16; ++j) {
    EXPECT_EQ(block[2 + j] & 15u, (j + 1) / 2) << j;
    EXPECT_EQ(block[2 + j] >> 4, std::min(15u, (j + 17) / 2)) << j;
  }
}

TEST(Quantize, Q4_0ScaleIsNegativeWhenTheExtremeIsPositive) {
  std::vector<float> x(32, 0.0f);
  x[5] = 2.0f;    // the extreme: d = -0.25
  x[6] = -2.0f;   // as large, but later
  x[7] = -1.75f;  // -1.75 / -0.25 = 7
  const auto block = quantized(StorageType::kQ4_0, x);
  EXPECT_EQ(block[0] | block[1] << 8, kMinusQuarter);
  EXPECT_EQ(block[2 + 5] & 15, 0);   // -8 times -0.25 is 2
  EXPECT_EQ(block[2 + 6] & 15, 15);  // 8 is out of range: 7 times -0.25 is -1.75
  EXPECT_EQ(block[2 + 7] & 15, 15);
  EXPECT_EQ(block[2 + 0], 0x88);  // zeros
  const auto y = expand(StorageType::kQ4_0, block, 32);
  EXPECT_EQ(y[5], 2.0f);
  EXPECT_EQ(y[6], -1.75f);
  EXPECT_EQ(y[0], 0.0f);
}

TEST(Quantize, Q8_0RoundsHalfAwayFromZero) {
  std::vector<float> x(32, 0.0f);
  x[0] = -127.0f;  // d = 1
  x[1] = 2.5f;
  x[2] = -2.5f;
  x[3] = 0.5f;
  x[4] = 126.49f;
  const auto block = quantized(StorageType::kQ8_0, x);
  EXPECT_EQ(block[0] | block[1] << 8, 0x3c00);
  const auto q = [&](std::size_t i) { return static_cast<int>(static_cast<std::int8_t>(block[2 + i])); };
  EXPECT_EQ(q(0), -127);
  EXPECT_EQ(q(1), 3);
  EXPECT_EQ(q(2), -3);
  EXPECT_EQ(q(3), 1);
  EXPECT_EQ(q(4), 126);
  EXPECT_EQ(q(5), 0);
}

TEST(Quantize, Q8_0DividesByTheScaleBeforeItIsRoundedToF16) {
  // d = 1/127 = 2^-7 * 1.00787...; 1.00787 * 1024 = 1032.06, so f16 keeps 1032: 0x2008. By the f16 scale,
  // x[1] would round to 64.
  std::vector<float> x(32, 0.0f);
  x[0] = 1.0f;
  x[1] = 0.49998f;  // 63.4975 steps of 1/127, 63.5014 steps of the f16 scale (1032 * 2^-17)
  const auto block = quantized(StorageType::kQ8_0, x);
  EXPECT_EQ(block[0] | block[1] << 8, 0x2008);
  EXPECT_EQ(block[2], 127);
  EXPECT_EQ(block[3], 63);
}

TEST(Quantize, ZerosAndTinyValuesReadAsZero) {
  for (const StorageType type : {StorageType::kQ4_0, StorageType::kQ8_0})
    for (const float tiny : {0.0f, std::numeric_limits<float>::denorm_min(), 1e-39f, 1e-37f, -1e-37f}) {
      const auto block = quantized(type, std::vector<float>(32, tiny));
      for (const float y : expand(type, block, 32)) EXPECT_EQ(y, 0.0f) << tiny;
    }
}

TEST(Quantize, NanAndInfinityAreNotMadeIntoWeights) {
  for (const StorageType type : {StorageType::kQ4_0, StorageType::kQ8_0})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
      std::vector<float> x(32, 1.0f);
      x[9] = bad;
      for (const float y : expand(type, quantized(type, x), 32)) EXPECT_TRUE(std::isnan(y));
    }
}

TEST(Quantize, RoundTripErrorIsWithinTheStep) {
  // A fixed sequence of 1,024 values in [-1, 1).
  std::vector<float> x(1024);
  std::uint32_t state = 1;
  for (float& value : x) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  for (const StorageType type : {StorageType::kQ4_0, StorageType::kQ8_0}) {
    const auto y = expand(type, quantized(type, x), x.size());
    for (std::size_t block = 0; block < x.size(); block += 32) {
      float largest = 0;
      for (std::size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
      // Q4_0 clips the far end by up to one step; both lose half a step and the rounding of d (2^-11 of the
      // value).
      const float step = type == StorageType::kQ4_0 ? largest / 8 : largest / 254;
      for (std::size_t i = block; i < block + 32; ++i)
        ASSERT_NEAR(x[i], y[i], step + largest * 0x1p-11f + 1e-6f) << storage_info(type).name << ' ' << i;
    }
  }
}

TEST(Quantize, SixteenBitTypesRoundLikeTheConversions) {
  const std::vector<float> x = {1.0f, 1.00048828125f, -65520.0f,
                                3.0e38f};  // 1 + 2^-11: the tie above 1 in f16
  const auto half = quantized(StorageType::kF16, x);
  EXPECT_EQ(half, (std::vector<std::uint8_t>{0x00, 0x3c, 0x00, 0x3c, 0x00, 0xfc, 0x00, 0x7c}));
  const auto brain =
      quantized(StorageType::kBF16, {1.0f, 1.00390625f, 1.01171875f});  // 1 + 2^-8, 1 + 3 * 2^-8
  EXPECT_EQ(brain, (std::vector<std::uint8_t>{0x80, 0x3f, 0x80, 0x3f, 0x82, 0x3f}));
  const auto full = quantized(StorageType::kF32, {1.5f});
  EXPECT_EQ(full, (std::vector<std::uint8_t>{0x00, 0x00, 0xc0, 0x3f}));
}

}  // namespace
}  // namespace gem
