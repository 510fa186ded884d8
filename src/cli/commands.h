// The verbs of the command. Each add_* registers one subcommand; its callback does the work, writes results
// to stdout, and throws gem::Error, which main() turns into a message and an exit status.
#pragma once

#include <CLI/CLI.hpp>

namespace gem::cli {

void add_run(CLI::App& app);
void add_chat(CLI::App& app);
void add_serve(CLI::App& app);
void add_agent(CLI::App& app);
void add_pull(CLI::App& app);
void add_inspect(CLI::App& app);
void add_convert(CLI::App& app);
void add_logits(CLI::App& app);
void add_draft(CLI::App& app);
void add_bench(CLI::App& app);
void add_profile(CLI::App& app);
void add_check(CLI::App& app);
void add_synth(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_detokenize(CLI::App& app);
void add_format(CLI::App& app);
void add_parse(CLI::App& app);

}  // namespace gem::cli
