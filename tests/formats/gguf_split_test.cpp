// Split sets (case 30): NAME-00001-of-0000N.gguf opens all its parts, or says which part is wrong.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "formats/gguf_builder.h"
#include "formats/temporary_folder.h"

namespace gem {
namespace {

using testing::GgufBuilder;
using testing::TemporaryFolder;
using testing::write_file;
using B = GgufBuilder;

struct Part {
  int no = 0;
  int count = 3;
  int tensors = 3;        // of the whole set
  std::string tensor;     // the one this part holds
  std::string name = {};  // general.name, absent when empty
};

std::string image(const Part& part) {
  B b(1, 3u + (part.name.empty() ? 0u : 1u));
  b.key("split.no", B::U16, static_cast<std::uint16_t>(part.no));
  b.key("split.count", B::U16, static_cast<std::uint16_t>(part.count));
  b.key("split.tensors.count", B::I32, std::int32_t{part.tensors});
  if (!part.name.empty()) b.key_string("general.name", part.name);
  b.tensor(part.tensor, {1}, 0, 0).align().put(static_cast<float>(part.no));
  return b.bytes();
}

class GgufSplit : public ::testing::Test {
 protected:
  std::string path(int part, int count = 3) const {
    return folder.file("m-0000" + std::to_string(part) + "-of-0000" + std::to_string(count) + ".gguf");
  }
  void write_set() const {
    write_file(path(1), image({.no = 0, .tensor = "a", .name = "set"}));
    write_file(path(2), image({.no = 1, .tensor = "b"}));
    write_file(path(3), image({.no = 2, .tensor = "c"}));
  }
  void expect_refused(const std::string& opened, std::initializer_list<std::string> parts) const {
    try {
      open_checkpoint(opened);
      ADD_FAILURE() << "accepted; expected a refusal with: " << *parts.begin();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadFile);
      const std::string message = error.what();
      for (const std::string& part : parts)
        EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
  }
  TemporaryFolder folder;
};

TEST_F(GgufSplit, OpensAllPartsByTheFirst) {
  write_set();
  const Checkpoint c = open_checkpoint(path(1));
  EXPECT_EQ(c.files(), (std::vector<std::string>{path(1), path(2), path(3)}));
  EXPECT_EQ(c.file_bytes(), std::filesystem::file_size(path(1)) + std::filesystem::file_size(path(2)) +
                                std::filesystem::file_size(path(3)));
  EXPECT_EQ(c.string("general.name"), "set");
  ASSERT_EQ(c.tensors().size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    float value = -1;
    std::memcpy(&value, c.tensors()[i].bytes.data(), sizeof value);
    EXPECT_EQ(value, static_cast<float>(i)) << c.tensors()[i].name;
  }
  EXPECT_NE(c.tensor("c"), nullptr);
}

TEST_F(GgufSplit, ASetOfOneIsOneFileOfAnyName) {
  write_file(folder.file("one.gguf"), image({.no = 0, .count = 1, .tensors = 1, .tensor = "a"}));
  EXPECT_EQ(open_checkpoint(folder.file("one.gguf")).tensors().size(), 1u);
}

TEST_F(GgufSplit, Case30MissingPart) {
  write_set();
  std::filesystem::remove(path(2));
  expect_refused(path(1), {"cannot open " + path(2)});
}

TEST_F(GgufSplit, Case30CyclicPart) {
  write_set();
  std::filesystem::remove(path(2));
  std::filesystem::create_symlink(path(1), path(2));
  expect_refused(path(1), {path(2), "split.no is 0", "expected 1"});
}

TEST_F(GgufSplit, Case30DifferingCounts) {
  write_set();
  write_file(path(3), image({.no = 2, .count = 4, .tensor = "c"}));
  expect_refused(path(1), {path(3), "split.count is 4", "expected 3"});
  write_file(path(3), image({.no = 2, .tensors = 9, .tensor = "c"}));
  expect_refused(path(1), {path(3), "split.tensors.count is 9", "expected 3"});
}

TEST_F(GgufSplit, Case30TensorCountOfTheSet) {
  write_file(path(1, 2), image({.no = 0, .count = 2, .tensors = 3, .tensor = "a"}));
  write_file(path(2, 2), image({.no = 1, .count = 2, .tensors = 3, .tensor = "b"}));
  expect_refused(path(1, 2), {path(1, 2), "the 2 parts hold 2 tensors", "expected 3"});
}

TEST_F(GgufSplit, Case30ForeignPart) {
  write_set();
  write_file(path(2), image({.no = 1, .tensor = "b", .name = "another set"}));
  expect_refused(path(1), {path(2), "general.name differs", path(1)});
  write_file(path(2), image({.no = 1, .tensor = "a"}));
  expect_refused(path(1), {path(2), "tensor a is in an earlier part"});
  write_file(path(2), testing::sound_gguf());
  expect_refused(path(1), {path(2), "key split.no is missing"});
  write_file(path(2), "GGUF");
  expect_refused(path(1), {path(2) + ": the file ends at byte 4"});
}

TEST_F(GgufSplit, ALaterPartPointsToTheFirst) {
  write_set();
  expect_refused(path(2), {"part 2 of 3", "open the first part", path(1)});
}

TEST_F(GgufSplit, ARenamedPartIsRefused) {
  write_file(folder.file("renamed.gguf"), image({.no = 0, .tensor = "a"}));
  expect_refused(folder.file("renamed.gguf"), {"part 1 of 3", "ends in -00001-of-00003.gguf"});
}

TEST_F(GgufSplit, NonsenseKeysAreRefused) {
  write_file(path(1), image({.no = 7, .tensor = "a"}));
  expect_refused(path(1), {"split.no is 7", "expected 0 to 2"});
  write_file(path(1), GgufBuilder(0, 1).key("split.count", B::I64, std::int64_t{-3}).zeros(40).bytes());
  expect_refused(path(1), {"split.count is -3"});
  write_file(path(1), GgufBuilder(0, 1).key("split.count", B::I64, std::int64_t{1} << 40).zeros(40).bytes());
  expect_refused(path(1), {"split.count is 1099511627776", "expected 1 to 99999"});
  write_file(path(1), GgufBuilder(0, 1).key_string("split.count", "three").zeros(40).bytes());
  expect_refused(path(1), {"split.count is a string"});
}

}  // namespace
}  // namespace gem
