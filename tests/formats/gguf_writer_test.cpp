// The GGUF writer: bytes as the format lays them out (by an independent builder), what the reader makes of
// them, and that a file appears whole or not at all.
#include "formats/gguf_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/allocation_watch.h"
#include "formats/checkpoint.h"
#include "formats/gguf_builder.h"
#include "formats/temporary_folder.h"
#include "golden.h"

namespace gem {
namespace {

using testing::TemporaryFolder;
using B = testing::GgufBuilder;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void no_data(const GgufWriter::Tensor&, const GgufWriter::Sink&) {}

TEST(GgufWriter, WritesTheBytesOfTheFormat) {
  GgufWriter writer;
  writer.add("general.architecture", std::string_view("gemma4"));
  writer.add("gemma4.block_count", std::uint32_t{12});
  writer.add_tensor("a", StorageType::kF32, {3});
  writer.add_tensor("b", StorageType::kQ4_0, {2, 64});
  const TemporaryFolder folder;
  writer.write(folder.file("w.gguf"), [](const GgufWriter::Tensor& tensor, const GgufWriter::Sink& sink) {
    const std::vector<float> values = {1.0f, 2.0f, 3.0f};
    if (tensor.name == "a") return sink(std::as_bytes(std::span(values)));
    const std::vector<std::byte> piece(24);
    for (int i = 0; i < 3; ++i) sink(piece);  // 72 bytes in three pieces
  });
  // The writer pads the last tensor too: 72 to 96.
  EXPECT_EQ(read_file(folder.file("w.gguf")), testing::sound_gguf() + std::string(24, '\0'));
  EXPECT_EQ(writer.file_bytes(), std::filesystem::file_size(folder.file("w.gguf")));
  EXPECT_EQ(folder.files(), 1u);  // no temporary file is left
}

TEST(GgufWriter, EveryValueTypeComesBack) {
  GgufWriter writer(64);
  writer.add("u8", std::uint8_t{200});
  writer.add("i8", std::int8_t{-100});
  writer.add("u16", std::uint16_t{60000});
  writer.add("i16", std::int16_t{-30000});
  writer.add("u32", std::uint32_t{4000000000u});
  writer.add("i32", std::int32_t{-2000000000});
  writer.add("u64", ~std::uint64_t{0});
  writer.add("i64", std::int64_t{-5});
  writer.add("f32", 0.25f);
  writer.add("f64", 0.1);
  writer.add("bool", true);
  writer.add("string", std::string("text"));
  writer.add("i32s", std::vector<std::int32_t>{-1, 1});
  writer.add("f32s", std::vector<float>{0.5f});
  writer.add("bools", std::vector<bool>{true, false, true});
  writer.add("strings", std::vector<std::string>{"x", ""});
  const TemporaryFolder folder;
  writer.write(folder.file("w.gguf"), no_data);
  const Checkpoint c = open_checkpoint(folder.file("w.gguf"));
  EXPECT_EQ(c.integer("general.alignment"), 64);
  EXPECT_EQ(c.integer("u8"), 200);
  EXPECT_EQ(c.integer("i8"), -100);
  EXPECT_EQ(c.integer("u16"), 60000);
  EXPECT_EQ(c.integer("i16"), -30000);
  EXPECT_EQ(c.integer("u32"), 4000000000);
  EXPECT_EQ(c.integer("i32"), -2000000000);
  EXPECT_EQ(std::get<std::uint64_t>(*c.find("u64")), ~std::uint64_t{0});
  EXPECT_EQ(c.integer("i64"), -5);
  EXPECT_EQ(c.number("f32"), 0.25);
  EXPECT_EQ(c.number("f64"), 0.1);
  EXPECT_EQ(c.boolean("bool"), true);
  EXPECT_EQ(c.string("string"), "text");
  EXPECT_EQ(c.integers("i32s"), (std::vector<std::int64_t>{-1, 1}));
  EXPECT_EQ(c.booleans("bools"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(*c.strings("strings"), (std::vector<std::string_view>{"x", ""}));
}

// Copies a checkpoint through add_value and the views of its tensors.
void copy_checkpoint(const Checkpoint& from, const std::string& path, std::uint32_t alignment) {
  GgufWriter writer(alignment);
  for (const auto& [key, value] : from.metadata())
    if (key != "general.alignment") writer.add_value(key, value);
  for (const TensorView& tensor : from.tensors()) writer.add_tensor(tensor.name, tensor.type, tensor.shape);
  writer.write(path, [&](const GgufWriter::Tensor& tensor, const GgufWriter::Sink& sink) {
    const std::span<const std::byte> bytes = from.tensor(tensor.name)->bytes;
    for (std::size_t i = 0; i < bytes.size(); i += 1000)
      sink(bytes.subspan(i, std::min<std::size_t>(1000, bytes.size() - i)));
  });
}

TEST(GgufWriter, ACopiedModelIsTheSameModel) {
  GEM_GOLDEN_OR_SKIP(path, "models/dense-a/q4_0.gguf");
  const Checkpoint original = open_checkpoint(path);
  const TemporaryFolder folder;
  for (const std::uint32_t alignment : {32u, 4096u, 8u}) {
    const std::string copy_path = folder.file("copy.gguf");
    copy_checkpoint(original, copy_path, alignment);
    const Checkpoint copy = open_checkpoint(copy_path);
    for (const auto& [key, value] : original.metadata())
      if (key != "general.alignment") {
        ASSERT_NE(copy.find(key), nullptr) << key;
        EXPECT_TRUE(*copy.find(key) == value) << key;
      }
    ASSERT_EQ(copy.tensors().size(), original.tensors().size());
    for (std::size_t i = 0; i < copy.tensors().size(); ++i) {
      const TensorView& a = original.tensors()[i];
      const TensorView& b = copy.tensors()[i];
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.type, b.type);
      EXPECT_EQ(a.shape, b.shape);
      ASSERT_EQ(a.bytes.size(), b.bytes.size());
      EXPECT_EQ(std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()), 0) << a.name;
    }
  }
}

TEST(GgufWriter, KeepsTheWidthsThatReadersExpect) {
  GgufWriter writer;
  writer.add_value("count", std::int64_t{48});
  writer.add_value("negative", std::int64_t{-1});
  writer.add_value("eps", static_cast<double>(1e-6f));
  writer.add_value("types", MetadataArray(std::vector<std::int64_t>{1, 3}));
  const TemporaryFolder folder;
  writer.write(folder.file("w.gguf"), no_data);
  B b(0, 4);
  b.key("count", B::U32, std::uint32_t{48})
      .key("negative", B::I32, std::int32_t{-1})
      .key("eps", B::F32, 1e-6f);
  b.array("types", B::I32, 2).put(std::int32_t{1}).put(std::int32_t{3}).align();
  EXPECT_EQ(read_file(folder.file("w.gguf")), b.bytes());
}

TEST(GgufWriter, RefusesWhatAReaderWouldRefuse) {
  GgufWriter writer;
  writer.add("key", true);
  EXPECT_THROW(writer.add("key", false), Error);
  EXPECT_THROW(writer.add("", false), Error);
  EXPECT_THROW(writer.add(std::string_view("a\0b", 3), false), Error);
  EXPECT_THROW(writer.add("\xff", false), Error);
  EXPECT_THROW(writer.add("general.alignment", std::uint32_t{64}), Error);
  writer.add_tensor("t", StorageType::kF32, {1});
  EXPECT_THROW(writer.add_tensor("t", StorageType::kF32, {1}), Error);
  EXPECT_THROW(writer.add_tensor(std::string(64, 'n'), StorageType::kF32, {1}), Error);
  EXPECT_THROW(writer.add_tensor("u", StorageType::kF32, {}), Error);
  EXPECT_THROW(writer.add_tensor("v", StorageType::kF32, {1, 0}), Error);
  EXPECT_THROW(writer.add_tensor("w", StorageType::kQ4_0, {32, 33}), Error);
  EXPECT_THROW(writer.add_tensor("x", StorageType::kF32, {1ull << 32, 1ull << 32}), Error);
  EXPECT_THROW(writer.add_tensor("y", StorageType::kF32, {1ull << 62}), Error);
  EXPECT_THROW(GgufWriter(0), Error);
  EXPECT_THROW(GgufWriter(48), Error);
}

TEST(GgufWriter, AFailureLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.gguf");
  testing::write_file(path, "the old file");
  GgufWriter writer;
  writer.add_tensor("t", StorageType::kF32, {4});
  const std::vector<std::byte> bytes(64);
  const auto giving = [&](std::size_t n) {
    return [&bytes, n](const GgufWriter::Tensor&, const GgufWriter::Sink& sink) {
      sink(std::span(bytes).first(n));
    };
  };
  for (const std::size_t n : {std::size_t{0}, std::size_t{15}, std::size_t{17}, std::size_t{64}}) {
    try {
      writer.write(path, giving(n));
      ADD_FAILURE() << n;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFailed);
      EXPECT_NE(std::string(error.what()).find("tensor t"), std::string::npos) << error.what();
    }
    EXPECT_EQ(read_file(path), "the old file");
    EXPECT_EQ(folder.files(), 1u);  // the temporary file is gone
  }
  writer.write(path, giving(16));
  EXPECT_EQ(open_checkpoint(path).tensors().size(), 1u);
}

TEST(GgufWriter, AFullDiskIsAnError) {
  // A limit on file size stands in for the full disk; the signal that comes with it is ignored.
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit small = old_limit;
  small.rlim_cur = 1u << 20;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const TemporaryFolder folder;
  GgufWriter writer;
  writer.add_tensor("t", StorageType::kF32, {1u << 20});
  try {
    writer.write(folder.file("w.gguf"), [](const GgufWriter::Tensor& tensor, const GgufWriter::Sink& sink) {
      sink(std::vector<std::byte>(static_cast<std::size_t>(tensor.bytes)));
    });
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailed);
  }
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(folder.files(), 0u);
}

TEST(GgufWriter, DoesNotReplaceADeviceOrAFolder) {
  const TemporaryFolder folder;
  EXPECT_THROW(GgufWriter().write("/dev/null", no_data), Error);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  std::filesystem::create_directory(folder.file("d"));
  EXPECT_THROW(GgufWriter().write(folder.file("d"), no_data), Error);
  EXPECT_THROW(GgufWriter().write(folder.file("absent/w.gguf"), no_data), Error);
}

TEST(GgufWriter, NeedsMemoryForAPieceNotForTheFile) {
  const TemporaryFolder folder;
  GgufWriter writer;
  for (int i = 0; i < 16; ++i)
    writer.add_tensor("t" + std::to_string(i), StorageType::kF32, {1u << 20});  // 64 MiB
  const std::vector<std::byte> piece(1u << 16);
  const testing::AllocationWatch watch;
  writer.write(folder.file("w.gguf"), [&](const GgufWriter::Tensor& tensor, const GgufWriter::Sink& sink) {
    for (std::uint64_t given = 0; given < tensor.bytes; given += piece.size()) sink(piece);
  });
  EXPECT_LE(watch.total(), 4u << 20);
  EXPECT_EQ(std::filesystem::file_size(folder.file("w.gguf")), writer.file_bytes());
}

}  // namespace
}  // namespace gem
