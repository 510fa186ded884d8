// A pull from the fake hub: what lies in the cache afterwards, and what was asked for on the way.
#include <gtest/gtest.h>
#include <sys/file.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "base/error.h"
#include "hub/fake_hub.h"

namespace gem::testing {
namespace {

namespace fs = std::filesystem;

class PullTest : public HubTest {
 protected:
  std::string model = some_bytes(200'000);
};

// The layout that the Hugging Face tools read and write, written down by hand.
TEST_F(PullTest, LaysTheCacheOutAsTheHuggingFaceToolsDo) {
  add_large("q/model-Q4_0.gguf", model);
  const auto pulled = pull();
  const std::string digest = sha256_of(model);
  EXPECT_EQ(tree(), (std::vector<std::string>{"blobs/" + digest, "refs/main",
                                              "snapshots/" + std::string(kCommit) + "/q/model-Q4_0.gguf"}));
  EXPECT_EQ(read_all(repo() / "refs/main"), kCommit);
  EXPECT_EQ(fs::read_symlink(repo() / "snapshots" / kCommit / "q/model-Q4_0.gguf"),
            "../../../blobs/" + digest);
  EXPECT_EQ(pulled.main, repo() / "snapshots" / kCommit / "q/model-Q4_0.gguf");
  EXPECT_EQ(read_all(pulled.main), model);
  EXPECT_TRUE(fs::exists(settings.cache / ".locks/models--org--model" / (digest + ".lock")));
  EXPECT_EQ(pulled.received, model.size());
}

TEST_F(PullTest, GetsALargeFileInRangesThatCoverItOnce) {
  add_large("model-Q4_0.gguf", model);
  pull();
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (const LoopbackRequest& r : storage.requests()) {
    ASSERT_TRUE(r.range());
    ranges.push_back(*r.range());
  }
  std::ranges::sort(ranges);
  std::size_t next = 0;
  for (const auto& [first, last] : ranges) {
    EXPECT_EQ(first, next);
    EXPECT_LE(last - first + 1, options.download.largest_range);
    next = last + 1;
  }
  EXPECT_EQ(next, model.size());
  EXPECT_GT(ranges.size(), 8u);
}

TEST_F(PullTest, GetsAFolderWithTheShardsOfItsIndexAndNothingElse) {
  const std::string index = R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
      "b": "model-00002-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"}})";
  add_small("config.json", "{}");
  add_small("README.md", "# text");
  add_small("modeling.py", "print()");
  add_small("tokenizer_config.json", "{\"a\": 1}");
  add_large("tokenizer.json", some_bytes(30'000, 2));
  add_large("consolidated.safetensors", some_bytes(10, 9));
  add_small("model.safetensors.index.json", index);
  add_large("model-00001-of-00002.safetensors", some_bytes(50'000, 3));
  add_large("model-00002-of-00002.safetensors", some_bytes(50'001, 4));
  const auto pulled = pull();
  EXPECT_EQ(pulled.main, repo() / "snapshots" / kCommit);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(pulled.main)) {
    names.push_back(entry.path().filename());
    EXPECT_EQ(read_all(entry.path()), content[names.back()]) << names.back();
  }
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                       "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(find().main, pulled.main);
}

TEST_F(PullTest, GetsTheAssistantAndTheProjectorUnlessTheyAreNotWanted) {
  add_large("gemma-12b-Q4_0.gguf", model);
  add_large("mtp-gemma-12b-Q8_0.gguf", some_bytes(9000, 2));
  add_large("mmproj-gemma-12b-BF16.gguf", some_bytes(9000, 3));
  options.assistant = options.mmproj = false;
  EXPECT_TRUE(pull().assistant.empty());
  EXPECT_EQ(fs::exists(blob(content["mtp-gemma-12b-Q8_0.gguf"])), false);
  options.assistant = options.mmproj = true;
  const auto pulled = pull();
  EXPECT_EQ(read_all(pulled.assistant), content["mtp-gemma-12b-Q8_0.gguf"]);
  EXPECT_EQ(read_all(pulled.mmproj), content["mmproj-gemma-12b-BF16.gguf"]);
  EXPECT_EQ(pulled.received, 18'000u);  // the model itself was there
}

TEST_F(PullTest, GetsNothingTwice) {
  add_large("model-Q4_0.gguf", model);
  add_small("config.json", "{}");
  pull();
  storage.forget_requests();
  EXPECT_EQ(pull().received, 0u);
  EXPECT_TRUE(storage.requests().empty());
}

TEST_F(PullTest, ANewCommitReplacesTheRefAndSharesWhatIsTheSame) {
  add_large("model-Q4_0.gguf", model);
  add_large("mmproj.gguf", some_bytes(5000, 7));
  pull();
  storage.forget_requests();
  commit = "ffff456789abcdef0123456789abcdef01234567";
  info["sha"] = commit;
  info["siblings"].erase(1);
  add_large("mmproj.gguf", some_bytes(6000, 8));
  EXPECT_EQ(pull().received, 6000u);
  EXPECT_EQ(read_all(repo() / "refs/main"), commit);
  EXPECT_EQ(find().commit, commit);
  EXPECT_EQ(find(std::string("org/model@") + kCommit).commit, kCommit);
}

TEST_F(PullTest, ResumesWhatTheBeginningLacks) {
  add_large("model-Q4_0.gguf", model);
  fs::create_directories(repo() / "blobs");
  std::ofstream(incomplete(model), std::ios::binary) << model.substr(0, 150'000);
  const auto pulled = pull();
  EXPECT_EQ(read_all(pulled.main), model);
  EXPECT_EQ(pulled.received, 50'000u);
  for (const LoopbackRequest& r : storage.requests()) EXPECT_GE(r.range().value().first, 150'000u);
}

TEST_F(PullTest, StartsAgainWhereTheBeginningIsAnothers) {
  add_large("model-Q4_0.gguf", model);
  fs::create_directories(repo() / "blobs");
  std::ofstream(incomplete(model), std::ios::binary) << some_bytes(150'000, 5);
  EXPECT_EQ(read_all(pull().main), model);
  EXPECT_TRUE(noted("starting again"));
}

TEST_F(PullTest, ACompleteBeginningNeedsTheHubsWordOnly) {
  add_large("model-Q4_0.gguf", model);
  fs::create_directories(repo() / "blobs");
  std::ofstream(incomplete(model), std::ios::binary) << model;
  EXPECT_EQ(read_all(pull().main), model);
  EXPECT_TRUE(storage.requests().empty());
}

TEST_F(PullTest, GoesOnAfterConnectionsThatBreak) {
  add_large("model-Q4_0.gguf", model);
  std::mutex mutex;
  std::set<std::size_t> cut_once;  // each range, by its end
  on_storage = [&](const LoopbackRequest& r) -> std::optional<LoopbackReply> {
    const std::scoped_lock lock(mutex);
    if (!cut_once.insert(r.range()->second).second) return std::nullopt;
    LoopbackReply cut = serve_content(r, model);
    cut.cut_after = cut.body.size() / 2;
    return cut;
  };
  EXPECT_EQ(read_all(pull().main), model);
  // Half a range that came is not got again.
  std::size_t asked = 0;
  for (const LoopbackRequest& r : storage.requests()) asked += r.range()->second - r.range()->first + 1;
  EXPECT_LT(asked, model.size() * 2);
}

TEST_F(PullTest, TriesAgainWhenTheHubIsBusy) {
  add_large("model-Q4_0.gguf", model);
  add_small("x", "");
  std::atomic<int> hub_count{0}, storage_count{0};
  on_hub = [&](const LoopbackRequest&) -> std::optional<LoopbackReply> {
    return ++hub_count == 1 ? std::optional(LoopbackReply{.status = 503}) : std::nullopt;
  };
  on_storage = [&](const LoopbackRequest&) -> std::optional<LoopbackReply> {
    return ++storage_count == 1 ? std::optional(LoopbackReply{.status = 429}) : std::nullopt;
  };
  EXPECT_EQ(read_all(pull().main), model);
  EXPECT_TRUE(noted("503"));
  EXPECT_TRUE(noted("429"));
}

TEST_F(PullTest, GivesUpAfterEnoughTriesAndKeepsTheBeginning) {
  add_large("model-Q4_0.gguf", model);
  options.download.connections = 1;
  on_storage = [&](const LoopbackRequest& r) -> std::optional<LoopbackReply> {
    if (r.range()->first >= 100'000) return LoopbackReply{.status = 500};
    return std::nullopt;
  };
  EXPECT_NE(pull_fails().find("500"), std::string::npos);
  const std::string kept = read_all(incomplete(model));
  EXPECT_GE(kept.size(), 80'000u);
  EXPECT_EQ(kept, model.substr(0, kept.size()));
  EXPECT_FALSE(fs::exists(repo() / "refs/main"));
  on_storage = nullptr;
  EXPECT_EQ(pull().received, model.size() - kept.size());
}

TEST_F(PullTest, AnAddressOfTheStorageThatIsStaleIsAskedForAgain) {
  add_large("model-Q4_0.gguf", model);
  options.download.connections = 1;
  std::atomic<int> signature{0}, uses{0};
  on_hub = [&](const LoopbackRequest& r) -> std::optional<LoopbackReply> {
    if (r.target.find("/resolve/") == std::string::npos) return std::nullopt;
    uses = 0;
    return LoopbackReply{
        .status = 302,
        .fields = {{"Location", storage.url() + "/store/model-Q4_0.gguf?s=" + std::to_string(++signature)}}};
  };
  on_storage = [&](const LoopbackRequest&) -> std::optional<LoopbackReply> {
    return ++uses > 3 ? std::optional(LoopbackReply{.status = 403}) : std::nullopt;
  };
  EXPECT_EQ(read_all(pull().main), model);
  EXPECT_GT(signature, 2);
}

TEST_F(PullTest, CancellingLeavesABeginningThatTheNextPullGoesOnFrom) {
  add_large("model-Q4_0.gguf", model);
  options.download.connections = 1;
  on_storage = [&](const LoopbackRequest& r) -> std::optional<LoopbackReply> {
    if (r.range()->first < 60'000) return std::nullopt;
    LoopbackReply half = serve_content(r, model);
    half.cut_after = 1000;
    half.hold_after_cut = [] { return false; };
    return half;
  };
  events.progress = [&](const hub::PullProgress& p) {
    if (p.done > 61'000) cancelled = true;
  };
  EXPECT_EQ(pull_fails(), "interrupted");
  const std::string kept = read_all(incomplete(model));
  EXPECT_GT(kept.size(), 61'000u);  // the half range, too
  EXPECT_EQ(kept, model.substr(0, kept.size()));
  EXPECT_NE(find_fails().find("only a part of it is in the cache"), std::string::npos);
  cancelled = false;
  on_storage = nullptr;
  events.progress = [](const hub::PullProgress&) {};
  EXPECT_EQ(pull().received, model.size() - kept.size());
  EXPECT_EQ(read_all(find().main), model);
}

TEST_F(PullTest, WaitsForWhoeverHoldsTheLockAndTakesWhatItLeft) {
  add_large("model-Q4_0.gguf", model);
  const fs::path locks = settings.cache / ".locks/models--org--model";
  fs::create_directories(locks);
  const int held = ::open((locks / (sha256_of(model) + ".lock")).c_str(), O_RDWR | O_CREAT, 0644);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  events.note = [&](const std::string& text) {
    notes.push_back(text);
    if (text.find("another program") == std::string::npos) return;
    std::ofstream(blob(model), std::ios::binary) << model;  // as the other program would
    ::close(held);
  };
  EXPECT_EQ(pull().received, 0u);
  EXPECT_TRUE(noted("another program"));
  EXPECT_TRUE(storage.requests().empty());
}

TEST_F(PullTest, VerifyReadsTheCacheAgainAndReplacesWhatIsDamaged) {
  add_large("model-Q4_0.gguf", model);
  pull();
  std::string damaged = model;
  damaged[777] = static_cast<char>(damaged[777] ^ 1);
  std::ofstream(blob(model), std::ios::binary) << damaged;
  EXPECT_EQ(pull().received, 0u);  // the cache is trusted
  options.verify = true;
  EXPECT_EQ(pull().received, model.size());
  EXPECT_EQ(read_all(find().main), model);
}

TEST_F(PullTest, ABlobOfAnotherSizeIsGotAgain) {
  add_large("model-Q4_0.gguf", model);
  fs::create_directories(repo() / "blobs");
  std::ofstream(blob(model), std::ios::binary) << model.substr(0, 1000);
  EXPECT_EQ(read_all(pull().main), model);
}

TEST_F(PullTest, ProgressCountsEveryByteOnce) {
  add_large("model-00001-of-00002.gguf", model);
  add_large("model-00002-of-00002.gguf", some_bytes(3000, 2));
  hub::PullProgress last;
  std::uint64_t fresh = 0;
  events.progress = [&](const hub::PullProgress& p) {
    EXPECT_GE(p.done, last.done);
    EXPECT_LE(p.done, p.total);
    EXPECT_GE(p.fresh, fresh);
    fresh = p.fresh;
    last = p;
  };
  pull();
  EXPECT_EQ(last.total, model.size() + 3000);
  EXPECT_EQ(last.done, last.total);
  EXPECT_EQ(fresh, last.total);
  EXPECT_EQ(last.files, 2u);
}

TEST_F(PullTest, TheTokenGoesToTheHubAndNowhereElse) {
  add_large("model-Q4_0.gguf", model);
  settings.token = "hf_secret";
  pull();
  for (const LoopbackRequest& r : server.requests())
    EXPECT_EQ(r.fields.at("authorization"), "Bearer hf_secret");
  ASSERT_FALSE(storage.requests().empty());
  for (const LoopbackRequest& r : storage.requests()) EXPECT_FALSE(r.fields.contains("authorization"));
}

TEST_F(PullTest, SaysWhatAnAnswerMeans) {
  const auto answer = [&](int status, const std::string& code) {
    on_hub = [=](const LoopbackRequest&) {
      return LoopbackReply{.status = status,
                           .fields = {{"X-Error-Code", code}, {"X-Error-Message", "\033[31mbad"}}};
    };
    const std::string text = pull_fails();
    EXPECT_EQ(text.find('\033'), std::string::npos);
    return text;
  };
  EXPECT_NE(answer(401, "RepoNotFound").find("no token was sent: set HF_TOKEN"), std::string::npos);
  settings.token = "hf_wrong";
  const std::string refused = answer(403, "");
  EXPECT_NE(refused.find("the token was not accepted"), std::string::npos);
  EXPECT_EQ(refused.find("hf_wrong"), std::string::npos);
  EXPECT_NE(answer(403, "GatedRepo").find("org/model is gated: accept its terms"), std::string::npos);
  EXPECT_NE(answer(404, "RevisionNotFound").find("no such revision"), std::string::npos);
}

TEST_F(PullTest, ARevisionIsAskedForByItsNameAndKeptUnderIt) {
  add_large("model-Q4_0.gguf", model);
  on_hub = [&](const LoopbackRequest& r) -> std::optional<LoopbackReply> {
    if (r.target != "/api/models/org/model/revision/refs%2Fpr%2F1?blobs=true") return std::nullopt;
    return LoopbackReply{.body = info.dump()};
  };
  pull("org/model@refs/pr/1");
  EXPECT_EQ(read_all(repo() / "refs/refs/pr/1"), kCommit);
  EXPECT_EQ(read_all(find("org/model@refs/pr/1").main), model);
  EXPECT_NE(find_fails().find("'gem pull org/model' gets it"), std::string::npos);
}

TEST_F(PullTest, TheCacheIsSearchedAsTheHubIs) {
  add_large("model-Q4_0.gguf", model);
  add_large("model-Q8_0.gguf", some_bytes(9000, 2));
  pull();
  pull("org/model:Q8_0");
  EXPECT_EQ(find().main.filename(), "model-Q4_0.gguf");
  EXPECT_EQ(find("org/model:q8_0").main.filename(), "model-Q8_0.gguf");
  EXPECT_NE(find_fails("org/model:Q6_K").find("no model that \"Q6_K\" means"), std::string::npos);
}

TEST_F(PullTest, AHubWithoutRangesIsReadFromTheStart) {
  add_large("model-Q4_0.gguf", model);
  on_storage = [&](const LoopbackRequest&) { return LoopbackReply{.body = model}; };
  fs::create_directories(repo() / "blobs");
  std::ofstream(incomplete(model), std::ios::binary) << model.substr(0, 70'000);
  EXPECT_EQ(read_all(pull().main), model);
  EXPECT_TRUE(noted("gives no ranges"));
}

TEST_F(PullTest, AFileOfNoBytesIsAFile) {
  add_large("model-Q4_0.gguf", "");
  EXPECT_EQ(read_all(pull().main), "");
  EXPECT_EQ(fs::file_size(find().main), 0u);
}

}  // namespace
}  // namespace gem::testing
