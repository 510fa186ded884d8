// --kv-type: every verb that makes a cache takes it, and it is what the cache has.
#include <cmath>
#include <nlohmann/json.hpp>

#include "command.h"
#include "formats/safetensors.h"
#include "golden.h"

namespace gem::testing {
namespace {

using nlohmann::json;

TEST(KvTypeOption, EveryVerbThatMakesACacheHasIt) {
  for (const std::string verb :
       {"run", "chat", "serve", "agent", "bench", "profile", "logits", "check", "inspect"}) {
    const Outcome o = gem_command(verb + " --help");
    EXPECT_NE(o.out.find("--kv-type"), std::string::npos) << verb;
  }
  for (const std::string type : {"q8_0", "F16", "f16_full", ""}) {
    const Outcome o = gem_command("inspect --kv-type '" + type + "'");
    EXPECT_EQ(o.status, 2) << type;
    EXPECT_NE(o.err.find("f16-full"), std::string::npos) << "the types are named: " << o.err;
  }
}

// The demo: 10 sliding layers of 128 + 256 slots, 2 full ones of 4,096, 2 x 128 numbers in each.
TEST(KvTypeOption, InspectPlansWithIt) {
  const auto memory = [](const std::string& arguments) {
    const Outcome o = gem_command("inspect --json " + arguments);
    EXPECT_EQ(o.status, 0) << o.err;
    return json::parse(o.out)["memory"];
  };
  const std::uint64_t sliding = 10 * 384 * 2 * 128;
  const std::uint64_t full = 2 * 4096 * 2 * 128;
  const struct {
    const char* type;
    std::uint64_t bytes, spans;
  } cases[] = {{"f32", 4 * (sliding + full), 4 * sliding / 384 * 256},
               {"bf16", 2 * (sliding + full), 2 * sliding / 384 * 256},
               {"f16", 2 * (sliding + full), 2 * sliding / 384 * 256},
               {"f16-full", 4 * sliding + 2 * full, 4 * sliding / 384 * 256}};
  for (const auto& c : cases) {
    const json m = memory(std::string("--kv-type ") + c.type);
    EXPECT_EQ(m["kv_type"], c.type);
    EXPECT_EQ(m["kv_stream"], c.bytes) << c.type;
    EXPECT_EQ(m["kv_spans"], c.spans) << c.type;
  }
  EXPECT_EQ(memory(""), memory("--kv-type f32"));
  // The oracle rounds, and keeps float64.
  EXPECT_EQ(memory("--backend oracle --kv-type f16")["kv_stream"], 8 * (sliding + full));
}

TEST(KvTypeOption, LogitsAreThoseOfRoundedCaches) {
  const Folder folder;
  write_text(folder / "ids.json", "[2, 105, 364, 107, 436, 764, 902, 888, 106, 107]");
  const auto logits = [&](const std::string& arguments) {
    const std::string out = (folder / "out.safetensors").string();
    const Outcome o = gem_command("logits --any-geometry --rows last --ids " +
                                  (folder / "ids.json").string() + " --out " + out + " " + arguments);
    EXPECT_EQ(o.status, 0) << o.err;
    return SafetensorsFile::open(out).at("logits").floats();
  };
  const auto f32 = logits("");
  EXPECT_EQ(logits("--kv-type f32"), f32);
  for (const std::string type : {"bf16", "f16", "f16-full"}) {
    const auto found = logits("--kv-type " + type);
    EXPECT_NE(found, f32) << type;
    const auto oracle = logits("--backend oracle --kv-type " + type);
    ASSERT_EQ(found.size(), oracle.size());
    double squares = 0;
    for (std::size_t i = 0; i < found.size(); ++i)
      squares += (double{found[i]} - double{oracle[i]}) * (double{found[i]} - double{oracle[i]});
    // An element in 10,000 falls on the other side of a rounding's border.
    EXPECT_LT(std::sqrt(squares / static_cast<double>(found.size())), type == "bf16" ? 0.05 : 0.01) << type;
  }
}

TEST(KvTypeOption, ReportsNameIt) {
  const Outcome bench = gem_command("bench --json -p 8 -n 1 -r 1 --kv-type f16-full");
  ASSERT_EQ(bench.status, 0) << bench.err;
  EXPECT_EQ(json::parse(bench.out)["kv_type"], "f16-full");
  const Outcome profile = gem_command("profile --json -r 1 --kv-type bf16");
  ASSERT_EQ(profile.status, 0) << profile.err;
  EXPECT_EQ(json::parse(profile.out)["kv_type"], "bf16");
  const Outcome run = gem_command("run -q --temperature 0 --max-tokens 4 --kv-type f16 Hello");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out, "");
}

TEST(KvTypeOption, CheckFindsARoundingThatIsLeftOut) {
  GEM_GOLDEN_OR_SKIP(model, "models/dense-a/q4_0.gguf");
  const Outcome o = gem_command("check --any-geometry --kv-type f16 -m " + model);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out.rfind("KV type f16\n", 0), 0u) << o.out;
  const std::size_t at = o.out.find("keys and values not rounded");
  ASSERT_NE(at, std::string::npos) << o.out;
  const std::string line = o.out.substr(at, o.out.find('\n', at) - at);
  EXPECT_EQ(line.substr(line.size() - 5), "found") << line;
}

}  // namespace
}  // namespace gem::testing
