// The safetensors reader against malformed files (cases 31-35 of the hardening list) and sound ones; the
// writer by its bytes.
#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/allocation_watch.h"
#include "formats/gguf_builder.h"
#include "formats/temporary_folder.h"
#include "golden.h"

namespace gem {
namespace {

using testing::AllocationWatch;
using testing::TemporaryFolder;

std::string image(const std::string& header, std::size_t data_bytes, std::uint64_t length) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + std::string(data_bytes, '\x01');
}
std::string image(const std::string& header, std::size_t data_bytes) {
  return image(header, data_bytes, header.size());
}

std::vector<std::byte> exact_copy(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void expect_refused(const std::string& text, std::initializer_list<std::string> parts) {
  const std::vector<std::byte> bytes = exact_copy(text);
  const std::string where = "broken.safetensors";
  std::size_t largest = 0;
  try {
    const AllocationWatch watch;
    try {
      SafetensorsFile::parse(bytes, where);
    } catch (...) {
      largest = watch.largest();
      throw;
    }
    ADD_FAILURE() << "accepted; expected a refusal with: " << *parts.begin();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    const std::string message = error.what();
    EXPECT_EQ(message.find(where + ": "), 0u) << message;
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
  EXPECT_LE(largest, 4 * text.size() + 4096);
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

TEST(Safetensors, ReadsViewsInTheOrderOfTheirBytes) {
  const auto bytes =
      exact_copy(image("{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "F32", "[2]", "[4,12]") + "," +
                           entry("a", "I16", "[1,2]", "[0,4]") + "," + entry("s", "U8", "[]", "[12,13]") +
                           "," + entry("none", "F64", "[0,3]", "[4,4]") + "}   ",
                       13));
  const SafetensorsFile file = SafetensorsFile::parse(bytes, "sound");
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(file.at("a").integers(), (std::vector<std::int64_t>{0x0101, 0x0101}));
  EXPECT_EQ(file.at("b").dtype, Dtype::kF32);
  EXPECT_EQ(file.at("b").bytes.data(), bytes.data() + bytes.size() - 9);
  EXPECT_EQ(file.at("s").integers(), std::vector<std::int64_t>{1});
  EXPECT_TRUE(file.at("s").shape.empty());
  EXPECT_EQ(file.at("none").elements(), 0u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THROW(file.at("c"), Error);
}

TEST(Safetensors, ReadsEachElementType) {
  struct Row {
    const char* name;
    Dtype dtype;
    std::size_t bytes;
  };
  for (const Row& row : std::initializer_list<Row>{{"BOOL", Dtype::kBool, 1},
                                                   {"U8", Dtype::kU8, 1},
                                                   {"I8", Dtype::kI8, 1},
                                                   {"F8_E4M3", Dtype::kF8E4M3, 1},
                                                   {"F8_E5M2", Dtype::kF8E5M2, 1},
                                                   {"U16", Dtype::kU16, 2},
                                                   {"I16", Dtype::kI16, 2},
                                                   {"F16", Dtype::kF16, 2},
                                                   {"BF16", Dtype::kBF16, 2},
                                                   {"U32", Dtype::kU32, 4},
                                                   {"I32", Dtype::kI32, 4},
                                                   {"F32", Dtype::kF32, 4},
                                                   {"U64", Dtype::kU64, 8},
                                                   {"I64", Dtype::kI64, 8},
                                                   {"F64", Dtype::kF64, 8}}) {
    const auto bytes = exact_copy(image(
        "{" + entry("t", row.name, "[3]", "[0," + std::to_string(3 * row.bytes) + "]") + "}", 3 * row.bytes));
    const SafetensorsFile file = SafetensorsFile::parse(bytes, "sound");
    EXPECT_EQ(file.at("t").dtype, row.dtype);
    EXPECT_EQ(dtype_name(row.dtype), row.name);
    EXPECT_EQ(dtype_bytes(row.dtype), row.bytes);
  }
}

TEST(Safetensors, CopiesRefuseOtherTypes) {
  const auto bytes =
      exact_copy(image("{" + entry("f", "BF16", "[1]", "[0,2]") + "," + entry("d", "F64", "[1]", "[2,10]") +
                           "," + entry("u", "U64", "[1]", "[10,18]") + "}",
                       18));
  const SafetensorsFile file = SafetensorsFile::parse(bytes, "sound");
  EXPECT_EQ(file.at("f").floats(),
            std::vector<float>{0x1.02p-125f});  // bits 0x01010000: exponent 2 - 127, mantissa 1 + 2^-7
  EXPECT_THROW(file.at("f").integers(), Error);
  EXPECT_THROW(file.at("d").floats(), Error);
  EXPECT_EQ(file.at("u").integers(), std::vector<std::int64_t>{0x0101010101010101});
  EXPECT_THROW(file.at("u").floats(), Error);
}

TEST(SafetensorsHardening, Case31HeaderLength) {
  expect_refused("", {"the file has 0 bytes"});
  expect_refused("1234567", {"the file has 7 bytes", "expected at least the 8"});
  for (const std::uint64_t length : {std::numeric_limits<std::uint64_t>::max(),
                                     std::numeric_limits<std::uint64_t>::max() - 8, std::uint64_t{3}})
    expect_refused(image("{}", 0, length),
                   {"header length " + std::to_string(length), "exceeds the 2 bytes left"});
  expect_refused(std::string(8, '\0'), {"does not begin with '{'"});
}

TEST(SafetensorsHardening, Case31HeaderOverTheLimit) {
  // A sparse file of 100 MB and a little: its pages are never touched.
  const TemporaryFolder folder;
  const std::string path = folder.file("big.safetensors");
  const std::uint64_t length = 100'000'001;
  testing::write_file(path, image("{}", 0, length));
  std::filesystem::resize_file(path, 8 + length);
  try {
    SafetensorsFile::open(path);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("header length 100000001 exceeds the format's limit"),
              std::string::npos);
  }
}

TEST(SafetensorsHardening, Case32NotJson) {
  expect_refused(image("xx", 0), {"does not begin with '{'"});
  expect_refused(image(" {}", 0), {"does not begin with '{'"});
  expect_refused(image("[]", 0), {"does not begin with '{'"});
  expect_refused(image("{\"a\"", 0), {"not valid JSON"});
  expect_refused(image("{'a':1}", 0), {"not valid JSON at its byte 2"});
  expect_refused(image("{\"\xff\":1}", 0), {"not valid JSON"});
  expect_refused(image("{} {}", 0), {"not valid JSON"});
  expect_refused(image("{}\n]", 0), {"not valid JSON"});
  expect_refused(image(std::string("{}\0", 3), 0), {"not valid JSON at its byte 3"});
}

TEST(SafetensorsHardening, Case32Deep) {
  expect_refused(image("{\"a\":" + std::string(1'000'000, '['), 0), {"the entry of tensor a is an array"});
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += "\"a\":{";
  expect_refused(image(objects, 0), {"tensor a has field a"});
  expect_refused(image("{\"a\":{\"shape\":[[1]]", 0), {"shape of tensor a holds an array"});
  expect_refused(image("{\"a\":{\"shape\":[{}]", 0), {"shape of tensor a holds an object"});
  expect_refused(image("{\"__metadata__\":{\"k\":{}}}", 0),
                 {"metadata key k is an object", "expected a string"});
}

TEST(SafetensorsHardening, Case32DuplicateKeys) {
  const std::string a = entry("a", "U8", "[1]", "[0,1]");
  expect_refused(image("{" + a + "," + a + "}", 1), {"key a occurs twice"});
  expect_refused(image("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"", 1),
                 {"field dtype of tensor a occurs twice"});
  expect_refused(image("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0), {"metadata key k occurs twice"});
  expect_refused(image("{\"__metadata__\":{},\"__metadata__\":{}}", 0), {"__metadata__ occurs twice"});
}

TEST(SafetensorsHardening, Case32OtherForms) {
  expect_refused(image("{\"a\":1}", 0), {"the entry of tensor a is a number", "expected an object"});
  expect_refused(image("{\"a\":null}", 0), {"the entry of tensor a is null"});
  expect_refused(image("{\"a\":{}}", 0), {"tensor a lacks dtype"});
  expect_refused(image("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0), {"tensor a lacks data_offsets"});
  expect_refused(image("{\"a\":{\"dtype\":1", 0), {"dtype of tensor a holds a number", "expected a string"});
  expect_refused(image("{\"a\":{\"shape\":\"x\"", 0), {"shape of tensor a holds a string"});
  expect_refused(image("{\"a\":{\"extra\":1", 0), {"tensor a has field extra"});
  expect_refused(image("{" + entry("a", "U8", "[1]", "[0]") + "}", 1),
                 {"data_offsets of tensor a has 1 numbers"});
  expect_refused(image("{" + entry("a", "U8", "[1]", "[0,1,2]") + "}", 1),
                 {"data_offsets of tensor a has 3 numbers"});
  expect_refused(image("{" + entry("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1),
                 {"shape of tensor a has more than 8"});
}

TEST(SafetensorsHardening, Case33Offsets) {
  const auto two = [](const std::string& first, const std::string& second, std::size_t data) {
    return image("{" + entry("a", "U8", "[4]", first) + "," + entry("b", "U8", "[4]", second) + "}", data);
  };
  const auto sound = exact_copy(two("[4,8]", "[0,4]", 8));
  EXPECT_EQ(SafetensorsFile::parse(sound, "sound").tensors()[0].name, "b");
  expect_refused(two("[4,0]", "[4,8]", 8), {"tensor a has data_offsets [4, 0]", "expected begin <= end"});
  expect_refused(two("[0,4]", "[0,4]", 4),
                 {"tensor b begins at data byte 0", "expected 4", "must not overlap"});
  expect_refused(two("[0,4]", "[3,7]", 8), {"tensor b begins at data byte 3", "must not overlap"});
  expect_refused(two("[0,4]", "[5,9]", 9), {"tensor b begins at data byte 5", "no holes"});
  expect_refused(two("[1,5]", "[5,9]", 9), {"tensor a begins at data byte 1", "expected 0"});
  expect_refused(two("[0,4]", "[4,8]", 9), {"the tensors end at data byte 8", "9 bytes of data"});
  expect_refused(two("[0,4]", "[4,8]", 7), {"tensor b ends at data byte 8", "7 bytes of data"});
  expect_refused(two("[0,5]", "[5,9]", 9), {"tensor a has 5 bytes by its data_offsets", "expected 4"});
  expect_refused(two("[0,4]", "[18446744073709551612,0]", 4),
                 {"tensor b has data_offsets [18446744073709551612, 0]"});
  expect_refused(image("{}", 1), {"the tensors end at data byte 0"});
}

TEST(SafetensorsHardening, Case34Shapes) {
  expect_refused(image("{" + entry("a", "F32", "[4611686018427387904]", "[0,0]") + "}", 0),
                 {"tensor a has more than 2^64-1 bytes"});
  expect_refused(image("{" + entry("a", "U8", "[4294967296,4294967296]", "[0,0]") + "}", 0),
                 {"tensor a has more than 2^64-1"});
  expect_refused(image("{" + entry("a", "U8", "[-1]", "[0,1]") + "}", 1),
                 {"shape of tensor a holds -1", "expected whole numbers"});
  expect_refused(image("{" + entry("a", "U8", "[1.0]", "[0,1]") + "}", 1),
                 {"shape of tensor a holds 1.0", "expected whole numbers"});
  expect_refused(image("{" + entry("a", "U8", "[18446744073709551616]", "[0,1]") + "}", 1),
                 {"shape of tensor a holds 18446744073709551616"});
  expect_refused(image("{" + entry("a", "U8", "[true]", "[0,1]") + "}", 1),
                 {"shape of tensor a holds a boolean"});
  expect_refused(image("{" + entry("a", "U8", "[1]", "[-1,0]") + "}", 1),
                 {"data_offsets of tensor a holds -1"});
}

TEST(SafetensorsHardening, Case35UnknownDtype) {
  for (const std::string dtype : {"F31", "f32", "", "F32 "})
    expect_refused(image("{" + entry("a", dtype, "[1]", "[0,4]") + "}", 4),
                   {"tensor a has unknown dtype " + dtype});
}

TEST(SafetensorsHardening, EveryTruncationIsRefused) {
  const std::string text = image("{" + entry("a", "U8", "[4]", "[0,4]") + "}", 4);
  for (std::size_t length = 0; length < text.size(); ++length) {
    const auto bytes = exact_copy(text.substr(0, length));
    EXPECT_THROW(SafetensorsFile::parse(bytes, "cut"), Error) << length;
  }
}

TEST(Safetensors, ReadsTheGoldenFiles) {
  GEM_GOLDEN_OR_SKIP(path, "models/dense-a/expected-q4_0.safetensors");
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.at("logits").shape, (std::vector<std::uint64_t>{160, 1024}));
  EXPECT_EQ(file.at("logits").floats().size(), 160u * 1024u);
  const auto ids = file.at("input_ids").integers();
  ASSERT_EQ(ids.size(), 160u);
  for (const std::int64_t id : ids) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, 1024);
  }
}

TEST(SafetensorsWriter, WritesTheBytesOfTheFormat) {
  const std::vector<float> logits = {1.0f, -2.0f};
  const std::vector<std::int32_t> ids = {7};
  const TemporaryFolder folder;
  write_safetensors(folder.file("o.safetensors"),
                    {{"logits", Dtype::kF32, {1, 2}, std::as_bytes(std::span(logits))},
                     {"ids", Dtype::kI32, {1}, std::as_bytes(std::span(ids))}});
  std::string header =
      "{" + entry("logits", "F32", "[1,2]", "[0,8]") + "," + entry("ids", "I32", "[1]", "[8,12]") + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // the data begins at a multiple of 8
  std::string expected = image(header, 0);
  expected.append(reinterpret_cast<const char*>(logits.data()), 8)
      .append(reinterpret_cast<const char*>(ids.data()), 4);
  std::ifstream file(folder.file("o.safetensors"), std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), expected);
  const SafetensorsFile back = SafetensorsFile::open(folder.file("o.safetensors"));
  EXPECT_EQ(back.at("logits").floats(), logits);
  EXPECT_EQ(back.at("ids").integers(), std::vector<std::int64_t>{7});
}

TEST(SafetensorsWriter, RefusesWhatAReaderWouldRefuse) {
  const std::vector<std::byte> bytes(8);
  const TemporaryFolder folder;
  const std::string path = folder.file("o.safetensors");
  EXPECT_THROW(write_safetensors(path, {{"a", Dtype::kF32, {3}, bytes}}), Error);
  EXPECT_THROW(write_safetensors(path, {{"a", Dtype::kF32, {2}, bytes}, {"a", Dtype::kF32, {2}, bytes}}),
               Error);
  EXPECT_THROW(write_safetensors(path, {{"__metadata__", Dtype::kF32, {2}, bytes}}), Error);
  EXPECT_EQ(folder.files(), 0u);
}

}  // namespace
}  // namespace gem
