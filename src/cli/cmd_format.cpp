// gem format: messages as JSON become the prompt.
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "text/chat_format.h"
#include "text/chat_jsonl.h"

namespace gem::cli {

void add_format(CLI::App& app) {
  struct Options {
    bool json_lines = false;
    bool small = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("format", "Messages (JSON on standard input) to the prompt of the model");
  sub->add_flag("--jsonl", o->json_lines, "One case a line: {messages, tools, options} to {\"prompt\": …}");
  sub->add_flag("--small", o->small, "The variant of the E2B and E4B models (key prompt_small)");
  sub->callback([o] {
    const ChatVariant variant = o->small ? ChatVariant::kSmall : ChatVariant::kLarge;
    if (o->json_lines) {
      filter_json_lines([variant](std::string_view line) { return format_line(line, variant); });
      return;
    }
    std::string prompt;
    try {
      const ChatCase item = parse_chat_case(read_standard_input(), variant);
      prompt = to_text(render_chat(item.messages, item.tools, item.options).pieces);
    } catch (const Error& error) {
      fail(ErrorCode::kFailed, "standard input: {}", error.what());
    }
    std::fwrite(prompt.data(), 1, prompt.size(), stdout);
  });
}

}  // namespace gem::cli
