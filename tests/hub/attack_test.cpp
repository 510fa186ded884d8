// What a hostile or broken hub can answer (S15 of the hardening list): nothing lands outside the cache, no
// bad byte gets a name, and the message says what was wrong.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <vector>

#include "base/error.h"
#include "hub/fake_hub.h"

namespace gem::testing {
namespace {

namespace fs = std::filesystem;

class HubAttack : public HubTest {
 protected:
  // Nothing has a name in a snapshot, no blob is whole, nothing is outside.
  void expect_nothing_kept() {
    for (const std::string& path : tree()) EXPECT_TRUE(path.ends_with(".incomplete")) << path;
    EXPECT_EQ(outside(), std::vector<std::string>());
  }
  void expect_says(const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  std::string model = some_bytes(60'000);
};

TEST_F(HubAttack, NamesThatLeaveTheFolder) {
  for (const char* name :
       {"../x.gguf", "a/../../x.gguf", "/tmp/x.gguf", "a//x.gguf", "./x.gguf", "a/./x.gguf", "..", "x/..", "",
        "a\\..\\x.gguf", "x\n.gguf", "x\033[31m.gguf", "a/", "x\xC2\x9B.gguf"}) {
    info["siblings"] = nlohmann::ordered_json::array();
    add_large("model-Q4_0.gguf", model);
    add_large(name, model);
    const std::string message = pull_fails();
    expect_says(message, "does not stay inside a folder");
    EXPECT_EQ(message.find('\033'), std::string::npos);
  }
  info["siblings"] = nlohmann::ordered_json::array();
  add_large(std::string("x\0.gguf", 7), model);
  expect_says(pull_fails(), "does not stay inside a folder");
  add_large(std::string(300, 'a') + ".gguf", model);
  pull_fails();
  EXPECT_TRUE(tree().empty());
  EXPECT_EQ(outside(), std::vector<std::string>());
}

TEST_F(HubAttack, AShardIndexThatNamesOtherPlaces) {
  add_small("config.json", "{}");
  add_large("a.safetensors", model);
  add_small("model.safetensors.index.json", "");
  const auto with = [&](const std::string& index) {
    info["siblings"].erase(info["siblings"].size() - 1);
    add_small("model.safetensors.index.json", index);
    return pull_fails();
  };
  expect_says(with(R"({"weight_map": {"t": "../a.safetensors"}})"), "not the name of a shard");
  expect_says(with(R"({"weight_map": {"t": "/etc/a.safetensors"}})"), "not the name of a shard");
  expect_says(with(R"({"weight_map": {"t": "config.json"}})"), "not the name of a shard");
  expect_says(with(R"({"weight_map": {"t": "missing.safetensors"}})"), "which is not there");
  expect_says(with(R"({"weight_map": {"t": 7}})"), "not a name");
  expect_says(with(R"({"weight_map": {}})"), "no weight_map");
  expect_says(with(R"([])"), "no weight_map");
  expect_says(with("{"), "not JSON");
  expect_says(with(std::string(100'000, '[')), "nested too deep");
  EXPECT_EQ(outside(), std::vector<std::string>());
  EXPECT_FALSE(fs::exists(blob(model)));
}

TEST_F(HubAttack, AFolderOfTheSnapshotThatIsALink) {
  const fs::path elsewhere = folder.file("elsewhere");
  fs::create_directories(elsewhere);
  fs::create_directories(repo() / "snapshots" / kCommit);
  fs::create_directory_symlink(elsewhere, repo() / "snapshots" / kCommit / "q");
  add_large("q/model-Q4_0.gguf", model);
  expect_says(pull_fails(), "is not a folder");
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

// A repository cannot make such a link itself: a name that is a file first and a folder then.
TEST_F(HubAttack, AFileThatIsAFolderToo) {
  add_small("config.json", "{}");
  add_large("model.safetensors", model);
  info["siblings"].push_back(info["siblings"][1]);
  info["siblings"].back()["rfilename"] = "tokenizer.json";
  const std::string weights = R"({"weight_map": {"t": "model.safetensors"}})";
  add_small("model.safetensors.index.json", weights);
  content["tokenizer.json"] = model;
  add_large("model-Q4_0.gguf", model);
  add_large("model-Q4_0.gguf/mmproj.gguf", some_bytes(100, 3));
  expect_says(pull_fails(), "is not a folder");
  EXPECT_EQ(outside(), std::vector<std::string>());
}

TEST_F(HubAttack, ABeginningThatIsALink) {
  const std::string victim = folder.file("victim");
  std::ofstream(victim) << "precious";
  add_large("model-Q4_0.gguf", model);
  fs::create_directories(repo() / "blobs");
  fs::create_symlink(victim, incomplete(model));
  expect_says(pull_fails(), "cannot write");
  EXPECT_EQ(read_all(victim), "precious");
}

TEST_F(HubAttack, BytesOfAnotherDigest) {
  add_large("model-Q4_0.gguf", model);
  content["model-Q4_0.gguf"][40'000] ^= 1;
  const std::string message = pull_fails();
  expect_says(message, "is not what the hub lists");
  expect_says(message, sha256_of(model));
  EXPECT_TRUE(tree().empty());  // not even a beginning
}

TEST_F(HubAttack, ASmallFileOfAnotherDigest) {
  add_small("config.json", "{}");
  add_large("model.safetensors", model);
  content["config.json"] = "[]";
  expect_says(pull_fails(), "is not what the hub lists");
  expect_nothing_kept();
}

TEST_F(HubAttack, FilesShorterAndLongerThanListed) {
  add_large("model-Q4_0.gguf", model);
  content["model-Q4_0.gguf"] = model.substr(0, 50'000);
  expect_says(pull_fails(), "model-Q4_0.gguf");
  expect_nothing_kept();
  content["model-Q4_0.gguf"] = model + "more";
  expect_says(pull_fails(), "60004");
  expect_nothing_kept();
}

TEST_F(HubAttack, SmallFilesShorterAndLongerThanListed) {
  add_small("config.json", "{\"a\": 1}");
  add_large("model.safetensors", model);
  content["config.json"] = "{}";
  expect_says(pull_fails(), "the hub lists 8 bytes and sends 2");
  content["config.json"] = "{\"a\": 1}     ";
  expect_says(pull_fails(), "the hub lists 8 bytes and sends 13");
  expect_nothing_kept();
}

// Without a length the end of the connection is the end of the body.
TEST_F(HubAttack, BodiesThatDoNotSayTheirLength) {
  add_large("model-Q4_0.gguf", model);
  const auto send = [&](const std::string& body) {
    on_storage = [=](const LoopbackRequest&) { return LoopbackReply{.body = body, .no_length = true}; };
  };
  send(model.substr(0, 59'999));
  expect_says(pull_fails(), "ended after 59999 of 60000 bytes");
  expect_nothing_kept();
  send(model + "x");
  expect_says(pull_fails(), "sends more");
  expect_nothing_kept();
  send(model);
  EXPECT_EQ(read_all(pull().main), model);
}

TEST_F(HubAttack, RangesThatAreNotTheOnesAskedFor) {
  add_large("model-Q4_0.gguf", model);
  const auto with = [&](const std::string& range) {
    on_storage = [=, this](const LoopbackRequest& r) {
      LoopbackReply reply = serve_content(r, model);
      reply.fields = {{"Content-Range", range}};
      if (range.empty()) reply.fields.clear();
      return reply;
    };
    const std::string message = pull_fails();
    expect_nothing_kept();
    EXPECT_TRUE(!fs::exists(incomplete(model)) || fs::file_size(incomplete(model)) == 0);
    return message;
  };
  expect_says(with("bytes 1-4096/60000"), "another range");
  expect_says(with("bytes 0-4094/60000"), "another range");
  expect_says(with("bytes 4096-0/60000"), "another range");
  expect_says(with("bytes 0-18446744073709551615/60000"), "another range");
  expect_says(with("bytes 0-99999999999999999999999/60000"), "another range");
  expect_says(with("bytes */60000"), "another range");
  expect_says(with("nonsense"), "another range");
  expect_says(with(""), "another range");
}

TEST_F(HubAttack, ARangeWithMoreBytesThanItSays) {
  add_large("model-Q4_0.gguf", model);
  on_storage = [&](const LoopbackRequest& r) {
    LoopbackReply reply = serve_content(r, model);
    reply.body += "too much";
    return reply;
  };
  expect_says(pull_fails(), "more bytes than it was asked for");
  expect_nothing_kept();
}

TEST_F(HubAttack, RedirectsWithoutEnd) {
  add_large("model-Q4_0.gguf", model);
  std::atomic<int> hops{0};
  on_storage = [&](const LoopbackRequest&) {
    return LoopbackReply{.status = 302, .fields = {{"Location", "/again?" + std::to_string(++hops)}}};
  };
  options.download.connections = 1;
  expect_says(pull_fails(), "more than 10 redirects");
  EXPECT_LE(hops, 11);
  on_hub = [&](const LoopbackRequest& r) {
    return LoopbackReply{.status = 307, .fields = {{"Location", r.target}}};
  };
  expect_says(pull_fails(), "more than 10 redirects");
}

TEST_F(HubAttack, RedirectsToWhatIsNoHub) {
  add_large("model-Q4_0.gguf", model);
  const std::string secret = folder.file("secret");
  std::ofstream(secret) << model;  // the right bytes, even
  for (const std::string& to :
       {"file://" + secret, std::string("ftp://127.0.0.1/x"), std::string("gopher://127.0.0.1/x"),
        std::string("http://user:password@127.0.0.1/x"), std::string("http://"), std::string()}) {
    on_storage = [=](const LoopbackRequest&) {
      return LoopbackReply{.status = 302, .fields = {{"Location", to}}};
    };
    expect_says(pull_fails(), "redirect");
    EXPECT_FALSE(fs::exists(blob(model)));
  }
}

TEST_F(HubAttack, TheTokenDoesNotFollowARedirectOfTheListing) {
  add_large("model-Q4_0.gguf", model);
  settings.token = "hf_secret";
  LoopbackServer thief([this](const LoopbackRequest&) { return LoopbackReply{.body = info.dump()}; });
  on_hub = [&](const LoopbackRequest& r) -> std::optional<LoopbackReply> {
    if (!r.target.starts_with("/api/")) return std::nullopt;
    return LoopbackReply{.status = 302, .fields = {{"Location", thief.url() + r.target}}};
  };
  pull();
  ASSERT_EQ(thief.requests().size(), 1u);
  EXPECT_FALSE(thief.requests()[0].fields.contains("authorization"));
}

TEST_F(HubAttack, ListingsThatAreNone) {
  const auto with = [&](const std::string& body) {
    on_hub = [=](const LoopbackRequest&) { return LoopbackReply{.body = body}; };
    const std::string message = pull_fails();
    expect_nothing_kept();
    return message;
  };
  expect_says(with(""), "not JSON");
  expect_says(with("<html>\033[31m</html>"), "not JSON");
  expect_says(with("[]"), "not an object");
  expect_says(with("{}"), "sha is no commit");
  expect_says(with(R"({"sha": "../../../x", "siblings": []})"), "sha is no commit");
  expect_says(with(R"({"sha": 7, "siblings": []})"), "sha is no commit");
  const std::string sha = std::string(R"({"sha": ")") + kCommit + R"(", )";
  expect_says(with(sha + R"("siblings": {}})"), "siblings is not an array");
  expect_says(with(sha + R"("siblings": [7]})"), "not an object");
  expect_says(with(sha + R"("siblings": [{}]})"), "has no name");
  expect_says(with(sha + R"("siblings": [{"rfilename": "a"}, {"rfilename": "a"}]})"), "twice");
  for (const char* size : {"-1", "1.5", "\"7\"", "1e30", "18446744073709551616", "9223372036854775807"})
    expect_says(with(sha + R"("siblings": [{"rfilename": "a.gguf", "size": )" + size + "}]}"),
                "no number of bytes");
  expect_says(
      with(sha + R"("siblings": [{"rfilename": "a.gguf", "size": 1, "lfs": {"sha256": "../../../../x"}}]})"),
      "not 64 hexadecimal digits");
  expect_says(with(sha + R"("siblings": [{"rfilename": "a.gguf", "size": 1, "blobId": "/x"}]})"),
              "not 40 hexadecimal digits");
  expect_says(with(sha + R"("siblings": [{"rfilename": "a.gguf", "size": 1, "lfs": {"size": 2}}]})"),
              "two sizes");
  expect_says(with(sha + R"("siblings": [{"rfilename": "a.gguf"}]})"), "cannot be checked");
  expect_says(with(sha + R"("siblings": [{"rfilename": "a.gguf", "size": 1}]})"), "cannot be checked");
  expect_says(with(sha + R"("siblings": []})"), "holds no model");
  expect_says(with(std::string(1'000'000, '[')), "nested deeper");
  std::string deep = sha + R"("siblings": [], "x": )";
  for (int i = 0; i < 100'000; ++i) deep += R"({"a":)";
  expect_says(with(deep), "nested deeper");
}

TEST_F(HubAttack, AListingWithoutEnd) {
  on_hub = [](const LoopbackRequest&) {
    return LoopbackReply{.body = std::string(70u << 20, ' '), .no_length = true};
  };
  expect_says(pull_fails(), "longer than 64 MB");
}

TEST_F(HubAttack, AHeadWithoutEnd) {
  on_hub = [](const LoopbackRequest&) {
    LoopbackReply reply;
    for (int i = 0; i < 10'000; ++i)
      reply.fields.emplace_back("X-" + std::to_string(i), std::string(100, 'x'));
    return reply;
  };
  pull_fails();
}

TEST_F(HubAttack, AnErrorPageWithoutEnd) {
  on_hub = [](const LoopbackRequest&) {
    return LoopbackReply{.status = 404, .body = std::string(16u << 20, 'x'), .no_length = true};
  };
  expect_says(pull_fails(), "there is no such thing");
}

TEST_F(HubAttack, AConnectionThatFallsSilent) {
  add_large("model-Q4_0.gguf", model);
  options.http.stall_timeout = std::chrono::milliseconds(200);
  options.retry.tries = 1;
  options.download.connections = 1;
  on_storage = [&](const LoopbackRequest& r) {
    LoopbackReply reply = serve_content(r, model);
    reply.cut_after = 100;
    reply.hold_after_cut = [] { return false; };
    return reply;
  };
  expect_says(pull_fails(), "model-Q4_0.gguf: no byte came");
  EXPECT_EQ(read_all(incomplete(model)), model.substr(0, 100));
}

TEST_F(HubAttack, ARetryAfterOfADayIsNotWaitedFor) {
  on_hub = [](const LoopbackRequest&) {
    return LoopbackReply{.status = 429, .fields = {{"Retry-After", "86400"}}};
  };
  expect_says(pull_fails(), "come back in 86400 s");
}

TEST_F(HubAttack, OnlyWhatGoesBesideAModel) {
  add_large("mtp-gemma-4-12b-it.gguf", some_bytes(100, 1));
  add_large("mmproj-gemma-4-12b-it.gguf", some_bytes(100, 2));
  const std::string message = pull_fails();
  expect_says(message, "holds no main model");
  expect_says(message, "mtp-gemma-4-12b-it.gguf");
  expect_says(message, "mmproj-gemma-4-12b-it.gguf");
  EXPECT_EQ(pull("org/model:mtp").main.filename(), "mtp-gemma-4-12b-it.gguf");
}

// The hub lists a link as a file whose contents are the target's name: it becomes a file with that text.
TEST_F(HubAttack, AnEntryThatIsALinkInGit) {
  add_small("model-Q4_0.gguf", "../../../../etc/passwd");
  const auto pulled = pull();
  EXPECT_EQ(read_all(pulled.main), "../../../../etc/passwd");
  EXPECT_EQ(fs::read_symlink(pulled.main), "../../blobs/" + git_blob_of("../../../../etc/passwd"));
}

// A limit of file size stands in for the full disk: write() fails with bytes already there.
TEST_F(HubAttack, ADiskThatIsFull) {
  add_large("model-Q4_0.gguf", model);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 30'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = pull_fails();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  expect_says(message, "cannot write");
  expect_nothing_kept();
  EXPECT_EQ(read_all(incomplete(model)), model.substr(0, 30'000));
  EXPECT_EQ(pull().received, 30'000u);
}

TEST_F(HubAttack, AFileThatTheDiskCannotHold) {
  add_large("model-Q4_0.gguf", model);
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 49;
  info["siblings"][0]["size"] = info["siblings"][0]["lfs"]["size"] = kHuge;
  expect_says(pull_fails(), "GB more are needed");
  EXPECT_TRUE(storage.requests().empty());
}

TEST_F(HubAttack, APortThatNobodyListensAt) {
  settings.endpoint = "http://127.0.0.1:1";
  expect_says(pull_fails(), "cannot ask http://127.0.0.1:1 about org/model");
}

}  // namespace
}  // namespace gem::testing
