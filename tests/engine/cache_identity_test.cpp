// Under which name a state may be resumed: what bits depend on changes it, nothing else does.
#include "engine/cache_identity.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>

#include "engine/cache_store.h"
#include "formats/temporary_folder.h"
#include "golden.h"

namespace gem {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class CacheIdentity : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = testing::golden_file("models/dense-a/q4_0.gguf");
    if (!path) GTEST_SKIP() << "golden model not at hand";
    file_ = folder_.file("m.gguf");
    fs::copy_file(*path, file_);
    time_ = fs::last_write_time(file_);
    usual_ = identity();
  }
  std::string identity(BackendKind kind = BackendKind::kCpu, unsigned threads = 1,
                       std::uint32_t context = 1024, std::uint32_t chunk = 24, KvType type = KvType::kF32) {
    const auto model = Model::load(file_, {.any_geometry = true});
    const auto backend = make_backend(kind, *model, threads);
    return cache_identity(*model, *backend, KvPlan::make(model->geometry(), context, chunk, type));
  }
  // Adds one to the byte at `at`.
  void edit(std::uint64_t at) {
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get() + 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  }

  testing::TemporaryFolder folder_;
  std::string file_, usual_;
  fs::file_time_type time_;
};

TEST_F(CacheIdentity, IsAnIdentity) {
  EXPECT_EQ(usual_.size(), 64u);
  EXPECT_EQ(usual_.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(identity(), usual_);
}

TEST_F(CacheIdentity, WhatBitsDoNotDependOnDoesNotChangeIt) {
  EXPECT_EQ(identity(BackendKind::kCpu, 2), usual_) << "threads";
  EXPECT_EQ(identity(BackendKind::kCpu, 1, 2048), usual_) << "a longer context, with the same rings";
  fs::rename(file_, folder_.file("other.gguf"));
  file_ = folder_.file("other.gguf");
  EXPECT_EQ(identity(), usual_) << "the file's name";
}

TEST_F(CacheIdentity, WhatBitsDependOnChangesIt) {
  EXPECT_NE(identity(BackendKind::kOracle), usual_);
  EXPECT_NE(identity(BackendKind::kCpu, 1, 1024, 24, KvType::kF16), usual_);
  EXPECT_NE(identity(BackendKind::kCpu, 1, 1024, 25), usual_) << "other rings";
  EXPECT_NE(identity(BackendKind::kCpu, 1, 16), usual_) << "no rings";
}

TEST_F(CacheIdentity, AnotherFileOfTheSameKindChangesIt) {
  const auto model = Model::load(file_, {.any_geometry = true});
  const TensorView& tensor = model->checkpoint().tensors().back();
  std::ifstream in(file_, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::size_t at =
      bytes.find(std::string_view(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()));
  ASSERT_NE(at, std::string::npos);
  for (const std::size_t place : {at, at + tensor.bytes.size() - 1}) {
    edit(place);
    fs::last_write_time(file_, time_);
    EXPECT_NE(identity(), usual_) << place;
    for (int i = 0; i < 255; ++i) edit(place);
    fs::last_write_time(file_, time_);
    EXPECT_EQ(identity(), usual_) << "put back, " << place;
  }
  // Where a page is not looked at, the time tells.
  fs::last_write_time(file_, time_ + 1s);
  EXPECT_NE(identity(), usual_);
}

// Metadata is the tokenizer and more: all of it counts.
TEST_F(CacheIdentity, MetadataChangesIt) {
  std::ifstream in(file_, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::size_t at = bytes.find("general.name");
  ASSERT_NE(at, std::string::npos);
  edit(at + std::string("general.name").size() + 4 + 8);  // after the type and the length
  fs::last_write_time(file_, time_);
  EXPECT_NE(identity(), usual_);
}

}  // namespace
}  // namespace gem
