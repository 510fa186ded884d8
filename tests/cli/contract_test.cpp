// The contracts of the diagnostic verbs, and the exit statuses.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "command.h"
#include "formats/safetensors.h"
#include "golden.h"

namespace gem::testing {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

TEST(Command, LogitsOfTheOracleEqualTheReference) {
  GEM_GOLDEN_OR_SKIP(model, "models/dense-a/q4_0.gguf");
  GEM_GOLDEN_OR_SKIP(expected_path, "models/dense-a/expected-q4_0.safetensors");
  const Folder folder;
  const SafetensorsFile expected = SafetensorsFile::open(expected_path);
  write_text(folder / "ids.json", json(expected.at("input_ids").integers()).dump());
  const auto logits = [&](const std::string& options) {
    const std::string out = (folder / "out.safetensors").string();
    const Outcome o = gem_command("logits " + model + " --any-geometry --ids " +
                                  (folder / "ids.json").string() + " --out " + out + " " + options);
    EXPECT_EQ(o.status, 0) << o.err;
    return SafetensorsFile::open(out);
  };
  const std::vector<float> reference = expected.at("logits").floats();
  const SafetensorsFile oracle = logits("--backend oracle");
  EXPECT_EQ(oracle.at("logits").shape, (std::vector<std::uint64_t>{160, 1024}));
  const std::vector<float> found = oracle.at("logits").floats();
  ASSERT_EQ(found.size(), reference.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], reference[i], 2e-4);
  // The last row alone, in other chunks, on the cpu.
  const SafetensorsFile last = logits("--rows last --chunk 7");
  EXPECT_EQ(last.at("logits").shape, (std::vector<std::uint64_t>{1, 1024}));
  const std::vector<float> row = last.at("logits").floats();
  for (std::size_t i = 0; i < 1024; ++i) ASSERT_NEAR(row[i], reference[159 * 1024 + i], 5e-3);
}

TEST(Command, TokenizeAndDetokenizeAreInverse) {
  const std::string texts[] = {"Hello, world!", "  two\n\n\nlines\t", "emoji 🦙 é", "<|turn>user\n<turn|>",
                               ""};
  std::string input;
  for (const std::string& t : texts) input += json{{"text", t}}.dump() + "\n";
  const Outcome ids = gem_command("tokenize --jsonl", input);
  ASSERT_EQ(ids.status, 0) << ids.err;
  const Outcome back = gem_command("detokenize --jsonl", ids.out);
  ASSERT_EQ(back.status, 0) << back.err;
  const auto lines = lines_of(back.out);
  ASSERT_EQ(lines.size(), std::size(texts));
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(json::parse(lines[i])["text"], texts[i]);
  // Control tokens in a text are text, unless asked for.
  const auto plain = json::parse(lines_of(ids.out)[3])["ids"];
  EXPECT_EQ(std::find(plain.begin(), plain.end(), 105), plain.end());
  const Outcome special =
      gem_command("tokenize --jsonl --parse-special --bos", json{{"text", texts[3]}}.dump());
  const auto parsed = json::parse(special.out)["ids"];
  EXPECT_EQ(parsed[0], 2);
  EXPECT_EQ(parsed[1], 105);
}

TEST(Command, ADeviceThatNoBackendWouldUseIsRefused) {
  for (const char* const verb : {"check", "run x", "bench"}) {
    const Outcome o = gem_command(std::string(verb) + " --backend cpu --device 1");
    EXPECT_EQ(o.status, 2) << verb;
    EXPECT_NE(o.err.find("--device"), std::string::npos) << o.err;
  }
}

// Cases whose rendering is a stated choice of this program instead of the template's literal output.
bool is_choice(const json& j) {
  return j.value("note", "").starts_with("quirk") || j["name"] == "tool-content-and-call-trailing";
}

TEST(Command, FormatRendersTheGoldenPrompts) {
  GEM_GOLDEN_OR_SKIP(path, "chat-format.jsonl");
  const std::string input = read_text(path);
  const Outcome large = gem_command("format --jsonl", input);
  const Outcome small = gem_command("format --jsonl --small", input);
  ASSERT_EQ(large.status, 0) << large.err;
  ASSERT_EQ(small.status, 0) << small.err;
  const auto cases = lines_of(input);
  const auto l = lines_of(large.out);
  const auto s = lines_of(small.out);
  ASSERT_EQ(l.size(), cases.size());
  ASSERT_EQ(s.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const json c = json::parse(cases[i]);
    if (is_choice(c)) continue;
    EXPECT_EQ(json::parse(l[i])["prompt"], c["prompt"]) << c["name"];
    EXPECT_EQ(json::parse(s[i])["prompt_small"], c["prompt_small"]) << c["name"];
  }
}

TEST(Command, ParseGivesTheGoldenMessagesHoweverTheTextIsCut) {
  GEM_GOLDEN_OR_SKIP(path, "output-parse.jsonl");
  const std::string input = read_text(path);
  const auto cases = lines_of(input);
  for (const char* chunks : {"", " --chunks 1", " --chunks 3", " --chunks 7"}) {
    const Outcome o = gem_command(std::string("parse --jsonl") + chunks, input);
    ASSERT_EQ(o.status, 0) << o.err;
    const auto lines = lines_of(o.out);
    ASSERT_EQ(lines.size(), cases.size());
    for (std::size_t i = 0; i < lines.size(); ++i)
      EXPECT_EQ(json::parse(lines[i]), json::parse(cases[i])["expect"]) << cases[i] << chunks;
  }
}

TEST(Command, InspectKnowsTheBundledModels) {
  const Outcome demo = gem_command("inspect --json");
  ASSERT_EQ(demo.status, 0) << demo.err;
  const json j = json::parse(demo.out);
  EXPECT_EQ(j["profile"], "demo");
  EXPECT_EQ(j["storage"]["Q4_0"]["tensors"], 82);
  EXPECT_EQ(j["storage"]["Q8_0"]["tensors"], 1);
  EXPECT_EQ(j["memory"]["context"], 4096);
  // 10 sliding layers of 128 + 256 slots, 2 full layers of 4,096, each 2 x 128 values of 4 bytes.
  EXPECT_EQ(j["memory"]["kv_stream"], (10 * 384 + 2 * 4096) * 2 * 128 * 4);
  const Outcome mtp = gem_command("inspect --json " GEM_SOURCE_DIR "/models/mtp-gem-demo.gguf");
  ASSERT_EQ(mtp.status, 0) << mtp.err;
  EXPECT_EQ(json::parse(mtp.out)["profile"], "demo-assistant");
  EXPECT_EQ(json::parse(mtp.out)["manifest"], 49);
}

TEST(Command, ExitStatusesTellWhatHappened) {
  EXPECT_EQ(gem_command("--version").status, 0);
  EXPECT_EQ(gem_command("run --help").status, 0);
  EXPECT_EQ(gem_command("").status, 2);
  EXPECT_EQ(gem_command("sing").status, 2);
  EXPECT_EQ(gem_command("run --no-such-option x").status, 2);
  EXPECT_EQ(gem_command("run").status, 2);
  EXPECT_EQ(gem_command("run --temperature -1 x").status, 2);
  EXPECT_EQ(gem_command("run --backend metal x").status, 2);
  EXPECT_EQ(gem_command("run --context 100000 x").status, 2);
  EXPECT_EQ(gem_command("run -m /nonexistent/model.gguf x").status, 3);
  const Outcome assistant = gem_command("run -m " GEM_SOURCE_DIR "/models/mtp-gem-demo.gguf x");
  EXPECT_EQ(assistant.status, 3);
  EXPECT_EQ(assistant.err.rfind("gem: error: ", 0), 0u) << assistant.err;
  const Folder folder;
  write_text(folder / "garbage.gguf", "not a model");
  EXPECT_EQ(gem_command("inspect " + (folder / "garbage.gguf").string()).status, 3);
  EXPECT_EQ(gem_command("run --context 16 'a prompt that is far too long for so short a context'").status, 1);
  EXPECT_EQ(gem_command("tokenize --jsonl", "{\"text\": 5}\n").status == 0, false);
  write_text(folder / "ids.json", "[1, 99999]");
  EXPECT_EQ(
      gem_command("logits --ids " + (folder / "ids.json").string() + " --out " + (folder / "o").string())
          .status,
      2);
}

TEST(Command, AFullDiskOrAClosedPipeIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_EQ(WEXITSTATUS(std::system(GEM_PROGRAM " run -q hello >/dev/full 2>/dev/null")), 1);
}

TEST(Command, BenchGivesItsFiguresAsJson) {
  const Outcome o = gem_command("bench --json -p 8 -n 2 -r 1 --depth 0,200 --streams 1,3 --rows 4");
  ASSERT_EQ(o.status, 0) << o.err;
  const json j = json::parse(o.out);
  EXPECT_EQ(j["profile"], "demo");
  ASSERT_EQ(j["results"].size(), 8u);
  for (const json& r : j["results"]) {
    EXPECT_GT(r["tokens_per_second"].get<double>(), 0);
    EXPECT_EQ(r.contains("gigabytes_per_second"), r["test"] != "prompt");
    EXPECT_EQ(r.contains("gigaflops"), r["test"] == "prompt");
  }
}

TEST(Command, BenchTellsWhatDraftsCost) {
  const Outcome json_out = gem_command("bench --json -p 0 -n 1 -r 1 --chain 3");
  ASSERT_EQ(json_out.status, 0) << json_out.err;
  std::vector<std::pair<std::string, int>> tests;
  const json results = json::parse(json_out.out)["results"];
  for (const json& r : results) tests.emplace_back(r["test"], r["tokens"]);
  EXPECT_EQ(tests, (std::vector<std::pair<std::string, int>>{
                       {"decode", 1}, {"rows", 1}, {"chain", 3}, {"rows", 4}}));
  const Outcome text = gem_command("bench -p 0 -n 1 -r 1 --chain 3");
  EXPECT_NE(text.out.find("3 drafts and their verification cost"), std::string::npos) << text.out;
  EXPECT_EQ(gem_command("bench --chain 3 --mtp /nonexistent").status, 3);
}

TEST(Command, ProfileGivesEveryStage) {
  for (const char* rows : {"1", "16"}) {
    const Outcome o = gem_command(std::string("profile --json -r 2 --depth 300 --rows ") + rows);
    ASSERT_EQ(o.status, 0) << o.err;
    const json j = json::parse(o.out);
    EXPECT_EQ(j["rows"], std::stoi(rows));
    std::set<std::string> stages;
    double sum = 0;
    for (const json& s : j["stages"]) {
      stages.insert(s["stage"].get<std::string>());
      sum += s["seconds"].get<double>();
    }
    EXPECT_EQ(stages.size(), 9u) << o.out;
    EXPECT_GT(sum, 0);
  }
  EXPECT_EQ(gem_command("profile --depth 4000000000").status, 2);
}

TEST(Command, CheckPassesOnTheBundledModel) {
  const Outcome o = gem_command("check --threads 1");
  EXPECT_EQ(o.status, 0) << o.err << o.out;
  EXPECT_NE(o.out.find("stages passed 36/36, controls red 12/12"), std::string::npos) << o.out;
}

TEST(Command, ASeedFixesAReply) {
  const std::string ask = "run -q --seed 7 'Tell me a story.'";
  const Outcome first = gem_command(ask);
  EXPECT_EQ(first.status, 0);
  EXPECT_EQ(first.out, gem_command(ask + " --chunk 3 --threads 1").out);
  EXPECT_NE(first.out, gem_command("run -q --seed 8 'Tell me a story.'").out);
}

TEST(Command, StopStringsAndLimitsEndAReply) {
  const Outcome stop = gem_command("run --json -q --temperature 0 --stop ', 5' 'Count from 1 to 9.'");
  EXPECT_EQ(json::parse(stop.out)["content"], "1, 2, 3, 4");
  EXPECT_EQ(json::parse(stop.out)["finish_reason"], "stop");
  const Outcome limit = gem_command("run --json -q --temperature 0 --max-tokens 3 'Count from 1 to 9.'");
  EXPECT_EQ(json::parse(limit.out)["finish_reason"], "length");
  EXPECT_EQ(json::parse(limit.out)["usage"]["completion_tokens"], 3);
}

}  // namespace
}  // namespace gem::testing
