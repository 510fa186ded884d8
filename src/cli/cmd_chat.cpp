// gem chat: a conversation on the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/options.h"

namespace gem::cli {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system;
  bool think = false;
};

constexpr const char* kHelp =
    "  /new            forget the conversation\n"
    "  /undo           forget the last exchange\n"
    "  /again          another reply to the last message\n"
    "  /system TEXT    set the system text (and start anew)\n"
    "  /think on|off   let the model think before it answers\n"
    "  /quit           leave (or Ctrl-D)\n"
    "  Ctrl-C stops a reply. A line ending in \\ goes on in the next.\n";

class Chat {
 public:
  Chat(const Options& options, Session& session)
      : session_(session), console_(session), terminal_(::isatty(STDIN_FILENO) != 0) {
    settings_.sampling = options.sampling.over(session.default_sampling());
    settings_.max_tokens = options.sampling.max_tokens;
    settings_.stops = options.sampling.stop;
    settings_.think = options.think;
    settings_.quiet = !terminal_;
    start_anew(options.system);
  }

  void run() {
    if (terminal_)
      fmt::print(stderr, "{} — {}. /help lists the commands.\n", session_.model().profile().title,
                 session_.backend().description());
    std::optional<InterruptGuard> guard;
    if (terminal_) guard.emplace();
    std::string line;
    while (read_line(line)) {
      if (line.empty()) continue;
      try {
        if (line.front() == '/' ? !command(line) : !say(line)) return;
      } catch (const Error& e) {
        if (e.code() == ErrorCode::kFailed || e.code() == ErrorCode::kLost) throw;
        fmt::print(stderr, "gem: error: {}\n", e.what());  // the conversation goes on
        if (e.code() == ErrorCode::kTooLarge)
          fmt::print(stderr, "/new forgets the conversation, /undo its last exchange\n");
      }
    }
    if (terminal_) fmt::print(stderr, "\n");
  }

 private:
  bool read_line(std::string& out) {
    out.clear();
    for (;;) {
      if (terminal_) {
        fmt::print(stderr, "{}", out.empty() ? "> " : "… ");
        std::fflush(stderr);
      }
      std::string line;
      if (!std::getline(std::cin, line)) {
        if (!terminal_ || !InterruptGuard::interrupted()) return !out.empty();
        // Ctrl-C came a moment after the reply, or at an unfinished line: the chat is kept.
        InterruptGuard::forget();
        std::cin.clear();
        std::clearerr(stdin);
        out.clear();
        fmt::print(stderr, "\n/quit or Ctrl-D leaves\n");
        continue;
      }
      const bool more = line.ends_with('\\');
      if (more) line.pop_back();
      out += line;
      if (!more) return true;
      out += '\n';
    }
  }

  void start_anew(const std::string& system) {
    messages_.clear();
    if (!system.empty()) add("system", system);
    first_ = messages_.size();
  }

  void add(const char* role, const std::string& text) {
    Message m;
    m.role = role;
    m.content.form = Content::Form::kText;
    m.content.text = text;
    messages_.push_back(std::move(m));
  }

  bool command(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      fmt::print(stderr, "{}", kHelp);
    } else if (name == "/new") {
      messages_.resize(first_);
    } else if (name == "/undo" || name == "/again") {
      if (messages_.size() < first_ + 2) {
        fmt::print(stderr, "nothing to {} yet\n", name == "/undo" ? "undo" : "repeat");
        return true;
      }
      const std::string last = messages_[messages_.size() - 2].content.text;
      messages_.resize(messages_.size() - 2);
      if (name == "/again") {
        ++settings_.sampling.seed;
        return say(last);
      }
    } else if (name == "/system") {
      start_anew(rest);
    } else if (name == "/think" && (rest == "on" || rest == "off")) {
      settings_.think = rest == "on";
    } else {
      fmt::print(stderr, "unknown command {}; /help lists them\n", line);
    }
    return true;
  }

  bool say(const std::string& text) {
    add("user", text);
    Answer answer;
    try {
      answer = console_.ask(messages_, {}, settings_);
    } catch (...) {
      messages_.pop_back();
      throw;
    }
    const bool stopped = answer.reason == FinishReason::kCancelled;
    // Stopped before it said anything: as if it had not been asked, for an empty reply would stay in the way.
    const bool forgotten = stopped && answer.reply.content.empty();
    forgotten ? messages_.pop_back() : add("assistant", answer.reply.content);
    if (terminal_) {
      fmt::print(stderr, "\033[2m[{}{}]\033[0m\n", speeds(answer.times),
                 forgotten                                ? "; stopped, and your message forgotten"
                 : stopped                                ? "; stopped"
                 : answer.reply.finish_reason == "length" ? "; cut off by the limit"
                                                          : "");
    }
    return true;
  }

  Session& session_;
  Console console_;
  ReplySettings settings_;
  std::vector<Message> messages_;
  std::size_t first_ = 0;  // messages that /new keeps: the system text
  bool terminal_;
};

}  // namespace

void add_chat(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("chat", "Talk with the model on the terminal");
  o->model.add_to(*sub);
  o->model.add_drafts_to(*sub);
  o->sampling.add_to(*sub);
  sub->add_option("--system", o->system, "System text");
  sub->add_flag("--think", o->think, "Let the model think before it answers");
  sub->callback([o] {
    const std::unique_ptr<Session> session = open_session(o->model);
    Chat(*o, *session).run();
  });
}

}  // namespace gem::cli
