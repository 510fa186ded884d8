// MLX's affine storage against known answers that were derived from its rules, not from this code.
#include "base/affine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "base/error.h"
#include "base/numbers.h"

namespace gem {
namespace {

// 32 codes q_j = (7 j + 3) mod 2^bits as 32-bit words, by hand from "code j at bits [j * bits, (j + 1) *
// bits)".
struct KnownWords {
  std::uint32_t bits;
  std::vector<std::uint32_t> words;
};
const KnownWords kKnown[] = {
    {2, {0x1b1b1b1b, 0x1b1b1b1b}},
    {3, {0x53977053, 0x70539770, 0x97705397}},
    {4, {0x4d6f81a3, 0xc5e7092b, 0x4d6f81a3, 0xc5e7092b}},
    {5, {0x4dfc4543, 0x78245ba3, 0x0753617d, 0x4b276cf4, 0xe55c7066}},
    {6, {0x9f611283, 0x90bbd2d9, 0xb2579740, 0x8f201eb3, 0x9cab91d5, 0x71538703}},
    {8, {0x18110a03, 0x342d261f, 0x5049423b, 0x6c655e57, 0x88817a73, 0xa49d968f, 0xc0b9b2ab, 0xdcd5cec7}},
};

TEST(Affine, CodesAreOneBitStream) {
  for (const KnownWords& known : kKnown) {
    std::vector<std::byte> stored(known.words.size() * 4 + 1);
    std::memcpy(stored.data() + 1, known.words.data(), stored.size() - 1);  // at an odd address
    std::uint8_t codes[32];
    unpack_codes(known.bits, stored.data() + 1, 0, 32, codes);
    for (unsigned j = 0; j < 32; ++j)
      EXPECT_EQ(codes[j], (7 * j + 3) % (1u << known.bits)) << known.bits << " bits, code " << j;
    std::uint8_t part[8];
    unpack_codes(known.bits, stored.data() + 1, 16, 8, part);
    EXPECT_TRUE(std::equal(part, part + 8, codes + 16));
    std::vector<std::byte> packed(known.words.size() * 4);
    pack_codes(known.bits, codes, 32, packed.data());
    EXPECT_EQ(std::memcmp(packed.data(), known.words.data(), packed.size()), 0) << known.bits;
  }
}

TEST(Affine, ValuesAreScaleTimesCodePlusBias) {
  for (const StorageType type : {StorageType::kBF16, StorageType::kF16, StorageType::kF32}) {
    // Two rows of 64 columns, groups of 32: scale and bias tell row and group.
    const std::vector<float> scales = {0.5f, -0.25f, 2.0f, 0.125f};
    const std::vector<float> biases = {1.0f, 3.0f, -7.5f, 0.0f};
    Affine affine{5, 32, type, nullptr, nullptr};
    std::vector<std::byte> s(4 * affine.scale_bytes() + 1);  // at odd addresses
    std::vector<std::byte> b(s.size());
    quantize(type, scales.data(), s.data() + 1, 4);
    quantize(type, biases.data(), b.data() + 1, 4);
    affine.scales = s.data() + 1;
    affine.biases = b.data() + 1;
    std::vector<std::uint8_t> q(128);
    for (std::size_t j = 0; j < 128; ++j) q[j] = static_cast<std::uint8_t>((11 * j + 5) % 32);
    std::vector<std::byte> codes(80);
    pack_codes(5, q.data(), 128, codes.data());
    for (std::size_t row = 0; row < 2; ++row) {
      float out[64];
      dequantize_affine(affine, codes.data() + row * affine.row_code_bytes(64), row, 64, out);
      for (std::size_t j = 0; j < 64; ++j) {
        const std::size_t group = row * 2 + j / 32;
        EXPECT_EQ(out[j], scales[group] * static_cast<float>(q[row * 64 + j]) + biases[group]);
      }
    }
  }
}

struct Rounded {
  float scale = 0;
  float bias = 0;
  std::vector<int> codes;
};
Rounded round_group(const std::vector<float>& x, std::uint32_t bits, StorageType type = StorageType::kBF16) {
  Affine affine{bits, static_cast<std::uint32_t>(x.size()), type, nullptr, nullptr};
  std::vector<std::byte> codes(affine.row_code_bytes(x.size()));
  std::byte scale[4];
  std::byte bias[4];
  quantize_affine(affine, x.data(), x.size(), codes.data(), scale, bias);
  std::vector<std::uint8_t> q(x.size());
  unpack_codes(bits, codes.data(), 0, x.size(), q.data());
  Rounded out;
  dequantize(type, scale, &out.scale, 1);
  dequantize(type, bias, &out.bias, 1);
  out.codes.assign(q.begin(), q.end());
  return out;
}

std::vector<float> bf16_group(const std::function<double(int)>& value) {
  std::vector<float> x;
  for (int j = 0; j < 32; ++j) x.push_back(bf16_to_f32(f32_to_bf16(static_cast<float>(value(j)))));
  return x;
}

// The table of the rule with ties to even and the true maximum.
TEST(Affine, RoundsByTheRuleOfMlxOnTheCpu) {
  Rounded r = round_group(bf16_group([](int j) { return (j - 20) / 15.0; }), 4);
  EXPECT_EQ(r.scale, 0.1337890625f);
  EXPECT_EQ(r.bias, -1.3359375f);
  EXPECT_EQ(r.codes, (std::vector<int>{0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  5,  6,  7,  7,  8,
                                       8, 9, 9, 9, 10, 11, 11, 11, 12, 12, 13, 13, 14, 15, 15, 15}));
  r = round_group(bf16_group([](int j) { return (j - 10) / 15.0; }), 4);
  EXPECT_EQ(r.scale, -0.1396484375f);
  EXPECT_EQ(r.bias, 1.3984375f);
  EXPECT_EQ(r.codes, (std::vector<int>{15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 10, 9, 9, 8, 8,
                                       7,  7,  6,  6,  5,  5,  4,  4,  3,  3,  2,  2,  1, 1, 0, 0}));
  r = round_group(bf16_group([](int j) { return (j - 20) / 16.0; }), 4);  // all ties
  EXPECT_EQ(r.scale, 0.125f);
  EXPECT_EQ(r.bias, -1.25f);
  EXPECT_EQ(r.codes, (std::vector<int>{0, 0, 1, 2,  2,  2,  3,  4,  4,  4,  5,  6,  6,  6,  7,  8,
                                       8, 8, 9, 10, 10, 10, 11, 12, 12, 12, 13, 14, 14, 14, 15, 15}));
  r = round_group(bf16_group([](int j) { return -(j + 8) / 32.0; }), 4);  // one sign: the true maximum
  EXPECT_EQ(r.scale, 0.06396484375f);
  EXPECT_EQ(r.bias, -1.21875f);
  EXPECT_EQ(r.codes[0], 15);
  EXPECT_EQ(r.codes[31], 0);
  r = round_group(std::vector<float>(32, 0.0f), 4);
  EXPECT_EQ(r.bias, 0.0f);
  EXPECT_EQ(r.codes, std::vector<int>(32, 0));
  EXPECT_EQ(r.scale, bf16_to_f32(f32_to_bf16(-1e-7f)));
}

TEST(Affine, EveryWidthStaysWithinAStep) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.05f);
  for (const std::uint32_t bits : {2u, 3u, 4u, 5u, 6u, 8u}) {
    for (const std::size_t group : {32u, 64u, 128u}) {
      std::vector<float> x(group);
      for (float& v : x) v = normal(random);
      const Rounded r = round_group(x, bits, StorageType::kF32);
      for (std::size_t i = 0; i < group; ++i) {
        const float back = r.scale * static_cast<float>(r.codes[i]) + r.bias;
        EXPECT_LE(std::fabs(back - x[i]), std::fabs(r.scale) * 1.01f) << bits << " " << group;
      }
    }
  }
}

TEST(Affine, AGroupThatIsNotFiniteIsNotHidden) {
  std::vector<float> x(32, 1.0f);
  x[7] = INFINITY;
  EXPECT_TRUE(std::isnan(round_group(x, 4).scale));
  x[7] = NAN;
  EXPECT_TRUE(std::isnan(round_group(x, 4).scale));
}

}  // namespace
}  // namespace gem
