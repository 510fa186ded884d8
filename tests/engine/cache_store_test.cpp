// States of prompts on disk: replies after a restart are those of fresh runs bit for bit, whatever the files
// hold.
#include "engine/cache_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "base/digest.h"
#include "base/error.h"
#include "engine/kept_prompts.h"
#include "formats/temporary_folder.h"

namespace gem {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::Collector;
using testing::filled;
using testing::Tokens;

constexpr std::size_t kHead = 104, kDigest = 64;

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}
std::string sha256(std::string_view bytes) {
  Digest digest(DigestKind::kSha256, 0);
  digest.update(std::span(bytes.data(), bytes.size()));
  return digest.hex();
}
// Puts a number into the head, and makes both digests right again.
template <typename T>
std::string forged(std::string bytes, std::size_t offset, T value) {
  std::uint32_t positions = 0;
  std::memcpy(&positions, bytes.data() + 12, sizeof positions);
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  const std::size_t head = kHead + std::size_t{positions} * 4;
  bytes.replace(head, kDigest, sha256(std::string_view(bytes).substr(0, head)));
  bytes.replace(bytes.size() - kDigest, kDigest,
                sha256(std::string_view(bytes).substr(0, bytes.size() - kDigest)));
  return bytes;
}

class CacheStoreTest : public testing::KeptPrompts {
 protected:
  CacheStoreOptions options(std::uint64_t budget = std::uint64_t{1} << 30) {
    return {.folder = folder_.file("kept"),
            .budget = budget,
            .identity = std::string(64, 'a'),
            .plan = engine(nullptr).cache_plan(),
            .settle = 0ms,
            .log = [this](const std::string& line) {
              const std::lock_guard lock(mutex_);
              lines_.push_back(line);
            }};
  }
  static std::unique_ptr<PromptCache> cache(CacheStoreOptions o, std::uint64_t memory = 64 << 20) {
    return std::make_unique<PromptCache>(memory, std::make_unique<CacheStore>(std::move(o)));
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_.file("kept")))
      if (entry.path().filename() != "lock") found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
  }
  // Serves the request from an empty slot with what is kept, and checks it against a fresh run. The prompt
  // tokens that were reused.
  std::uint32_t reuse(PromptCache& kept, const GenerationRequest& r) {
    Engine with = engine(&kept);
    Collector found;
    KeptState slot;
    const auto stream = serve(with, r, found, slot);
    expect_fresh(r, found);
    return stream->times().reused;
  }
  // One state of a prompt of that many tokens, written. Its file.
  fs::path one_state(std::uint32_t length) {
    const auto kept = cache(options());
    reuse(*kept, request(tokens(1, length), 3));
    kept->store()->flush();
    EXPECT_EQ(files().size(), 1u);
    return files().front();
  }
  GenerationRequest next(std::uint32_t length) {
    return request(joined(tokens(1, length), tokens(9, 20)), 12);
  }

  testing::TemporaryFolder folder_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_P(CacheStoreTest, AfterARestartAReplyContinuesAsAFreshOneWould) {
  for (const std::uint32_t length : {40u, 3 * window_ + 7, 256u, 700u}) {
    SCOPED_TRACE(length);
    fs::remove_all(folder_.file("kept"));
    one_state(length);
    const auto again = cache(options());
    EXPECT_EQ(again->status().disk.states, 1u);
    EXPECT_EQ(reuse(*again, next(length)), length);
    EXPECT_EQ(again->status().disk.loaded, 1u);
    // The same prompt again, from memory now.
    EXPECT_EQ(reuse(*again, request(tokens(1, length), 5)), length - 1);
    EXPECT_EQ(again->status().disk.loaded, 1u);
  }
  EXPECT_TRUE(lines().empty()) << lines().front();
}

TEST_P(CacheStoreTest, AConversationOverManyRestarts) {
  std::mt19937 random(5);
  std::vector<Tokens> said = {tokens(0, 60)};
  std::uint64_t reused = 0;
  std::uint64_t loaded = 0;
  for (std::uint32_t life = 0; life < 6; ++life) {
    // Now and then memory holds little, so that what is asked for comes from disk.
    const auto kept = cache(options(), life % 2 == 0 ? 64 << 20 : 1 << 20);
    Engine with = engine(kept.get());
    KeptState slot;
    for (std::uint32_t turn = 0; turn < 4; ++turn) {
      Tokens prompt = said[random() % said.size()];
      if (random() % 3 == 0) prompt.resize(1 + random() % prompt.size());
      prompt = joined(prompt, tokens(100 + 10 * life + turn, 1 + random() % 90));
      const GenerationRequest r = request(prompt, 1 + static_cast<std::uint32_t>(random() % 60));
      Collector found;
      const auto stream = serve(with, r, found, slot);
      expect_fresh(r, found);
      reused += stream->times().reused;
      said.push_back(stream->tokens());
    }
    loaded += kept->status().disk.loaded;
  }
  EXPECT_GT(loaded, 3u);
  EXPECT_GT(reused, 24u * window_);
}

// A prompt's state that has been written goes out of memory, and is found again.
TEST_P(CacheStoreTest, WhatMemoryHasNoRoomForIsFoundOnDisk) {
  PromptCache measure(64 << 20);
  ASSERT_TRUE(measure.keep(*filled(*backend_, options().plan, 300), tokens(1, 300)));
  const auto kept = cache(options(), 2 * measure.status().bytes + 1000);
  for (std::uint32_t i = 0; i < 5; ++i) {
    reuse(*kept, request(tokens(i, 300), 1));
    kept->store()->flush();
  }
  EXPECT_LE(kept->status().bytes, kept->status().budget);
  EXPECT_EQ(kept->status().disk.written, 5u);
  for (std::uint32_t i = 0; i < 5; ++i)
    EXPECT_EQ(reuse(*kept, request(joined(tokens(i, 300), tokens(77, 5)), 4)), 300u) << i;
  EXPECT_LE(kept->status().bytes, kept->status().budget);
}

TEST_P(CacheStoreTest, FilesAreTheUsersAlone) {
  const ::mode_t before = ::umask(0);
  const fs::path file = one_state(50);
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  ASSERT_EQ(::stat((folder_.file("kept") + "/lock").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  ASSERT_EQ(::stat(folder_.file("kept").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  // One that was made by hand, and is for this alone, is closed.
  fs::permissions(folder_.file("kept"), fs::perms(0755));
  const CacheStore again(options());
  ASSERT_EQ(::stat(folder_.file("kept").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
}

TEST_P(CacheStoreTest, AFileThatIsCutOffIsRemovedAndSaid) {
  const fs::path file = one_state(90);
  const std::string whole = read_bytes(file);
  const std::size_t head = kHead + 90 * 4;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, kHead - 1, kHead, kHead + 1, head - 1, head, head + kDigest,
        whole.size() / 2, whole.size() - kDigest, whole.size() - 1}) {
    SCOPED_TRACE(size);
    lines_.clear();
    write_bytes(file, whole.substr(0, size));
    const auto kept = cache(options());
    EXPECT_EQ(kept->status().disk.states, 0u);
    EXPECT_EQ(kept->status().disk.rejected, 1u);
    EXPECT_EQ(kept->status().disk.bytes, 0u);
    EXPECT_FALSE(fs::exists(file));
    ASSERT_EQ(lines().size(), 1u);
    EXPECT_NE(lines()[0].find(file.string()), std::string::npos) << lines()[0];
    EXPECT_NE(lines()[0].find("removed"), std::string::npos) << lines()[0];
  }
  write_bytes(file, whole + "x");
  EXPECT_EQ(cache(options())->status().disk.rejected, 1u);
}

// Any bit, anywhere: the reply is what it would be without.
TEST_P(CacheStoreTest, NoBitMayChange) {
  const fs::path file = one_state(90);
  const std::string whole = read_bytes(file);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < kHead + 90 * 4 + kDigest; i += i < kHead ? 1 : 13) places.push_back(i);
  for (std::size_t i = 0; i < 8; ++i) places.push_back(kHead + 90 * 4 + kDigest + i * (whole.size() / 9));
  for (std::size_t i = 1; i <= kDigest; i += 7) places.push_back(whole.size() - i);
  for (const std::size_t at : places) {
    ASSERT_LT(at, whole.size());
    SCOPED_TRACE(at);
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    write_bytes(file, bytes);
    const auto kept = cache(options());
    const std::uint32_t found = kept->longest_on_disk(options().plan, next(90).prompt, 0);
    const auto like = backend_->new_cache(options().plan);
    while (const auto load = kept->begin_fetch(*like, next(90).prompt, 0)) load->wait();
    EXPECT_EQ(kept->longest(options().plan, next(90).prompt), 0u);
    EXPECT_EQ(kept->status().disk.rejected, 1u) << "found " << found;
    EXPECT_FALSE(fs::exists(file));
    EXPECT_EQ(kept->status().bytes, 0u);
  }
}

// Whoever it was read for has gone: its memory is others' then.
TEST_P(CacheStoreTest, WhatNobodyWaitedForLeavesLikeAnyOther) {
  one_state(90);
  PromptCache measure(64 << 20);
  reuse(measure, request(tokens(1, 90), 1));
  const std::uint64_t one = measure.status().bytes;
  const auto kept = cache(options(), one + one / 2);
  const auto like = backend_->new_cache(options().plan);
  {
    const auto load = kept->begin_fetch(*like, next(90).prompt, 0);
    ASSERT_NE(load, nullptr);
    load->wait();
  }
  reuse(*kept, request(tokens(5, 90), 1));
  EXPECT_EQ(kept->longest(options().plan, joined(tokens(5, 90), {1})), 90u);
  EXPECT_LE(kept->status().bytes, kept->status().budget);
}

TEST_P(CacheStoreTest, ADamagedStateIsPassedOverForTheNextOne) {
  {
    const auto kept = cache(options());
    reuse(*kept, request(tokens(1, 100), 1));
    kept->store()->flush();
    reuse(*kept, next(100));
    kept->store()->flush();
  }
  ASSERT_EQ(files().size(), 2u);
  // The longer one, in its last row.
  const fs::path file = fs::file_size(files()[0]) > fs::file_size(files()[1]) ? files()[0] : files()[1];
  std::string bytes = read_bytes(file);
  bytes[bytes.size() - kDigest - 1] ^= 1;
  write_bytes(file, bytes);
  const auto kept = cache(options());
  EXPECT_EQ(kept->status().disk.states, 2u);
  const GenerationRequest r = request(joined(next(100).prompt, tokens(4, 9)), 8);
  EXPECT_EQ(kept->longest_on_disk(options().plan, r.prompt, 0), 120u);
  EXPECT_EQ(reuse(*kept, r), 100u);
  EXPECT_EQ(lines().size(), 1u);
  EXPECT_FALSE(fs::exists(file));
}

// Heads that lie with digests that are right.
TEST_P(CacheStoreTest, LengthsAreCheckedBeforeAnythingIsAllocated) {
  const fs::path file = one_state(90);
  const std::string whole = read_bytes(file);
  const auto number = [&]<typename T>(std::size_t offset, T) {
    T value{};
    std::memcpy(&value, whole.data() + offset, sizeof value);
    return value;
  };
  const auto first_ring = number(80, std::uint32_t{});
  const auto fixed_row = number(88, std::uint64_t{});
  const auto ring_row = number(96, std::uint64_t{});
  ASSERT_EQ(number(12, std::uint32_t{}), 90u);
  ASSERT_EQ(kHead + 90 * 4 + 2 * kDigest + 90 * fixed_row + (90 - first_ring) * ring_row, whole.size());
  const auto found = [&](const std::string& bytes) {
    write_bytes(file, bytes);
    const auto kept = cache(options());
    const auto like = backend_->new_cache(options().plan);
    while (const auto load = kept->begin_fetch(*like, next(90).prompt, 0)) load->wait();
    return kept->longest(options().plan, next(90).prompt);
  };
  EXPECT_EQ(found(forged(whole, 12, std::uint32_t{90})), 90u);  // the forger itself makes no mistake
  for (const std::uint32_t positions : {0u, 1u, 89u, 91u, 1u << 20, ~0u})
    EXPECT_EQ(found(forged(whole, 12, positions)), 0u) << positions;
  for (const std::uint32_t first : {0u, first_ring - 1, first_ring + 1, 90u, 91u, ~0u})
    EXPECT_EQ(found(forged(whole, 80, first)), 0u) << first;
  for (const std::uint64_t row :
       {std::uint64_t{0}, fixed_row - 1, fixed_row + 1, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_EQ(found(forged(whole, 88, row)), 0u) << row;
    EXPECT_EQ(found(forged(whole, 96, row)), 0u) << row;
  }
  // As long as they say, and still no rows of this cache: bytes moved from the rings' rows to the fixed ones.
  ASSERT_GT(ring_row, 90u);
  EXPECT_EQ(found(forged(forged(whole, 96, ring_row - 90), 88, fixed_row + (90 - first_ring))), 0u);
  // Rows of the right size, as many as they say: too few for the window, more than the ring has.
  for (const std::uint32_t first : {89u, 91 - window_ + 1, 0u}) {
    std::string bytes = whole.substr(0, whole.size() - kDigest);
    bytes.resize(bytes.size() - (90 - first_ring) * ring_row + (90 - first) * ring_row);
    bytes.append(kDigest, '0');
    EXPECT_EQ(found(forged(bytes, 80, first)), 0u) << first;
  }
  EXPECT_EQ(found(forged(whole, 8, std::uint32_t{2})), 0u) << "another version";
}

TEST_P(CacheStoreTest, LinksPipesAndFoldersAreLeftAlone) {
  const fs::path file = one_state(90);
  const fs::path elsewhere = folder_.file("elsewhere");
  fs::rename(file, elsewhere);
  fs::create_symlink(elsewhere, file);
  const fs::path pipe =
      file.parent_path() / (file.filename().string().substr(0, 17) + std::string(32, '0') + ".gemstate");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0) << pipe;
  write_bytes(file.parent_path() / "notes.txt", "mine");
  const fs::path inside = file.parent_path() / "folder";
  fs::create_directory(inside);
  auto kept = cache(options());
  EXPECT_EQ(kept->status().disk.states, 0u);
  EXPECT_EQ(kept->status().disk.bytes, 0u);
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_NE(lines()[0].find("4 files"), std::string::npos) << lines()[0];
  EXPECT_EQ(kept->longest_on_disk(options().plan, next(90).prompt, 0), 0u);
  // What is written takes the link's place, not that of what it points to.
  const std::string was = read_bytes(elsewhere);
  kept = nullptr;
  kept = cache(options());
  reuse(*kept, request(tokens(1, 90), 1));
  kept->store()->flush();
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(file)));
  EXPECT_EQ(read_bytes(elsewhere), was);
  EXPECT_TRUE(fs::exists(pipe) && fs::exists(inside) && fs::exists(file.parent_path() / "notes.txt"));
  // Links that come later are not followed either.
  kept = nullptr;
  kept = cache(options());
  fs::remove(file);
  fs::create_symlink(elsewhere, file);
  EXPECT_EQ(reuse(*kept, next(90)), 0u);
  EXPECT_TRUE(fs::exists(elsewhere));
}

TEST_P(CacheStoreTest, OtherModelsStatesAreNotUsedButCountAndLeaveFirst) {
  const fs::path file = one_state(90);
  const std::uint64_t size = fs::file_size(file);
  CacheStoreOptions other = options(2 * size + size / 2);
  other.identity = std::string(64, 'b');
  {
    const auto kept = cache(other);
    EXPECT_EQ(kept->status().disk.states, 0u);
    EXPECT_EQ(kept->status().disk.foreign, 1u);
    EXPECT_EQ(kept->status().disk.bytes, size);
    EXPECT_EQ(reuse(*kept, request(tokens(1, 90), 1)), 0u);
    kept->store()->flush();
    EXPECT_EQ(files().size(), 2u);
    EXPECT_EQ(reuse(*kept, request(tokens(2, 90), 1)), 0u);
    kept->store()->flush();
    EXPECT_EQ(files().size(), 2u);
    EXPECT_FALSE(fs::exists(file));
    EXPECT_EQ(kept->status().disk.foreign, 0u);
  }
  // A name of ours with the contents of another is none of ours.
  const fs::path theirs = files()[0];
  std::string name = theirs.filename().string();
  name.replace(0, 16, std::string(16, 'a'));
  fs::rename(theirs, theirs.parent_path() / name);
  EXPECT_EQ(cache(options())->status().disk.rejected, 1u);
}

TEST_P(CacheStoreTest, TheCapHoldsAndTheLeastRecentlyUsedLeaveAcrossRestarts) {
  const std::uint64_t size = fs::file_size(one_state(90));
  const std::uint64_t budget = 3 * size + size / 2;
  const auto has = [&](PromptCache& kept, std::uint32_t i) {
    return kept.longest_on_disk(options().plan, joined(tokens(i, 90), {1}), 0) == 90;
  };
  {
    const auto kept = cache(options(budget));
    for (const std::uint32_t i : {2u, 3u}) {
      reuse(*kept, request(tokens(i, 90), 1));
      kept->store()->flush();
    }
  }
  {
    const auto kept = cache(options(budget));
    EXPECT_TRUE(has(*kept, 1) && has(*kept, 2) && has(*kept, 3));
    GenerationRequest r = request(joined(tokens(1, 90), {1}), 1);
    r.keep_prompt = false;
    EXPECT_EQ(reuse(*kept, r), 90u);  // now 2 is the oldest
  }
  {
    const auto kept = cache(options(budget));
    reuse(*kept, request(tokens(4, 90), 1));
    kept->store()->flush();
    EXPECT_TRUE(has(*kept, 1) && !has(*kept, 2));
    EXPECT_LE(kept->status().disk.bytes, budget);
    std::uint64_t found = 0;
    for (const fs::path& file : files()) found += fs::file_size(file);
    EXPECT_EQ(kept->status().disk.bytes, found);
  }
  // A smaller cap holds at once.
  const auto kept = cache(options(size + size / 2));
  EXPECT_EQ(files().size(), 1u);
  EXPECT_EQ(kept->status().disk.states, 1u);
}

TEST_P(CacheStoreTest, WhatAKilledProcessLeftIsRemoved) {
  const fs::path file = one_state(90);
  const fs::path part = file.string() + ".part-12345-0";
  fs::rename(file, part);
  EXPECT_EQ(cache(options())->status().disk.states, 0u);
  EXPECT_FALSE(fs::exists(part));
}

TEST_P(CacheStoreTest, AFolderThatCannotBeUsedIsSaidAtTheStart) {
  const auto refused = [&](const std::string& folder) -> std::string {
    CacheStoreOptions o = options();
    o.folder = folder;
    try {
      const CacheStore store(o);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      return e.what();
    }
    return "";
  };
  write_bytes(folder_.file("file"), "x");
  EXPECT_NE(refused(folder_.file("file")).find("not a folder"), std::string::npos);
  EXPECT_NE(refused(folder_.file("file") + "/kept").find("Not a directory"), std::string::npos);
  EXPECT_NE(refused("/proc/self/kept").find("cannot make"), std::string::npos);
  fs::create_directory(folder_.file("shared"));
  write_bytes(folder_.file("shared") + "/letter", "x");
  fs::permissions(folder_.file("shared"), fs::perms(0755));
  EXPECT_NE(refused(folder_.file("shared")).find("open to others"), std::string::npos);
  fs::permissions(folder_.file("shared"), fs::perms(0700));
  EXPECT_EQ(refused(folder_.file("shared")), "");
  fs::remove(folder_.file("shared") + "/lock");
  fs::create_symlink(folder_.file("file"), folder_.file("shared") + "/lock");
  EXPECT_NE(refused(folder_.file("shared")).find("cannot write"), std::string::npos);
  const CacheStore holder(options());
  EXPECT_NE(refused(options().folder).find("in use"), std::string::npos);
}

// Nobody waits for the writer: what it cannot take is passed over.
TEST_P(CacheStoreTest, FewWaitAndTheEndIsBounded) {
  CacheStoreOptions slow = options();
  slow.settle = std::chrono::hours(24);
  slow.flush = 0ms;
  {
    const auto kept = cache(slow);
    const auto state = filled(*backend_, slow.plan, 50);
    for (std::uint32_t i = 0; i < 7; ++i) ASSERT_TRUE(kept->keep(*state, tokens(i, 50)));
    EXPECT_EQ(kept->status().disk.waiting, CacheStore::kMostWaiting);
    EXPECT_EQ(kept->status().disk.skipped, 7 - CacheStore::kMostWaiting);
  }
  EXPECT_TRUE(files().empty());  // given up
  slow.flush = std::chrono::minutes(1);
  {
    const auto kept = cache(slow);
    for (std::uint32_t i = 0; i < 7; ++i)
      ASSERT_TRUE(kept->keep(*filled(*backend_, slow.plan, 50), tokens(i, 50)));
  }
  EXPECT_EQ(files().size(), CacheStore::kMostWaiting);  // written at the end
  {
    const auto kept = cache(slow);
    ASSERT_TRUE(kept->keep(*filled(*backend_, slow.plan, 50), tokens(20, 50)));
    kept->store()->abandon();
  }
  EXPECT_EQ(files().size(), CacheStore::kMostWaiting);
}

// While a conversation goes on only its latest state is written.
TEST_P(CacheStoreTest, ALongerStateTakesThePlaceOfOneThatWaits) {
  CacheStoreOptions slow = options();
  slow.settle = std::chrono::hours(24);
  const auto kept = cache(slow);
  const Tokens text = tokens(1, 300);
  for (const std::uint32_t length : {50u, 90u, 280u})
    ASSERT_TRUE(kept->keep(*filled(*backend_, slow.plan, length), std::span(text).first(length)));
  ASSERT_TRUE(kept->keep(*filled(*backend_, slow.plan, 60), tokens(2, 60)));
  EXPECT_EQ(kept->status().disk.waiting, 2u);
  kept->store()->flush();
  EXPECT_EQ(files().size(), 2u);
  EXPECT_EQ(kept->longest_on_disk(slow.plan, joined(tokens(2, 60), {1}), 0), 0u) << "memory has it";
  kept->clear();
  EXPECT_EQ(kept->longest_on_disk(slow.plan, joined(text, {1}), 0), 280u);
  EXPECT_EQ(kept->longest_on_disk(slow.plan, joined(tokens(2, 60), {1}), 0), 60u);
}

// Memory that is needed is not held for the disk.
TEST_P(CacheStoreTest, WhatWaitsLeavesMemoryWithItsState) {
  PromptCache measure(64 << 20);
  CacheStoreOptions slow = options();
  slow.settle = std::chrono::hours(24);
  slow.flush = 0ms;
  const auto state = filled(*backend_, slow.plan, 200);
  ASSERT_TRUE(measure.keep(*state, tokens(0, 200)));
  const auto kept = cache(slow, 3 * measure.status().bytes + 100);
  for (std::uint32_t i = 0; i < 6; ++i) {
    kept->keep(*state, tokens(i, 200));  // or not, while one is being written
    EXPECT_LE(kept->status().bytes, kept->status().budget);
    EXPECT_LE(kept->status().disk.waiting, 3u);
  }
}

// With a memory that is full, states would leave before they had settled.
TEST_P(CacheStoreTest, WhenMemoryIsShortNothingSettles) {
  PromptCache measure(64 << 20);
  CacheStoreOptions slow = options();
  slow.settle = std::chrono::hours(24);
  const auto state = filled(*backend_, slow.plan, 200);
  ASSERT_TRUE(measure.keep(*state, tokens(0, 200)));
  const auto kept = cache(slow, 4 * measure.status().bytes + 100);
  for (std::uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(kept->keep(*state, tokens(i, 200))) << i;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (kept->status().disk.written == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_EQ(kept->status().disk.written, 1u);
  kept->clear();
  EXPECT_EQ(kept->longest_on_disk(slow.plan, joined(tokens(4, 200), {1}), 0), 200u);
}

TEST_P(CacheStoreTest, AFullDiskIsSaidOnceAndLeavesNothingBehind) {
  const auto kept = cache(options());
  const auto state = filled(*backend_, options().plan, 300);
  ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit small { 4096, before.rlim_max };
  ::setrlimit(RLIMIT_FSIZE, &small);
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(kept->keep(*state, tokens(i, 300)));
    kept->store()->flush();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(kept->status().disk.skipped, 3u);
  EXPECT_EQ(lines().size(), 1u);
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(kept->status().disk.bytes, 0u);
  ASSERT_TRUE(kept->keep(*state, tokens(9, 300)));
  kept->store()->flush();
  EXPECT_EQ(files().size(), 1u);
}

TEST_P(CacheStoreTest, AStateLargerThanTheCapPushesNothingOut) {
  const fs::path file = one_state(90);
  const auto kept = cache(options(fs::file_size(file) + 10));
  ASSERT_TRUE(kept->keep(*filled(*backend_, options().plan, 200), tokens(5, 200)));
  kept->store()->flush();
  EXPECT_TRUE(fs::exists(file));
  EXPECT_EQ(kept->status().disk.skipped, 1u);
}

// A few tokens that all prompts begin with are not worth a file.
TEST_P(CacheStoreTest, LittleIsNotReadBack) {
  one_state(20 * CacheStore::kLeastGain);
  const auto kept = cache(options());
  const auto gain = [&](std::uint32_t length, std::uint32_t have) {
    return kept->longest_on_disk(options().plan, joined(Tokens(tokens(1, length)), tokens(8, 3)), have);
  };
  constexpr std::uint32_t kAll = 20 * CacheStore::kLeastGain;
  EXPECT_EQ(gain(kAll, 0), kAll);
  EXPECT_EQ(gain(kAll, kAll - kAll / 8), kAll);
  EXPECT_EQ(gain(kAll, kAll - kAll / 8 + 1), 0u);
  EXPECT_EQ(gain(kAll, kAll), 0u);
}

INSTANTIATE_TEST_SUITE_P(DenseA, CacheStoreTest, ::testing::Values(KvType::kF32, KvType::kF16Full),
                         [](const auto& test) { return test.param == KvType::kF32 ? "f32" : "f16_full"; });

}  // namespace
}  // namespace gem
