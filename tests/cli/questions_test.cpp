// The bundled model must give right answers through the real command.
#include <nlohmann/json.hpp>

#include "command.h"

namespace gem::testing {
namespace {

using nlohmann::json;

TEST(Questions, TheBundledModelAnswersRight) {
  const std::string path = GEM_SOURCE_DIR "/tests/data/demo/questions.jsonl";
  const std::string input = read_text(path);
  const auto questions = lines_of(input);
  ASSERT_GE(questions.size(), 26u);
  const Outcome o = gem_command("run --jsonl --temperature 0", input);
  ASSERT_EQ(o.status, 0) << o.err;
  const auto answers = lines_of(o.out);
  ASSERT_EQ(answers.size(), questions.size());
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const json q = json::parse(questions[i]);
    const json a = json::parse(answers[i]);
    const json& expect = q["expect"];
    SCOPED_TRACE(q["name"].dump() + " -> " + a.dump());
    int checked = 0;
    if (expect.contains("content")) {
      EXPECT_EQ(a["content"], expect["content"]);
      ++checked;
    }
    if (expect.contains("contains")) {
      for (const json& part : expect["contains"])
        EXPECT_NE(a["content"].get<std::string>().find(part.get<std::string>()), std::string::npos) << part;
      ++checked;
    }
    if (expect.contains("tool_calls")) {
      EXPECT_EQ(a["finish_reason"], "tool_calls");
      ASSERT_EQ(a["tool_calls"].size(), expect["tool_calls"].size());
      for (std::size_t k = 0; k < expect["tool_calls"].size(); ++k) {
        EXPECT_EQ(a["tool_calls"][k]["name"], expect["tool_calls"][k]["name"]);
        EXPECT_EQ(json::parse(a["tool_calls"][k]["arguments"].get<std::string>()),
                  expect["tool_calls"][k]["arguments"]);
      }
      ++checked;
    }
    EXPECT_GT(checked, 0) << "nothing was expected";
  }
}

TEST(Questions, AConversationRefersBack) {
  const Outcome o = gem_command("chat --temperature 0",
                                "My name is Zorbina.\nWhat is my name?\n/new\nWhat is 7 + 8?\n/quit\n");
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("Your name is Zorbina."), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("7 + 8 = 15"), std::string::npos) << o.out;
}

}  // namespace
}  // namespace gem::testing
