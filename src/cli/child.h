// Another program on this terminal.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gem::cli {

// The file that a shell would run for `name`: the first executable of that name in PATH.
std::optional<std::string> find_program(const std::string& name);

// Starts it with our terminal, working folder and environment, the latter changed as said (no value: without
// it). Signals do in it what they do in a program started by a shell. Error(kFailed).
pid_t start_program(const std::string& file, const std::vector<std::string>& arguments,
                    const std::map<std::string, std::optional<std::string>>& environment);

// What a shell would say of how it ended: its exit status, or 128 + the signal. `raw`: of waitpid.
int exit_status(int raw);

}  // namespace gem::cli
