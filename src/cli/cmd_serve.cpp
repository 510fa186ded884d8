// gem serve: the HTTP server.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/server_options.h"
#include "cli/serving.h"
#include "cli/signals.h"

namespace gem::cli {
namespace {

void warn_if_open(const ServerOptions& o) {
  const bool local = server::is_loopback_host(o.http.host) || o.http.host.ends_with(".sock");
  if (!local && o.keys.empty() && o.key_file.empty())
    spdlog::warn("everybody who reaches {} may use this server: no --api-key is set", o.http.host);
}

void serve(const ServerOptions& o) {
  server::set_up_log(o.log);
  SignalQueue signals{SIGINT, SIGTERM};
  Serving serving(o);
  warn_if_open(o);
  spdlog::info("listening at {}, loading {}", serving.address(), serving.model_name());
  serving.load(signals);
  spdlog::info("ready: {}", serving.description());
  fmt::print("{} serves {}\n", serving.address(), serving.description());
  std::fflush(stdout);
  std::clearerr(stdout);  // whoever reads it may be gone; the server stays

  const int signal = signals.wait();
  if (signal == SignalQueue::kWoken) {
    serving.stop();
    fail(ErrorCode::kLost, "{}", serving.lost());
  }
  spdlog::info("{}: finishing what runs, at most {} s; a second signal stops at once",
               signal == SIGINT ? "interrupted" : "terminated", o.drain.count() / 1000);
  const bool finished = serving.drain(o.drain, signals);
  serving.stop();
  if (!finished) fail(ErrorCode::kCancelled, "stopped before every reply was finished");
  spdlog::info("stopped");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto o = std::make_shared<ServerOptions>();
  CLI::App* sub =
      app.add_subcommand("serve", "Serve the model over HTTP: OpenAI's and Anthropic's APIs, a web page");
  o->add_model_options(*sub);
  o->add_server_options(*sub);
  sub->callback([o] { serve(*o); });
}

}  // namespace gem::cli
