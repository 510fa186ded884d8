// gem pull: a model from the hub into the cache that the Hugging Face tools use, too.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/download_display.h"
#include "cli/options.h"
#include "hub/pull.h"

namespace gem::cli {
namespace {

struct Options {
  std::string repository;
  hub::PullOptions pull;
  bool offline = false, list = false, json = false, quiet = false;
};

nlohmann::ordered_json to_json(const hub::PulledModel& m) {
  nlohmann::ordered_json j = {{"repository", m.repository}, {"commit", m.commit}, {"model", m.main.string()}};
  const auto optional = [&](const char* name, const std::filesystem::path& path) {
    j[name] = path.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(path.string());
  };
  optional("assistant", m.assistant);
  optional("mmproj", m.mmproj);
  j["files"] = nlohmann::ordered_json::array();
  for (const auto& file : m.files) j["files"].push_back(file.string());
  j["bytes"] = m.bytes;
  j["received_bytes"] = m.received;
  return j;
}

hub::PulledModel get(const Options& o, const hub::RepoRef& ref, const hub::Settings& settings) {
  if (settings.offline || o.offline) return hub::find_in_cache(ref, settings, o.pull);
  DownloadDisplay display(::isatty(STDERR_FILENO) != 0, o.quiet);
  const InterruptGuard guard;
  const hub::PullEvents events{.note = [&](const std::string& text) { display.note(text); },
                               .progress = [&](const hub::PullProgress& p) { display.show(p); },
                               .cancelled = [] { return InterruptGuard::interrupted(); }};
  const auto began = std::chrono::steady_clock::now();
  try {
    hub::PulledModel m = hub::pull(ref, settings, o.pull, events);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    display.note(
        m.received == 0
            ? fmt::format("nothing to get: all {} are in the cache", human_bytes(m.bytes))
            : fmt::format("{} received in {} and checked", human_bytes(m.received), human_duration(seconds)));
    return m;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kCancelled) throw;
    fail(ErrorCode::kCancelled, "interrupted; 'gem pull {}' goes on from here", ref.text());
  }
}

void run(const Options& o) {
  const hub::RepoRef ref = hub::parse_repo_ref(o.repository);
  const hub::Settings settings = hub::settings_from();
  if (o.list) {
    if (settings.offline || o.offline) fail(ErrorCode::kUsage, "--list asks the hub; this is offline");
    const InterruptGuard guard;
    DownloadDisplay display(false, o.quiet);
    hub::PullEvents events;
    events.note = [&](const std::string& text) { display.note(text); };
    events.cancelled = [] { return InterruptGuard::interrupted(); };
    for (const std::string& line : hub::list_models(ref, settings, o.pull, events)) fmt::print("{}\n", line);
    return;
  }
  const hub::PulledModel m = get(o, ref, settings);
  if (o.json) {
    fmt::print("{}\n", to_json(m).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("{}\n", m.main.string());
}

}  // namespace

void add_pull(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("pull", "Get a model from Hugging Face, or see where it is");
  sub->add_option("repository", o->repository,
                  "ORG/REPO[@REVISION][:PATTERN]. The pattern picks one of several models: a storage type "
                  "(Q4_0), a file, a part of its name, or a glob")
      ->required();
  CLI::Option* list = sub->add_flag("--list", o->list, "Print the repository's models and get none");
  CLI::Option* offline =
      sub->add_flag("--offline", o->offline, "Look into the cache only (also: HF_HUB_OFFLINE=1)");
  sub->add_flag("!--no-assistant", o->pull.assistant, "Without the assistant that lies beside the model");
  sub->add_flag("!--no-mmproj", o->pull.mmproj, "Without the image projector that lies beside the model");
  CLI::Option* verify = sub->add_flag("--verify", o->pull.verify,
                                      "Read what the cache has again, and get anew what is damaged");
  sub->add_option("--connections", o->pull.download.connections, "Ranges of a large file got at once")
      ->capture_default_str()
      ->check(CLI::Range(1u, 64u));
  CLI::Option* json = sub->add_flag("--json", o->json, "Print the paths of all files as JSON");
  sub->add_flag("--quiet,-q", o->quiet, "No progress");
  list->excludes(json)->excludes(verify);
  offline->excludes(verify)->excludes(list);
  sub->footer(
      "Prints the path of the model; every verb also takes ORG/REPO[:PATTERN] for -m once it is here.\n"
      "Files are checked by size and SHA-256 and kept in the cache of the Hugging Face tools. What was\n"
      "interrupted goes on where it was. Environment: HF_TOKEN (or the login of those tools) for gated and\n"
      "private models, HF_HOME or HF_HUB_CACHE for the cache, HF_ENDPOINT for another hub, HTTPS_PROXY.");
  sub->callback([o] { run(*o); });
}

}  // namespace gem::cli
