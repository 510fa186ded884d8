#include "cli/server_options.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "cli/model_path.h"

namespace gem::cli {
namespace {

// An option in seconds (fractions allowed) for a value in milliseconds.
CLI::Option* add_seconds(CLI::App& app, const std::string& name, std::chrono::milliseconds& value,
                         const std::string& text) {
  return app
      .add_option_function<double>(
          name, [&value](double seconds) { value = std::chrono::milliseconds(std::llround(seconds * 1000)); },
          text)
      ->check(CLI::Range(0.001, 1e6))
      ->default_str(fmt::format("{}", static_cast<double>(value.count()) / 1000))
      ->type_name("SECONDS");
}

CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                      const std::string& text) {
  return app.add_option(name, values, text)->take_all()->allow_extra_args(false);
}

}  // namespace

void ServerOptions::add_model_options(CLI::App& app) {
  model.add_to(app);
  model.add_drafts_to(app);
  app.add_option("--alias", alias, "The model's name in the API (default: its file's name)");
  app.add_option("--parallel,-n", parallel, "Replies made at once (default: 4, fewer where memory is short)")
      ->check(CLI::Range(1u, 256u));
  app.add_option(
         "--cache-ram", cache_ram,
         "MiB for states of earlier prompts; 0: only each slot's own (default: half of what is left, at "
         "most 8192)")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 40));
  CLI::Option* folder = app.add_option(
      "--cache-dir", cache_folder,
      "Folder for states of prompts that memory has no room for and that outlive the server; holds what was "
      "said, readable by this user alone (default: none)");
  app.add_option("--cache-disk", cache_disk,
                 "MiB of files in it (default: half of what the disk has free, at most 16384)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
      ->needs(folder);
  app.add_option("--temperature,--temp", sampling.temperature,
                 "Where a request says nothing; 0 is greedy (default: the model's, 1.0)");
  app.add_option("--top-k", sampling.top_k, "Likewise; 0 keeps all (default: the model's, 64)");
  app.add_option("--top-p", sampling.top_p, "Likewise (default: the model's, 0.95)");
  app.add_option("--min-p", sampling.min_p, "Likewise (default: 0)");
  app.add_flag("--think,!--no-think", think, "Whether the model thinks where a request says nothing")
      ->default_str("true");
  app.add_option("--thinking-budget", thinking_budget,
                 "Longest thought in tokens where a request says nothing (default: no limit)");
}

void ServerOptions::add_server_options(CLI::App& app) {
  using Limits = server::HttpOptions;
  app.add_option("--host", http.host, "Address to listen at, or a Unix socket: a path that ends in .sock")
      ->capture_default_str();
  app.add_option("--port", http.port, "0 takes any free port")->capture_default_str();
  app.add_option("--queue", queue, "Requests that may wait for a slot")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000));
  add_list(app, "--api-key", keys, "Clients must present this key (may be repeated)");
  app.add_option("--api-key-file", key_file, "File of keys, one a line");
  add_list(app, "--cors-origin", origins,
           "Web pages of this origin may call: SCHEME://HOST[:PORT], localhost (any port), or * (may be "
           "repeated)");
  add_list(app, "--allow-host", hosts,
           "A further name that clients may call this server by, as behind a proxy (may be repeated)");
  app.add_option("--api-prefix", prefix, "Put before all paths, e.g. /gem");
  app.add_option_function<std::string>(
         "--metrics-names", [this](const std::string& name) { vllm_names = name == "vllm"; },
         "Names of the metrics: gem (with llama-server's), or vllm for vLLM's as well")
      ->check(CLI::IsMember({"gem", "vllm"}))
      ->default_str("gem");
  app.add_option_function<std::string>(
         "--log-format",
         [this](const std::string& name) {
           log.format = name == "json" ? server::LogFormat::kJson : server::LogFormat::kText;
         },
         "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->default_str("text");
  app.add_option("--log-level", log.level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.add_option("--log-file", log.file, "Where the log goes (default: standard error)");
  add_seconds(app, "--drain-timeout", drain, "Longest wait for running replies when the server is stopped");
  add_seconds(app, "--header-timeout", http.header_timeout, "Longest time for a request's headers");
  add_seconds(app, "--body-timeout", http.body_timeout, "Longest pause in a request's body");
  add_seconds(app, "--idle-timeout", http.idle_timeout, "Longest pause between requests of a connection");
  add_seconds(app, "--write-timeout", http.write_timeout,
              "Longest time that a client may leave replies unread");
  add_seconds(app, "--heartbeat", http.heartbeat, "A silent stream gets a comment after this time");
  app.add_option("--max-connections", http.max_connections, "Connections open at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--max-body", http.max_body_bytes, "Largest body of a request in bytes (suffixes KB, MB, …)")
      ->transform(CLI::AsSizeValue(false))
      ->default_str(std::to_string(Limits{}.max_body_bytes));
}

std::string ServerOptions::model_name() const {
  return alias.empty() ? model_name_of(model.path()) : alias;
}

server::AppOptions ServerOptions::app() const {
  server::AppOptions o;
  o.access.keys = keys;
  if (!key_file.empty()) {
    const std::vector<std::string> more = server::parse_key_lines(read_file(key_file));
    if (more.empty()) fail(ErrorCode::kUsage, "{} holds no API key", key_file);
    o.access.keys.insert(o.access.keys.end(), more.begin(), more.end());
  }
  o.access.origins = origins;
  o.access.hosts = hosts;
  o.access.host = http.host;
  o.prefix = prefix;
  o.server = "gem/" GEM_VERSION;
  return o;
}

}  // namespace gem::cli
