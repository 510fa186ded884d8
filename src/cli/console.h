// What `run` and `chat` share: asking the model and showing its reply as it comes.
#pragma once

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "engine/reply.h"
#include "engine/session.h"
#include "text/chat_format.h"

namespace gem::cli {

// While alive, Ctrl-C is noted instead of ending the process. Guards may be nested; each starts with none
// noted.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
  static void forget();

 private:
  struct sigaction before_ {};
};

struct ReplySettings {
  SamplingParams sampling;
  std::uint32_t max_tokens = 0;
  std::vector<std::string> stops;
  bool think = false;
  bool show_thoughts = true;
  bool quiet = false;  // no progress
  bool print = true;   // the reply, as it comes
};

struct Answer {
  ParsedReply reply;
  std::string text;  // as generated, control tokens spelled out
  FinishReason reason = FinishReason::kStop;
  StreamTimes times;
};

class Console {
 public:
  explicit Console(Session& session) : session_(session) {}

  // Renders the conversation, generates and prints. Ctrl-C stops the reply. The cache is kept: the next call
  // resumes it as far as the conversation goes on.
  Answer ask(const std::vector<Message>& messages, const std::vector<Tool>& tools,
             const ReplySettings& settings);
  // The same from a raw prompt text, without the chat format.
  Answer complete(const std::string& prompt, const ReplySettings& settings);

 private:
  Answer generate(std::vector<std::int32_t> prompt, const ReplyOptions& options,
                  const ReplySettings& settings);
  Session& session_;
  KeptState state_;
};

// Writes to stderr; that it is closed or full is no reason to fail.
void note(const std::string& text);

// "12.3 tokens/s" lines for after a reply.
std::string speeds(const StreamTimes& times);

}  // namespace gem::cli
