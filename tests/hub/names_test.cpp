#include "hub/names.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace gem::hub {
namespace {

TEST(RepoRef, ReadsItsParts) {
  const RepoRef plain = parse_repo_ref("google/gemma-4-12b-it");
  EXPECT_EQ(plain.org, "google");
  EXPECT_EQ(plain.name, "gemma-4-12b-it");
  EXPECT_EQ(plain.revision, "main");
  EXPECT_EQ(plain.pattern, "");
  const RepoRef full = parse_repo_ref("org/repo_1.0@refs/pr/3:q/*Q4_0*.gguf");
  EXPECT_EQ(full.id(), "org/repo_1.0");
  EXPECT_EQ(full.revision, "refs/pr/3");
  EXPECT_EQ(full.pattern, "q/*Q4_0*.gguf");
  EXPECT_EQ(full.text(), "org/repo_1.0@refs/pr/3:q/*Q4_0*.gguf");
  EXPECT_EQ(parse_repo_ref("https://huggingface.co/org/repo").id(), "org/repo");
  EXPECT_EQ(parse_repo_ref("hf.co/org/repo:Q8_0").text(), "org/repo:Q8_0");
}

TEST(RepoRef, RefusesWhatWouldLeaveTheCache) {
  for (const char* text :
       {"",           "repo",     "/repo",      "org/",   "org/..",       "../x",     "a/b/c",
        "org/re po",  "org/a--b", "-a/b",       ".a/b",   "org/b.",       "org/b\n",  "org/b@",
        "org/b@../x", "org/b@/x", "org/b@a//b", "org/b:", "org/\xC3\xA4", "org/b\\c", "org/b%2e"}) {
    EXPECT_THROW(parse_repo_ref(text), Error) << text;
    EXPECT_FALSE(repo_ref_of_model(text)) << text;
  }
  EXPECT_THROW(parse_repo_ref("org/" + std::string(97, 'a')), Error);
}

TEST(RepoRef, AFileIsNoRepository) {
  EXPECT_TRUE(repo_ref_of_model("org/model-GGUF"));
  EXPECT_TRUE(repo_ref_of_model("org/model-GGUF:model-Q4_0.gguf"));
  for (const char* text :
       {"models/demo.gguf", "models/DEMO.GGUF", "./a/b", "/a/b", "a/model.safetensors", "model"})
    EXPECT_FALSE(repo_ref_of_model(text)) << text;
}

TEST(RepoNames, PathsAreCut) {
  EXPECT_EQ(file_name("a/b/c"), "c");
  EXPECT_EQ(folder_name("a/b/c"), "a/b");
  EXPECT_EQ(folder_name("c"), "");
  EXPECT_EQ(join_path("", "c"), "c");
  EXPECT_EQ(join_path("a/b", "c"), "a/b/c");
  EXPECT_EQ(split_path("a//b").size(), 3u);
}

TEST(RepoNames, TextFromElsewhereIsHarmlessOnATerminal) {
  EXPECT_EQ(printable("a\033[31mb\x9B\x7F\n"), "a?[31mb???");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
}

}  // namespace
}  // namespace gem::hub
