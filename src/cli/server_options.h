// The options of `gem serve`, some of which `gem agent` shares.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "server/app.h"
#include "server/http/http_server.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/service.h"

namespace gem::cli {

struct ServerOptions {
  ModelOptions model;
  SamplingOptions sampling;  // what requests get that say nothing
  std::string alias;
  std::uint32_t parallel = 0;               // 0: as many of 4, 2, 1 as fit the memory
  std::optional<std::uint64_t> cache_ram;   // MiB; nothing: default_prompt_cache()
  std::string cache_folder;                 // empty: nothing is kept on disk
  std::optional<std::uint64_t> cache_disk;  // MiB
  std::size_t queue = server::ServiceOptions{}.queue;
  bool think = true;
  std::optional<std::uint32_t> thinking_budget;

  server::HttpOptions http;
  std::vector<std::string> keys;
  std::string key_file;
  std::vector<std::string> origins, hosts;
  std::string prefix;
  bool vllm_names = false;
  server::LogOptions log;
  std::chrono::milliseconds drain{30'000};

  // What both verbs take: the model, its slots, sampling, thinking.
  void add_model_options(CLI::App& app);
  void add_server_options(CLI::App& app);

  std::string model_name() const;  // the alias, or the file's name
  // Reads the key file. Error(kUsage).
  server::AppOptions app() const;
};

}  // namespace gem::cli
