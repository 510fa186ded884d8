// gem parse: the text of a reply becomes a message.
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "cli/json_lines.h"
#include "text/chat_jsonl.h"
#include "text/reply_parser.h"

namespace gem::cli {

void add_parse(CLI::App& app) {
  struct Options {
    bool json_lines = false;
    std::size_t chunk = 0;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("parse", "A reply (text on standard input) to reasoning, content and tool calls");
  sub->add_flag("--jsonl", o->json_lines, "One case a line: {text, start, tools, extract_reasoning, end}");
  sub->add_option("--chunks", o->chunk, "Feed the parser this many characters at a time (0: the whole text)")
      ->capture_default_str();
  sub->callback([o] {
    if (o->json_lines) {
      filter_json_lines([o](std::string_view line) { return parse_line(line, o->chunk); });
      return;
    }
    ReplyParser parser(ReplyOptions{});
    feed_marked_text(parser, read_standard_input(), o->chunk);
    std::string reply = to_json_text(parser.finish(ReplyEnd::kStop));
    reply += '\n';
    std::fwrite(reply.data(), 1, reply.size(), stdout);
  });
}

}  // namespace gem::cli
