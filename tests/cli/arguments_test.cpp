// Arguments and inputs that users get wrong, or that look like something else.
#include <nlohmann/json.hpp>

#include "command.h"

namespace gem::testing {
namespace {

using nlohmann::json;

int prompt_tokens(const std::string& arguments, const std::string& input = "") {
  const Outcome o = gem_command("run -q --json --temperature 0 --max-tokens 1 " + arguments, input);
  EXPECT_EQ(o.status, 0) << o.err;
  return o.status == 0 ? json::parse(o.out)["usage"]["prompt_tokens"].get<int>() : -1;
}

TEST(Arguments, TextInBracketsIsText) {
  EXPECT_EQ(gem_command("tokenize '[a, b]'").out, gem_command("tokenize", "[a, b]").out);
  EXPECT_EQ(prompt_tokens("'[a, b]'"), prompt_tokens("-", "[a, b]"));
  EXPECT_EQ(gem_command("tokenize a b").status, 2);
  EXPECT_EQ(gem_command("tokenize ''", "not this").out, "\n");
}

TEST(Arguments, ASystemTextComesBeforeTheMessages) {
  const Folder folder;
  const std::string file = (folder / "messages.json").string();
  write_text(file, R"([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello."}])");
  const int by_file = prompt_tokens("--messages " + file);
  EXPECT_GT(by_file, 0);
  EXPECT_EQ(prompt_tokens("--system 'Be kind.' Hello."), by_file);
}

TEST(Arguments, MistakesAreBadUsageAndSaidAsErrors) {
  const Folder folder;
  const std::string object = (folder / "object.json").string();
  write_text(object, "{}");
  const std::string folder_path = (folder / ".").string();
  const std::vector<std::string> mistakes = {"sing",
                                             "run --no-such-option x",
                                             "logits --out x",
                                             "run --logit-bias 5x:1 hi",
                                             "run --logit-bias 5:1x hi",
                                             "run --messages " + object + " hi",
                                             "run --messages " + folder_path + " hi",
                                             "logits --ids /nonexistent --out x",
                                             "bench --depth 4294967295",
                                             "run --temperature nan hi"};
  for (const std::string& arguments : mistakes) {
    const Outcome o = gem_command(arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_EQ(o.err.rfind("gem: error: ", 0), 0u) << arguments << ": " << o.err;
    EXPECT_EQ(o.out, "") << arguments;
    EXPECT_EQ(o.err.find("json.exception.type_error"), std::string::npos) << o.err;
  }
}

TEST(Arguments, ALineWithAnOptionOfTheWrongTypeIsNamed) {
  const Outcome o =
      gem_command("run --jsonl",
                  R"({"messages": [{"role": "user", "content": "hi"}], "options": {"enable_thinking": 1}})");
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("line 1: enable_thinking"), std::string::npos) << o.err;
}

TEST(Arguments, AReaderThatGoesAwayEndsTheReply) {
  // Without an end token the reply would fill the context.
  const Folder folder;
  const std::string status = (folder / "status").string();
  const std::string command =
      "(" GEM_PROGRAM
      " run -q --seed 1 --logit-bias 1:-inf --logit-bias 50:-inf --logit-bias 106:-inf hi "
      "2>/dev/null; echo $? >" +
      status + ") | head -c 1 >/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(read_text(status), "1\n");
}

TEST(Arguments, AFullContextKeepsTheChat) {
  const Outcome o =
      gem_command("chat --context 60 --temperature 0", std::string(200, 'x') + "\nWhat is 3 + 4?\n");
  EXPECT_EQ(o.status, 0);
  EXPECT_NE(o.err.find("the context holds 60"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("/new"), std::string::npos) << o.err;
  EXPECT_NE(o.out.find("3 + 4 = 7"), std::string::npos) << o.out;
}

}  // namespace
}  // namespace gem::testing
