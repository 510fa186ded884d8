#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "cli/commands.h"

namespace {

// The exit statuses of docs/architecture.md.
int status_of(gem::ErrorCode code) {
  switch (code) {
    case gem::ErrorCode::kUsage:
      return 2;
    case gem::ErrorCode::kBadFile:
    case gem::ErrorCode::kRefused:
      return 3;
    case gem::ErrorCode::kTooLarge:
    case gem::ErrorCode::kFailed:
    case gem::ErrorCode::kLost:
    case gem::ErrorCode::kCancelled:
      return 1;
  }
  return 1;
}

int fail_with(int status, const char* message) {
  std::fflush(stdout);
  std::fprintf(stderr, "gem: error: %s\n", message);
  return status;
}

int run_command(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is a failed write, not the end of the process
  CLI::App app{"gem runs Google's Gemma 4 on this machine.", "gem"};
  app.set_version_flag("--version", "gem " GEM_VERSION);
  app.require_subcommand(1);
  app.footer("Without -m, a verb uses the bundled demo model. 'gem VERB --help' tells more.");
  gem::cli::add_run(app);
  gem::cli::add_chat(app);
  gem::cli::add_serve(app);
  gem::cli::add_agent(app);
  gem::cli::add_pull(app);
  gem::cli::add_inspect(app);
  gem::cli::add_convert(app);
  gem::cli::add_bench(app);
  gem::cli::add_profile(app);
  gem::cli::add_check(app);
  gem::cli::add_logits(app);
  gem::cli::add_draft(app);
  gem::cli::add_tokenize(app);
  gem::cli::add_detokenize(app);
  gem::cli::add_format(app);
  gem::cli::add_parse(app);
  gem::cli::add_synth(app);
  try {
    const auto named = [&](const CLI::App* verb) { return verb->check_name(argv[1]); };
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(named).empty())
      gem::fail(gem::ErrorCode::kUsage, "unknown verb {:?}; 'gem --help' lists the verbs", argv[1]);
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& e) {
    return e.get_exit_code();  // of a program that the verb ran; it has said what there is to say
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    const auto verbs = app.get_subcommands();
    const std::string verb = verbs.empty() ? "" : verbs.front()->get_name() + " ";
    return fail_with(2, fmt::format("{}; 'gem {}--help' tells more", e.what(), verb).c_str());
  } catch (const gem::Error& e) {
    return fail_with(status_of(e.code()), e.what());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return fail_with(1, "cannot write to standard output");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_command(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail_with(1, "out of memory");
  } catch (const std::exception& e) {
    return fail_with(1, e.what());
  } catch (...) {
    return fail_with(1, "unknown failure");
  }
}
