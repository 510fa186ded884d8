// gem synth: a checkpoint of the real geometry with random weights.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "model/synth.h"

namespace gem::cli {

void add_synth(CLI::App& app) {
  struct Options {
    std::string profile, out;
    std::string type = "Q4_0", table = "Q8_0";
    std::uint64_t seed = 1;
  };
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "synth", "Write a checkpoint of a real geometry with random weights, for speed work");
  sub->add_option("profile", o->profile, "12b, 31b, demo, or one of their assistants: 12b-assistant, …")
      ->required();
  sub->add_option("out", o->out, "GGUF file to write")->required();
  sub->add_option("--type", o->type,
                  "Storage of the matrices: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F16, BF16 or F32")
      ->capture_default_str();
  sub->add_option("--table", o->table, "Storage of the token table")->capture_default_str();
  sub->add_option("--seed", o->seed, "Seed of the weights")->capture_default_str();
  sub->callback([o] {
    const Profile* profile = find_profile(o->profile);
    if (profile == nullptr)
      fail(ErrorCode::kUsage, "unknown profile {:?} (known: 12b, 31b, demo, and each with -assistant)",
           o->profile);
    const auto type_of = [](const std::string& name) {
      const auto type = storage_from_name(name);
      if (!type) fail(ErrorCode::kUsage, "unknown storage type {:?}", name);
      return *type;
    };
    ProgressBar progress("writing");
    write_synthetic(*profile, o->out, {type_of(o->type), type_of(o->table), o->seed},
                    [&](std::uint64_t done, std::uint64_t total) { progress.show_bytes(done, total); });
  });
}

}  // namespace gem::cli
