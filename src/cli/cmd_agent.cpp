// gem agent: the coding agent hax with a server of its own, both ending together.
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "cli/child.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/server_options.h"
#include "cli/serving.h"
#include "cli/signals.h"

namespace gem::cli {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr std::uintmax_t kLongLog = 8 << 20;  // bytes, after which a new file is begun

struct Options {
  ServerOptions server;
  std::vector<std::string> arguments;  // of hax
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string random_key() {
  std::random_device device;
  std::string key = "gem-";
  for (int i = 0; i < 6; ++i) key += fmt::format("{:08x}", device());
  return key;
}

// The server's log, kept off the terminal: STATE/gem/agent.log, for this user's eyes. Empty: no place for it.
std::string log_file() {
  fs::path state = variable("XDG_STATE_HOME");
  if (!state.is_absolute()) {  // the XDG rules: relative ones do not count
    if (variable("HOME").empty()) return "";
    state = fs::path(variable("HOME")) / ".local" / "state";
  }
  const fs::path file = state / "gem" / "agent.log";
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  const std::uintmax_t size = fs::file_size(file, error);
  if (!error && size > kLongLog) fs::rename(file, file.string() + ".1", error);
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return "";
  ::close(fd);
  return file.string();
}

void start_log(server::LogOptions options) {
  if (options.file.empty()) options.file = log_file();
  if (options.file.empty()) {
    note("gem: the server's log has no place to go (XDG_STATE_HOME, HOME); there will be none\n");
    options.level = "off";
    options.file = "/dev/null";
  }
  server::set_up_log(options);
}

// What hax must be told to talk to this server, and to no other.
std::map<std::string, std::optional<std::string>> environment_of(const Serving& serving,
                                                                 const std::string& key) {
  std::map<std::string, std::optional<std::string>> e = {
      {"HAX_PROVIDER", "llama.cpp"},
      {"HAX_LLAMACPP_BASE_URL", serving.address() + "/v1"},
      {"HAX_LLAMACPP_PORT", std::to_string(serving.port())},
      {"HAX_LLAMACPP_API_KEY", key},
      {"HAX_MODEL", serving.model_name()},
  };
  // It would fetch a list of online models, of which none is used here.
  if (std::getenv("HAX_CATALOG_URL") == nullptr && std::getenv("HAX_CATALOG_REFRESH") == nullptr)
    e["HAX_CATALOG_REFRESH"] = "0";
  // A proxy that is set for the world is not asked for this machine.
  for (const char* name : {"no_proxy", "NO_PROXY"}) {
    const std::string before = variable(name);
    if (before == "*") continue;
    e[name] = before.empty() ? "127.0.0.1" : before + ",127.0.0.1";
  }
  return e;
}

// Whether a stopped program stays stopped: when the whole group was stopped and goes on, its news may come
// late.
bool stays_stopped(pid_t pid) {
  for (int i = 0; i < 10; ++i) {
    int raw = 0;
    if (::waitpid(pid, &raw, WCONTINUED | WNOHANG) == pid) return false;
    ::usleep(10'000);
  }
  return true;
}

// Waits for hax's end. Its terminal's signals reach it without us; those sent to us alone are passed on.
int wait_for(pid_t pid, SignalQueue& signals) {
  while (true) {
    int raw = 0;
    const pid_t ended = ::waitpid(pid, &raw, WNOHANG | WUNTRACED);
    if (ended == pid && !WIFSTOPPED(raw)) return exit_status(raw);
    if (ended == pid && stays_stopped(pid)) {
      // It stopped itself: the shell waits for us, so we stop too, and go on together.
      ::raise(SIGSTOP);
      ::kill(pid, SIGCONT);
    }
    const auto signal = signals.wait(1s);
    if (signal == SIGTERM || signal == SIGHUP) ::kill(pid, *signal);
  }
}

void agent(Options& o) {
  const auto hax = find_program("hax");
  if (!hax) {
    fail(ErrorCode::kFailed,
         "the agent hax is not on PATH; install it, or let another agent use 'gem serve' (docs/api.md)");
  }
  const std::string key = random_key();
  o.server.keys = {key};
  o.server.http.host = "127.0.0.1";
  o.server.http.port = 0;
  start_log(o.server.log);
  int status = 0;
  {
    SignalQueue signals{SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGCHLD};
    Serving serving(o.server);
    spdlog::info("agent: listening at {}, loading {}", serving.address(), serving.model_name());
    const bool terminal = ::isatty(STDERR_FILENO) != 0;
    if (terminal) note(fmt::format("loading {} …", serving.model_name()));
    try {
      serving.load(signals);
    } catch (...) {
      if (terminal) note("\r\033[K");
      throw;
    }
    if (terminal) note("\r\033[K");
    spdlog::info("agent: ready: {}", serving.description());
    status = wait_for(start_program(*hax, o.arguments, environment_of(serving, key)), signals);
    spdlog::info("agent: hax ended with status {}", status);
    serving.stop();
  }
  if (status != 0) throw CLI::RuntimeError(status);
}

}  // namespace

void add_agent(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("agent", "Run the coding agent hax with a server of its own");
  o->server.add_model_options(*sub);
  sub->add_option("--log-level", o->server.log.level,
                  "Of the server's log: trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  sub->add_option("--log-file", o->server.log.file,
                  "The server's log (default: gem/agent.log in the XDG state folder)");
  sub->add_option("arguments", o->arguments, "After --: what hax is told");
  sub->callback([o] { agent(*o); });
}

}  // namespace gem::cli
