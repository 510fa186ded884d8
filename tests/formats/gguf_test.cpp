// The GGUF reader against files that are malformed in every way of the hardening list (cases 1-23; 24-28
// concern the model and the tokenizer and are tested there, 29 in base/storage_test, 30 in gguf_split_test),
// and sound ones.
#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/allocation_watch.h"
#include "formats/gguf_builder.h"
#include "golden.h"

namespace gem {
namespace {

using testing::AllocationWatch;
using testing::GgufBuilder;
using testing::sound_gguf;
using B = GgufBuilder;

constexpr std::uint64_t kMaxU64 = std::numeric_limits<std::uint64_t>::max();

// A copy of exactly the image's size, so that a sanitizer sees a read beyond its end.
struct Image {
  explicit Image(const std::string& text) : bytes(text.size()) {
    if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  }
  std::vector<std::byte> bytes;
};

// Reads `text` and expects a refusal that names the file and each of `parts`, at a cost bounded by the file.
void expect_refused(const std::string& text, std::initializer_list<std::string> parts) {
  const Image image(text);
  Checkpoint checkpoint;
  const std::string where = "broken.gguf";
  std::size_t largest = 0;
  try {
    const AllocationWatch watch;
    try {
      read_gguf(image.bytes, where, checkpoint);
    } catch (...) {
      largest = watch.largest();
      throw;
    }
    ADD_FAILURE() << "the file was accepted; expected a refusal with: " << *parts.begin();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile) << error.what();
    const std::string message = error.what();
    EXPECT_EQ(message.find(where + ": "), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
  EXPECT_LE(largest, 4 * text.size() + 4096) << "one allocation of " << largest << " bytes";
}

struct Opened {
  Image image;
  Checkpoint checkpoint;
  explicit Opened(const std::string& text) : image(text) { read_gguf(image.bytes, "sound.gguf", checkpoint); }
};

std::string with_key(const GgufBuilder& body) {
  return GgufBuilder(0, 1).bytes() + body.bytes() + std::string(32, '\0');
}

std::string with_tensor(const GgufBuilder& info, std::size_t data = 64) {
  return GgufBuilder(1, 0).text(info.bytes()).align().zeros(data).bytes();
}

// ---- Sound files ----

TEST(Gguf, ReadsKeysAndTensors) {
  for (const std::uint32_t version : {2u, 3u}) {
    const Opened opened(sound_gguf(version));
    const Checkpoint& c = opened.checkpoint;
    EXPECT_EQ(c.string("general.architecture"), "gemma4");
    EXPECT_EQ(c.integer("gemma4.block_count"), 12);
    ASSERT_EQ(c.tensors().size(), 2u);
    EXPECT_EQ(c.tensors()[0].name, "a");
    EXPECT_EQ(c.tensors()[0].type, StorageType::kF32);
    EXPECT_EQ(c.tensors()[0].shape, (std::vector<std::uint64_t>{3}));
    float values[3];
    ASSERT_EQ(c.tensors()[0].bytes.size(), sizeof values);
    std::memcpy(values, c.tensors()[0].bytes.data(), sizeof values);
    EXPECT_EQ(values[2], 3.0f);
    const TensorView* b = c.tensor("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->shape, (std::vector<std::uint64_t>{2, 64}));  // ne {64, 2}: two rows of 64
    EXPECT_EQ(b->bytes.size(), 72u);
    EXPECT_EQ(b->bytes.data() + 72, opened.image.bytes.data() + opened.image.bytes.size());
    EXPECT_EQ(c.tensor("c"), nullptr);
  }
}

TEST(Gguf, ReadsEveryValueType) {
  B b(0, 22);
  b.key("u8", B::U8, std::uint8_t{255})
      .key("i8", B::I8, std::int8_t{-128})
      .key("u16", B::U16, std::uint16_t{65535});
  b.key("i16", B::I16, std::int16_t{-32768}).key("u32", B::U32, std::uint32_t{4294967295u});
  b.key("i32", B::I32, std::int32_t{-5}).key("f32", B::F32, 0.5f).key("true", B::BOOL, std::uint8_t{1});
  b.key("false", B::BOOL, std::uint8_t{0}).key_string("text", "h\xc3\xa9").key_string("empty", "");
  b.key("u64", B::U64, std::uint64_t{7}).key("u64 max", B::U64, kMaxU64).key("i64", B::I64, std::int64_t{-1});
  b.key("f64", B::F64, 1e-300);
  b.array("ints", B::I16, 2).put(std::int16_t{-1}).put(std::int16_t{2});
  b.array("u64s", B::U64, 1).put(std::uint64_t{9}).array("u64s max", B::U64, 1).put(kMaxU64);
  b.array("floats", B::F32, 2).put(1.5f).put(-2.0f);
  b.array("bools", B::BOOL, 3).put(std::uint8_t{1}).put(std::uint8_t{0}).put(std::uint8_t{1});
  b.array("texts", B::STR, 2)
      .string("a")
      .string(std::string_view("\0\xff", 2));  // token bytes need not be text
  b.array("nothing", B::I32, 0);
  const Opened opened(b.bytes());
  const Checkpoint& c = opened.checkpoint;
  EXPECT_EQ(c.integer("u8"), 255);
  EXPECT_EQ(c.integer("i8"), -128);
  EXPECT_EQ(c.integer("u16"), 65535);
  EXPECT_EQ(c.integer("i16"), -32768);
  EXPECT_EQ(c.integer("u32"), 4294967295);
  EXPECT_EQ(c.integer("i32"), -5);
  EXPECT_EQ(c.number("f32"), 0.5);
  EXPECT_EQ(c.number("i32"), -5.0);
  EXPECT_EQ(c.boolean("true"), true);
  EXPECT_EQ(c.boolean("false"), false);
  EXPECT_EQ(c.string("text"), "h\xc3\xa9");
  EXPECT_EQ(c.string("empty"), "");
  EXPECT_EQ(c.integer("u64"), 7);
  EXPECT_EQ(std::get<std::uint64_t>(*c.find("u64 max")), kMaxU64);
  EXPECT_EQ(c.integer("i64"), -1);
  EXPECT_EQ(c.number("f64"), 1e-300);
  EXPECT_EQ(c.integers("ints"), (std::vector<std::int64_t>{-1, 2}));
  EXPECT_EQ(c.integers("u64s"), (std::vector<std::int64_t>{9}));
  EXPECT_EQ(c.integers("u8"), (std::vector<std::int64_t>{255}));  // a scalar counts as an array of one
  EXPECT_THROW(c.integers("u64s max"), Error);
  EXPECT_EQ(std::get<std::vector<double>>(std::get<MetadataArray>(*c.find("floats"))),
            (std::vector<double>{1.5, -2.0}));
  EXPECT_EQ(c.booleans("bools"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(c.booleans("true"), (std::vector<bool>{true}));
  ASSERT_NE(c.strings("texts"), nullptr);
  EXPECT_EQ((*c.strings("texts"))[1], std::string_view("\0\xff", 2));
  EXPECT_EQ(c.integers("nothing"), std::vector<std::int64_t>{});
}

TEST(Gguf, LookUpsOfAnotherTypeNameTheKey) {
  const Opened opened(with_key(B().key_string("gemma4.block_count", "twelve")));
  const Checkpoint& c = opened.checkpoint;
  const auto expect_named = [](auto look_up) {
    try {
      look_up();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("gemma4.block_count is a string; expected a"),
                std::string::npos)
          << error.what();
    }
  };
  expect_named([&] { c.integer("gemma4.block_count"); });
  expect_named([&] { c.number("gemma4.block_count"); });
  expect_named([&] { c.boolean("gemma4.block_count"); });
  expect_named([&] { c.integers("gemma4.block_count"); });
  expect_named([&] { c.booleans("gemma4.block_count"); });
  expect_named([&] { c.strings("gemma4.block_count"); });
  EXPECT_EQ(c.integer("absent"), std::nullopt);
  EXPECT_EQ(c.strings("absent"), nullptr);
}

TEST(Gguf, AlignmentKeyMovesTheData) {
  B b(1, 1);
  b.key("general.alignment", B::U32, std::uint32_t{256}).tensor("a", {1}, 0, 0).align(256).put(42.0f);
  const Opened opened(b.bytes());
  float value = 0;
  std::memcpy(&value, opened.checkpoint.tensor("a")->bytes.data(), 4);
  EXPECT_EQ(value, 42.0f);
}

TEST(Gguf, ReadsTheGoldenFile) {
  GEM_GOLDEN_OR_SKIP(path, "models/dense-a/q4_0.gguf");
  const Checkpoint c = open_checkpoint(path);
  EXPECT_EQ(c.string("general.architecture"), "gemma4");
  EXPECT_EQ(c.integer("gemma4.embedding_length"), 128);
  EXPECT_EQ(c.integers("gemma4.attention.head_count_kv")->size(), 12u);
  EXPECT_EQ(c.booleans("gemma4.attention.sliding_window_pattern")->size(), 12u);
  EXPECT_EQ(c.strings("tokenizer.ggml.tokens")->size(), 1024u);
  ASSERT_NE(c.tensor("token_embd.weight"), nullptr);
  EXPECT_EQ(c.tensor("token_embd.weight")->type, StorageType::kQ8_0);
  EXPECT_EQ(c.tensor("token_embd.weight")->shape, (std::vector<std::uint64_t>{1024, 128}));
  EXPECT_EQ(c.tensor("blk.0.attn_q.weight")->type, StorageType::kQ4_0);
  EXPECT_EQ(c.files(), std::vector<std::string>{path});
}

// ---- The hardening list ----

TEST(GgufHardening, Case01EmptyFile) {
  expect_refused("", {"the file is empty", "GGUF"});
}

TEST(GgufHardening, Case02ThreeBytes) {
  expect_refused("GGU", {"begins with 47 47 55", "expected 47 47 55 46"});
}

TEST(GgufHardening, Case03BadMagic) {
  expect_refused("GGML" + std::string(100, '\0'), {"begins with 47 47 4d 4c", "expected 47 47 55 46"});
  expect_refused("{\"a\"", {"begins with 7b 22 61 22"});
}

TEST(GgufHardening, Case04Version) {
  for (const std::uint32_t version : {0u, 1u, 4u})
    expect_refused(GgufBuilder(0, 0, version).bytes(),
                   {"version " + std::to_string(version) + " at byte 4", "expected 2 or 3"});
  expect_refused(GgufBuilder(0, 0, 0x03000000u).bytes(),
                 {"opposite byte order", "expected a little-endian file"});
}

TEST(GgufHardening, Case05TensorCount) {
  expect_refused(GgufBuilder(std::uint64_t{1} << 63, 0).bytes(),
                 {"the tensor count -9223372036854775808", "negative"});
  expect_refused(GgufBuilder(kMaxU64, 0).bytes(), {"the tensor count -1 at byte 8", "negative"});
  expect_refused(GgufBuilder(std::uint64_t{1} << 60, 0).bytes(),
                 {"the tensor count 1152921504606846976", "at most"});
  expect_refused(GgufBuilder(1, 0).bytes(), {"the tensor count 1", "does not fit"});
}

TEST(GgufHardening, Case06KeyCount) {
  expect_refused(GgufBuilder(0, std::uint64_t{1} << 63).bytes(),
                 {"the key count -9223372036854775808", "negative"});
  expect_refused(GgufBuilder(0, kMaxU64).bytes(), {"the key count -1 at byte 16", "negative"});
  expect_refused(GgufBuilder(0, std::uint64_t{1} << 60).bytes(),
                 {"the key count 1152921504606846976", "at most"});
  // Room for the bytes, but more keys than any real file has.
  expect_refused(GgufBuilder(0, 70000).zeros(14 * 70000).bytes(), {"the key count 70000", "at most 65536"});
}

TEST(GgufHardening, Case07KeyLength) {
  for (const std::uint64_t length : {kMaxU64, kMaxU64 - 7, std::uint64_t{1} << 32, std::uint64_t{60}})
    expect_refused(
        GgufBuilder(0, 1).put(length).text("key").zeros(30).bytes(),
        {"length " + std::to_string(length) + " of key 1 of 1 at byte 24", "exceeds the 33 bytes left"});
  expect_refused(with_key(B().key_string(std::string(70000, 'k'), "")),
                 {"length 70000", "expected at most 65535"});
}

TEST(GgufHardening, Case08EmptyKey) {
  expect_refused(with_key(B().key_string("", "x")), {"key 1 of 1", "is empty"});
}

TEST(GgufHardening, Case09KeyWithNulOrBadUtf8) {
  expect_refused(with_key(B().key_string(std::string_view("a\0b", 3), "x")),
                 {"key 1 of 1", "holds a NUL byte"});
  for (const std::string_view bad :
       {"\xff", "a\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xf0\x8f\xbf\xbf", "\xf8\x88\x80\x80\x80", "\xe2\x82"})
    expect_refused(with_key(B().key_string(bad, "x")), {"key 1 of 1 at byte 24", "not valid UTF-8"});
  const Opened sound(with_key(B().key_string("\xf4\x8f\xbf\xbf \xed\x9f\xbf \xe2\x82\xac", "x")));
  EXPECT_EQ(sound.checkpoint.metadata().size(), 1u);
}

TEST(GgufHardening, Case10DuplicateKey) {
  B b(0, 2);
  b.key_string("same", "x").key("same", B::U32, 1u);
  expect_refused(b.bytes(), {"key same at byte 49", "occurs twice"});
}

TEST(GgufHardening, Case11UnknownValueType) {
  for (const std::uint32_t type : {13u, 255u, 0xffffffffu}) {
    expect_refused(
        with_key(B().key("k", type)),
        {"type " + std::to_string(type) + " of the value of key k at byte 33", "expected 0 to 12"});
    expect_refused(with_key(B().array("k", type, 1)),
                   {"element type " + std::to_string(type) + " of the value of key k", "expected 0 to 12"});
  }
  expect_refused(with_key(B().key("k", B::BOOL, std::uint8_t{2})), {"boolean 2", "key k", "expected 0 or 1"});
}

TEST(GgufHardening, Case12ArrayOfArrays) {
  expect_refused(with_key(B().array("k", B::ARR, 1).put(std::uint32_t{B::U8}).put(std::uint64_t{0})),
                 {"the value of key k", "array of arrays"});
  B deep(0, 1);
  deep.key("k", B::ARR);
  for (int i = 0; i < 1'000'000; ++i) deep.put(std::uint32_t{B::ARR}).put(std::uint64_t{1});
  expect_refused(deep.bytes(), {"the value of key k", "array of arrays"});
}

TEST(GgufHardening, Case13ArrayCount) {
  for (const std::uint64_t count : {kMaxU64, std::uint64_t{1} << 61, std::uint64_t{1} << 62,
                                    std::uint64_t{1} << 63, (std::uint64_t{1} << 61) + 1, std::uint64_t{100}})
    for (const std::uint32_t type : {B::U32, B::STR, B::F64, B::BOOL})
      expect_refused(
          with_key(B().array("k", type, count)),
          {"count " + std::to_string(count) + " of the value of key k", "does not fit", "hold at most"});
  // Narrow integers are kept eight times as wide: their arrays are bounded.
  expect_refused(with_key(B().array("k", B::U8, 2'000'000).zeros(2'000'000)),
                 {"count 2000000", "at most 1048576"});
}

TEST(GgufHardening, Case14StringLongerThanTheRest) {
  for (const std::uint64_t length : {kMaxU64, std::uint64_t{1} << 30, std::uint64_t{37}})
    expect_refused(
        with_key(B().key("k", B::STR).put(length).text("abcd")),
        {"length " + std::to_string(length) + " of the value of key k", "exceeds the 36 bytes left"});
  // An array of strings whose lengths run past the end, each plausible alone.
  B b(0, 1);
  b.array("k", B::STR, 3).string("aaaaaaaa").string("bbbbbbbb").put(std::uint64_t{9}).text("cccccccc");
  expect_refused(b.bytes(), {"length 9 of the value of key k", "exceeds the 8 bytes left"});
}

TEST(GgufHardening, Case15Alignment) {
  for (const std::uint32_t alignment : {0u, 3u, 48u, 1u << 31, 0xffffffffu})
    expect_refused(with_key(B().key("general.alignment", B::U32, alignment)),
                   {"general.alignment is " + std::to_string(alignment), "expected a power of two"});
  expect_refused(with_key(B().key("general.alignment", B::U64, std::uint64_t{32})),
                 {"general.alignment has type 10", "expected 4 (u32)"});
  expect_refused(with_key(B().key_string("general.alignment", "32")), {"general.alignment has type 8"});
}

TEST(GgufHardening, Case16Dimensions) {
  for (const std::uint32_t n_dims : {0u, 5u, 0xffffffffu})
    expect_refused(with_tensor(B().string("t").put(n_dims).zeros(64)),
                   {"tensor t has " + std::to_string(n_dims) + " dimensions", "expected 1 to 4"});
}

TEST(GgufHardening, Case17Extents) {
  expect_refused(with_tensor(B().tensor("t", {0}, 0, 0)), {"tensor t has extent 0 in dimension 0"});
  expect_refused(with_tensor(B().tensor("t", {4, -1}, 0, 0)), {"tensor t has extent -1 in dimension 1"});
  expect_refused(with_tensor(B().tensor("t", {std::numeric_limits<std::int64_t>::min()}, 0, 0)),
                 {"tensor t has extent -"});
  expect_refused(with_tensor(B().tensor("t", {1ll << 32, 1ll << 31}, 0, 0)),
                 {"tensor t has more than 2^63-1 elements"});
  expect_refused(with_tensor(B().tensor("t", {1ll << 32, 1ll << 32, 1ll << 32, 1ll << 32}, 0, 0)),
                 {"tensor t has more than 2^63-1 elements"});
}

TEST(GgufHardening, Case18BytesOverflow) {
  // 2^62 elements of four bytes: 2^64 bytes, which is zero in 64 bits.
  expect_refused(with_tensor(B().tensor("t", {1ll << 31, 1ll << 31}, 0, 0)),
                 {"tensor t has 4611686018427387904 elements of type F32", "2^64-1 bytes"});
  // Fits in 64 bits, but not in the file, nor in 64 bits once rounded up to the alignment.
  expect_refused(with_tensor(B().tensor("t", {(1ll << 62) - 1}, 0, 0)),
                 {"tensor t has 18446744073709551612 bytes", "the file is cut"});
}

TEST(GgufHardening, Case19TensorType) {
  for (const std::uint32_t id : {4u, 5u, 31u, 36u, 43u, 255u, 0xffffffffu})
    expect_refused(
        with_tensor(B().tensor("t", {256}, id, 0)),
        {"tensor t has type id " + std::to_string(id), "ggml does not have", "expected one of F32, F16"});
  struct Known {
    std::uint32_t id;
    const char* name;
  };
  for (const Known& known : std::initializer_list<Known>{{20, "IQ4_NL"},
                                                         {10, "Q2_K"},
                                                         {11, "Q3_K"},
                                                         {23, "IQ4_XS"},
                                                         {26, "I32"},
                                                         {39, "MXFP4"},
                                                         {9, "Q8_1"},
                                                         {42, "Q2_0"},
                                                         {16, "IQ2_XXS"},
                                                         {29, "IQ1_M"},
                                                         {34, "TQ1_0"}})
    expect_refused(with_tensor(B().tensor("t", {256}, known.id, 0)),
                   {"tensor t has type " + std::string(known.name) + ", which gem does not read"});
}

TEST(GgufHardening, Case20RowsAndBlocks) {
  expect_refused(with_tensor(B().tensor("t", {33}, 2, 0)),
                 {"tensor t has rows of 33", "multiple of 32 for type Q4_0"});
  // 256 elements in all, but rows of 64: a block must not cross rows.
  expect_refused(with_tensor(B().tensor("t", {64, 4}, 14, 0), 256),
                 {"tensor t has rows of 64", "multiple of 256 for type Q6_K"});
}

TEST(GgufHardening, Case21Offsets) {
  const auto two = [](std::uint64_t first, std::uint64_t second) {
    return GgufBuilder(2, 0)
        .tensor("a", {3}, 0, first)
        .tensor("b", {3}, 0, second)
        .align()
        .zeros(256)
        .bytes();
  };
  const Opened sound(two(0, 32));
  EXPECT_EQ(sound.checkpoint.tensors().size(), 2u);
  expect_refused(two(32, 64), {"tensor a has offset 32", "expected 0"});
  expect_refused(two(0, 12), {"tensor b has offset 12", "expected 32", "aligned to 32"});
  expect_refused(two(0, 0), {"tensor b has offset 0", "expected 32"});
  expect_refused(two(0, 64), {"tensor b has offset 64", "expected 32"});
  expect_refused(two(0, 1u << 20), {"tensor b has offset 1048576", "expected 32"});
  expect_refused(two(kMaxU64 - 31, 0), {"tensor a has offset 18446744073709551584", "expected 0"});
  expect_refused(two(0, kMaxU64 - 31), {"tensor b has offset 18446744073709551584", "expected 32"});
}

TEST(GgufHardening, Case22TensorNames) {
  const auto named = [](std::string_view first, std::string_view second) {
    return GgufBuilder(2, 0).tensor(first, {3}, 0, 0).tensor(second, {3}, 0, 32).align().zeros(64).bytes();
  };
  expect_refused(named("a", "a"), {"tensor a at byte", "occurs twice"});
  const Opened longest(named("a", std::string(63, 'n')));
  EXPECT_NE(longest.checkpoint.tensor(std::string(63, 'n')), nullptr);
  expect_refused(named("a", std::string(64, 'n')), {"length 64 of the name of tensor 2 of 2", "at most 63"});
  expect_refused(named("a", ""), {"the name of tensor 2 of 2", "is empty"});
  expect_refused(named("\xff", "b"), {"the name of tensor 1 of 2", "not valid UTF-8"});
  expect_refused(named(std::string_view("a\0", 2), "a"), {"the name of tensor 1 of 2", "NUL"});
}

TEST(GgufHardening, Case23DataCutByOneByte) {
  std::string text = sound_gguf();
  text.pop_back();
  expect_refused(text, {"tensor b has 72 bytes", "71 left there", "the file is cut"});
}

TEST(GgufHardening, Case26NanInMetadataIsPassedOnForTheModelToRefuse) {
  const Opened opened(
      with_key(B().key("gemma4.rope.freq_base", B::F32, std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(*opened.checkpoint.number("gemma4.rope.freq_base")));
}

TEST(GgufHardening, EveryTruncationIsRefused) {
  const std::string text = sound_gguf();
  for (std::size_t length = 0; length < text.size(); ++length) {
    const Image image(text.substr(0, length));
    Checkpoint checkpoint;
    EXPECT_THROW(read_gguf(image.bytes, "cut.gguf", checkpoint), Error) << length;
  }
}

TEST(GgufHardening, EveryFlippedByteIsReadOrRefused) {
  const std::string text = sound_gguf();
  int refused = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      const Image image(changed);
      Checkpoint checkpoint;
      try {
        read_gguf(image.bytes, "flipped.gguf", checkpoint);
        for (const TensorView& tensor : checkpoint.tensors()) {  // each view lies within the file
          ASSERT_GE(tensor.bytes.data(), image.bytes.data());
          ASSERT_LE(tensor.bytes.data() + tensor.bytes.size(), image.bytes.data() + image.bytes.size());
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kBadFile);
        ++refused;
      }
    }
  EXPECT_GT(refused, 100);
}

TEST(GgufHardening, ALargeVocabularyCostsAFewTimesItsBytes) {
  B b(0, 1);
  b.array("tokenizer.ggml.tokens", B::STR, 262144);
  for (int i = 0; i < 262144; ++i) b.string("token" + std::to_string(i));
  const Image image(b.bytes());
  Checkpoint checkpoint;
  const AllocationWatch watch;
  read_gguf(image.bytes, "vocabulary.gguf", checkpoint);
  EXPECT_LE(watch.total(), image.bytes.size());  // 16 bytes a view; the text is not copied
  ASSERT_EQ(checkpoint.strings("tokenizer.ggml.tokens")->size(), 262144u);
  EXPECT_EQ(checkpoint.strings("tokenizer.ggml.tokens")->back(), "token262143");
}

TEST(GgufHardening, NamesInMessagesAreShortAndPrintable) {
  const std::string key = "line\nbreak\x1b[31m" + std::string(5000, 'x');
  expect_refused(with_key(B().key(key, 99)), {"line\\x0abreak\\x1b[31mxxx", "...", "expected 0 to 12"});
}

TEST(Gguf, MissingFileAndFolderAreRefused) {
  for (const std::string& path : {std::string("/nonexistent/model.gguf"), ::testing::TempDir()}) {
    try {
      open_checkpoint(path);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadFile);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace gem
