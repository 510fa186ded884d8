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
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find("line 1: enable_thinking"), std::string::npos) << o.err;
}

// The input is bad, not the command: one status for every verb, and the lines before it are answered.
TEST(Arguments, BadLinesOfInputAreFailedWork) {
  struct Verb {
    const char* command;
    const char* good;
    std::vector<const char*> bad;
  };
  const std::vector<Verb> verbs = {
      {"tokenize --jsonl", R"({"text": "a"})", {"{", R"({"text": 5})", R"({"txt": ""})", "[]"}},
      {"detokenize --jsonl",
       R"({"ids": [5]})",
       {"{", R"({"ids": [1.5]})", R"({"ids": ["5"]})", R"({"ids": 5})", R"({"ids": [-1]})",
        R"({"ids": [99999999999]})"}},
      {"format --jsonl", R"({"messages": []})", {"{", R"({"messages": 5})", "{}"}},
      {"parse --jsonl", R"({"text": "a"})", {"{", R"({"text": 5})", R"({"text": "", "tools": [{}]})"}},
      {"run --jsonl --temperature 0 --max-tokens 1",
       R"({"prompt": "a"})",
       {"{", "[]", "{}", R"({"prompt": 5})", R"({"messages": 5})", R"({"messages": [], "tools": 5})"}},
  };
  for (const Verb& verb : verbs) {
    for (const char* bad : verb.bad) {
      const Outcome o = gem_command(verb.command, std::string(verb.good) + "\n\n" + bad + "\n" + verb.good);
      EXPECT_EQ(o.status, 1) << verb.command << ": " << bad;
      EXPECT_EQ(lines_of(o.out).size(), 1u) << verb.command << ": " << bad << "\n" << o.out;
      const std::vector<std::string> said = lines_of(o.err);
      ASSERT_EQ(said.size(), 2u) << o.err;
      EXPECT_EQ(json::parse(said[0])["error"]["line"], 3) << o.err;
      EXPECT_EQ(said[1].rfind("gem: error: line 3: ", 0), 0u) << o.err;
    }
  }
  EXPECT_EQ(gem_command("format", "{").status, 1);
  EXPECT_EQ(gem_command("detokenize", "five").status, 1);
  EXPECT_EQ(gem_command("detokenize five").status, 2) << "an argument is usage";
}

TEST(Arguments, OptionsThatWouldBeIgnoredAreRefused) {
  const Folder folder;
  const std::string file = (folder / "x.json").string();
  write_text(file, "[]");
  for (const std::string& other : {std::string("--raw"), std::string("--system s"), "--tools " + file,
                                   "--messages " + file, std::string("--json"), std::string("prompt")}) {
    const Outcome o = gem_command("run --jsonl " + other, R"({"prompt": "a"})");
    EXPECT_EQ(o.status, 2) << other;
    EXPECT_NE(o.err.find("--jsonl"), std::string::npos) << o.err;
  }
  for (const std::string& other : {std::string("--system s"), "--tools " + file, std::string("--think")}) {
    EXPECT_EQ(gem_command("run --raw x " + other).status, 2) << other;
  }
}

TEST(Arguments, SeedsAreNumbersAndMinusOneIsRandom) {
  const auto said = [](const std::string& seed) {
    const Outcome o =
        gem_command("run -q --temperature 5 --top-k 0 --top-p 1 --max-tokens 12 --seed " + seed + " hi");
    EXPECT_EQ(o.status, 0) << seed << ": " << o.err;
    return o.out;
  };
  EXPECT_EQ(said("18446744073709551615"), said("18446744073709551615"));
  EXPECT_NE(said("-1"), said("-1")) << "two random replies";
  for (const char* seed : {"-2", "1.5", "x", "18446744073709551616", "1x", "''"}) {
    EXPECT_EQ(gem_command(std::string("run --seed ") + seed + " hi").status, 2) << seed;
  }
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
