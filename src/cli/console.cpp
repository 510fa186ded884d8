#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "cli/progress_bar.h"

namespace gem::cli {
namespace {

std::atomic<bool> interrupt_noted{false};
std::atomic<bool> reading_prompt{false};  // with a bar on a terminal: a round may take long
std::atomic<bool> thought_colour{false};  // standard output is dimmed
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may use no locks");

template <std::size_t N>
void write_in_handler(int file, const char (&text)[N]) {
  if (::write(file, text, N - 1) < 0) return;  // nobody to tell
}

// The first Ctrl-C takes effect when the round is over; a second before that ends the process.
extern "C" void note_interrupt(int) {
  const int before = errno;
  if (interrupt_noted.exchange(true)) {
    if (thought_colour) write_in_handler(STDOUT_FILENO, "\033[0m");
    write_in_handler(STDERR_FILENO, "\n");
    std::signal(SIGINT, SIG_DFL);
    ::raise(SIGINT);  // delivered when this returns
  } else if (reading_prompt) {
    write_in_handler(STDERR_FILENO,
                     "\r\033[Kstopping after this part of the prompt; Ctrl-C again ends at once\n");
  }
  errno = before;
}

// A bar on stderr for prompts that take more than a moment.
class PromptBar {
 public:
  explicit PromptBar(bool active) : active_(active) { reading_prompt = active; }
  ~PromptBar() { reading_prompt = false; }
  PromptBar(const PromptBar&) = delete;
  PromptBar& operator=(const PromptBar&) = delete;
  void show(std::uint32_t done, std::uint32_t total) {
    if (!active_) return;
    const double elapsed = seconds();
    if (elapsed < 0.5 || total < 2) return;
    fmt::print(stderr, "\r\033[Kreading {} {}/{} tokens", bar(done, total), done, total);
    std::fflush(stderr);
    shown_ = true;
  }
  void clear() {
    reading_prompt = false;
    if (shown_) {
      fmt::print(stderr, "\r\033[K");
      std::fflush(stderr);
    }
    shown_ = false;
  }

 private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  bool active_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Prints events: the answer to stdout, thoughts dimmed, calls as name(arguments).
class Printer {
 public:
  Printer(bool thoughts, bool colour) : thoughts_(thoughts), colour_(colour) {}

  void print(const ReplyEvent& event) {
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        if (!thoughts_) return;
        enter(Part::kThought);
        put(event.text);
        break;
      case ReplyEvent::Kind::kContent:
        enter(Part::kAnswer);
        put(event.text);
        break;
      case ReplyEvent::Kind::kCallStart:
        enter(Part::kNothing);
        enter(Part::kCall);
        put(event.text + " ");
        break;
      case ReplyEvent::Kind::kCallArguments:
        put(event.text);
        break;
    }
    std::fflush(stdout);
  }
  void end() {
    enter(Part::kNothing);
    std::fflush(stdout);
  }

 private:
  enum class Part { kNothing, kThought, kAnswer, kCall };

  void enter(Part part) {
    if (part == part_) return;
    if (part_ == Part::kThought && colour_) std::fputs("\033[0m", stdout);
    thought_colour = part == Part::kThought && colour_;
    if (part_ != Part::kNothing) std::fputc('\n', stdout);
    if (part == Part::kThought) std::fputs(colour_ ? "\033[2m" : "[thought] ", stdout);
    if (part == Part::kCall) std::fputs("[call] ", stdout);
    part_ = part;
  }
  static void put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  bool thoughts_;
  bool colour_;
  Part part_ = Part::kNothing;
};

}  // namespace

InterruptGuard::InterruptGuard() {
  forget();
  struct sigaction action {};
  action.sa_handler = note_interrupt;  // without SA_RESTART: a read of the terminal returns
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &before_, nullptr);
}

bool InterruptGuard::interrupted() {
  return interrupt_noted;
}

void InterruptGuard::forget() {
  interrupt_noted = false;
}

void note(const std::string& text) {
  std::fputs(text.c_str(), stderr);
}

std::string speeds(const StreamTimes& t) {
  std::string text = fmt::format("prompt {} tokens", t.prompt_tokens);
  if (t.prompt_seconds > 0) text += fmt::format(", {:.1f} tokens/s", t.prompt_tokens / t.prompt_seconds);
  if (t.reused > 0) text += fmt::format(" ({} from the cache)", t.reused);
  text += fmt::format("; reply {} tokens", t.reply_tokens);
  // The first token comes with the prompt: the steps after it are what decoding took.
  if (t.reply_tokens > 1 && t.decode_seconds > 0)
    text += fmt::format(", {:.1f} tokens/s", (t.reply_tokens - 1) / t.decode_seconds);
  return text;
}

Answer Console::ask(const std::vector<Message>& messages, const std::vector<Tool>& tools,
                    const ReplySettings& settings) {
  const RenderedPrompt prompt = render_chat(messages, tools, {.enable_thinking = settings.think});
  std::vector<std::int32_t> ids = session_.tokenizer().encode_prompt(prompt.pieces);
  session_.tokenizer().ensure_bos(ids);
  ReplyOptions options{.start_thinking = prompt.open_thought, .tools_active = !tools.empty()};
  if (!tools.empty()) options.tools = std::make_shared<const ToolTypes>(tools);
  return generate(std::move(ids), options, settings);
}

Answer Console::complete(const std::string& prompt, const ReplySettings& settings) {
  std::vector<std::int32_t> ids = session_.tokenizer().encode(prompt, true);
  session_.tokenizer().ensure_bos(ids);
  return generate(std::move(ids), {.tools_active = false}, settings);
}

Answer Console::generate(std::vector<std::int32_t> prompt, const ReplyOptions& options,
                         const ReplySettings& settings) {
  const bool progress = !settings.quiet && ::isatty(STDERR_FILENO) != 0;
  PromptBar bar(progress);
  Printer printer(settings.show_thoughts, ::isatty(STDOUT_FILENO) != 0);
  ReplyStream sink(
      session_.tokenizer(), {.reply = options, .stops = settings.stops},
      [&](const ReplyEvent& event) {
        bar.clear();
        if (settings.print) printer.print(event);
      },
      [&](std::uint32_t done, std::uint32_t total) { bar.show(done, total); });
  GenerationRequest request = session_.request(std::move(prompt), settings.sampling);
  request.max_tokens = settings.max_tokens;
  const std::size_t prompt_tokens = request.prompt.size();
  const InterruptGuard guard;
  const std::shared_ptr<Stream> stream = session_.engine().open(std::move(request), sink, std::move(state_));
  while (!stream->finished()) {
    // A reader that went away (gem run … | head) needs no more tokens.
    if (InterruptGuard::interrupted() || std::ferror(stdout) != 0) stream->cancel();
    session_.engine().step();
  }
  bar.clear();
  printer.end();
  state_ = stream->take_state();
  if (std::ferror(stdout) != 0) fail(ErrorCode::kFailed, "cannot write to standard output");
  if (sink.reason() == FinishReason::kFailed)
    fail(ErrorCode::kFailed, "the model's logits are not finite: the checkpoint may be damaged");
  const auto reply = std::span(stream->tokens()).subspan(prompt_tokens);
  return {sink.reply(), session_.tokenizer().decode(reply, true), sink.reason(), stream->times()};
}

}  // namespace gem::cli
