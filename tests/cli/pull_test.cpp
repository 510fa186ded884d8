// gem pull and -m ORG/REPO as users call them, with a hub on loopback.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "command.h"
#include "hub/fake_hub.h"
#include "process.h"

namespace gem::testing {
namespace {

namespace fs = std::filesystem;

class PullCommand : public HubTest {
 protected:
  PullCommand() {
    settings.cache = folder.file("home/hub");
    ::setenv("HF_ENDPOINT", server.url().c_str(), 1);
    ::setenv("HF_HOME", folder.file("home").c_str(), 1);
    for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE",
                             "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
      ::unsetenv(name);
  }
  ~PullCommand() override {
    for (const char* name : {"HF_ENDPOINT", "HF_HOME", "HF_HUB_OFFLINE"}) ::unsetenv(name);
  }
  void add_demo() { add_large("gem-demo-Q4_0.gguf", read_text(GEM_SOURCE_DIR "/models/gem-demo.gguf")); }
  fs::path snapshot() const { return repo() / "snapshots" / kCommit; }
};

TEST_F(PullCommand, GetsAModelThatTheOtherVerbsFindByItsName) {
  add_demo();
  add_large("mtp-gem-demo.gguf", read_text(GEM_SOURCE_DIR "/models/mtp-gem-demo.gguf"));
  const Outcome before = gem_command("inspect org/model");
  EXPECT_EQ(before.status, 2);
  EXPECT_NE(before.err.find("'gem pull org/model' gets it"), std::string::npos) << before.err;

  const Outcome pulled = gem_command("pull org/model");
  EXPECT_EQ(pulled.status, 0) << pulled.err;
  EXPECT_EQ(pulled.out, (snapshot() / "gem-demo-Q4_0.gguf").string() + "\n");
  EXPECT_NE(pulled.err.find("with the assistant mtp-gem-demo.gguf"), std::string::npos) << pulled.err;
  EXPECT_NE(pulled.err.find("13.2 MB received in"), std::string::npos) << pulled.err;

  server.forget_requests();
  const Outcome inspected = gem_command("inspect org/model --json");
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_EQ(nlohmann::json::parse(inspected.out)["profile"], "demo");
  const Outcome tokens = gem_command("tokenize -m org/model:Q4_0 Hello");
  EXPECT_EQ(tokens.status, 0) << tokens.err;
  EXPECT_EQ(tokens.out, gem_command("tokenize Hello").out);
  EXPECT_EQ(gem_command("pull --offline org/model").out, pulled.out);
  EXPECT_TRUE(server.requests().empty());  // none of them asks the hub

  ::setenv("HF_HUB_OFFLINE", "1", 1);
  const auto json = nlohmann::json::parse(gem_command("pull --json org/model").out);
  EXPECT_EQ(json["commit"], kCommit);
  EXPECT_EQ(json["assistant"], (snapshot() / "mtp-gem-demo.gguf").string());
  EXPECT_TRUE(json["mmproj"].is_null());
  EXPECT_EQ(json["files"].size(), 2u);
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(PullCommand, ListsWhatThereIs) {
  add_large("a-Q8_0.gguf", some_bytes(20'000'000));
  add_large("mmproj.gguf", some_bytes(10));
  const Outcome list = gem_command("pull --list org/model");
  EXPECT_EQ(list.status, 0);
  EXPECT_EQ(list.out, "a-Q8_0.gguf, 0.02 GB\nmmproj.gguf, 0.00 GB (image projector)\n");
  EXPECT_FALSE(fs::exists(settings.cache));
}

TEST_F(PullCommand, WhatCannotBeIsSaid) {
  EXPECT_EQ(gem_command("pull not-a-repository").status, 2);
  EXPECT_EQ(gem_command("pull").status, 2);
  const Outcome offline = gem_command("pull --offline org/model");
  EXPECT_EQ(offline.status, 2);
  EXPECT_NE(offline.err.find("nor in the cache"), std::string::npos) << offline.err;
  const Outcome missing = gem_command("pull org/other");
  EXPECT_EQ(missing.status, 1);
  EXPECT_EQ(missing.err, "gem: error: org/other: there is no such thing at " + server.url() + "\n");
  EXPECT_EQ(gem_command("run -m missing/file.gguf hi").err.find("pull"), std::string::npos);
}

TEST_F(PullCommand, CtrlCLeavesWhatTheNextPullGoesOnFrom) {
  add_demo();
  const std::string& model = content["gem-demo-Q4_0.gguf"];
  std::atomic<bool> open{false};
  on_storage = [&](const LoopbackRequest& r) -> std::optional<LoopbackReply> {
    LoopbackReply reply = serve_content(r, model);
    // However the file is shared among requests, some of it does not arrive before the interruption.
    if (r.range()->first < 3'000'000 && reply.body.size() < 6'000'000) return reply;
    reply.cut_after = reply.body.size() / 2;
    reply.hold_after_cut = [&] { return open.load(); };
    return reply;
  };
  Process pulling({"pull", "org/model", "--connections", "2"});
  ASSERT_TRUE(eventually(
      [&] { return fs::exists(incomplete(model)) && fs::file_size(incomplete(model)) > 2'000'000; }));
  pulling.send(SIGINT);
  EXPECT_EQ(pulling.wait(), 1);
  EXPECT_NE(pulling.err().find("interrupted; 'gem pull org/model' goes on from here"), std::string::npos)
      << pulling.err();
  const std::string kept = read_all(incomplete(model));
  EXPECT_EQ(kept, model.substr(0, kept.size()));
  open = true;
  on_storage = nullptr;
  const auto json = nlohmann::json::parse(gem_command("pull --json org/model").out);
  EXPECT_EQ(json["received_bytes"], model.size() - kept.size());
  EXPECT_EQ(read_all(snapshot() / "gem-demo-Q4_0.gguf"), model);
}

}  // namespace
}  // namespace gem::testing
