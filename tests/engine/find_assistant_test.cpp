// Which drafter a session gets: what lies beside the model, what was named, and what is said when there is
// none.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "engine/collector.h"
#include "engine/session.h"
#include "formats/temporary_folder.h"

namespace gem {
namespace {

namespace fs = std::filesystem;

class FindAssistant : public ::testing::Test {
 protected:
  static std::string model(const std::string& name) {
    return std::string(GEM_SOURCE_DIR) + "/models/" + name;
  }
  void link(const std::string& from, const std::string& name) {
    fs::create_symlink(model(from), folder_.file(name));
  }
  std::string drafting(SessionDrafts drafts) {
    drafts.on = true;
    drafts.adaptive = false;
    session_ = Session::open({.model = folder_.file("m.gguf"),
                              .threads = 1,
                              .context = 512,
                              .chunk = 32,
                              .drafts = std::move(drafts)});
    return session_->drafting();
  }
  void SetUp() override { link("gem-demo.gguf", "m.gguf"); }
  testing::TemporaryFolder folder_;
  std::unique_ptr<Session> session_;
};

TEST_F(FindAssistant, ByTheModelsName) {
  link("mtp-gem-demo.gguf", "mtp-m.gguf");
  std::ofstream(folder_.file("an-assistant.gguf")) << "not looked at";
  EXPECT_EQ(drafting({}), "the MTP assistant mtp-m.gguf and copies of earlier text");
  EXPECT_EQ(drafting({.copy = false}), "the MTP assistant mtp-m.gguf");
  EXPECT_EQ(session_->memory().round_rows, 32u);  // 16 rows of one stream are fewer than a chunk
  EXPECT_GT(session_->memory().drafter, 1'000'000u);
  EXPECT_EQ(drafting({.find = false}), "copies of earlier text (no assistant: not wanted)");
  EXPECT_EQ(drafting({.most = 0}), "none");
  EXPECT_EQ(session_->engine().speculation(), nullptr);
  EXPECT_EQ(session_->memory().drafter, 0u);
}

TEST_F(FindAssistant, ByTheWordInANameTheFirstThatFits) {
  std::ofstream(folder_.file("a-assistant.gguf")) << "no model";
  link("mtp-gem-demo.gguf", "b-Assistant-Q4_0.gguf");
  link("mtp-gem-demo.gguf", "c-assistant.gguf");
  EXPECT_EQ(drafting({}), "the MTP assistant b-Assistant-Q4_0.gguf and copies of earlier text");
}

TEST_F(FindAssistant, WhatIsThereAndDoesNotFitIsNamed) {
  EXPECT_EQ(drafting({}), "copies of earlier text (no assistant: no assistant lies beside the model)");
  fs::copy_file(model("gem-demo.gguf"), folder_.file("mtp-m.gguf"));
  const std::string text = drafting({});
  EXPECT_NE(text.find("mtp-m.gguf: this is gem demo (19 M), a model of its own"), std::string::npos) << text;
}

TEST_F(FindAssistant, ANamedOneMustFit) {
  EXPECT_EQ(drafting({.assistant = model("mtp-gem-demo.gguf"), .copy = false}),
            "the MTP assistant mtp-gem-demo.gguf");
  EXPECT_THROW(drafting({.assistant = model("gem-demo.gguf")}), Error);
  EXPECT_THROW(drafting({.assistant = folder_.file("none.gguf")}), Error);
}

}  // namespace
}  // namespace gem
