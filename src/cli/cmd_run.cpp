// gem run: one answer on the terminal.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/json_lines.h"
#include "cli/options.h"
#include "text/json_value.h"

namespace gem::cli {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt;
  std::string system, messages, tools;
  bool think = false, raw = false, quiet = false, json = false, jsonl = false;
};

nlohmann::ordered_json to_json(const Answer& a) {
  nlohmann::ordered_json j = {{"text", a.text},
                              {"reasoning", a.reply.reasoning},
                              {"content", a.reply.content},
                              {"tool_calls", nlohmann::ordered_json::array()}};
  for (const ReplyCall& call : a.reply.tool_calls)
    j["tool_calls"].push_back({{"name", call.name}, {"arguments", call.arguments}});
  j["finish_reason"] = a.reply.finish_reason;
  j["usage"] = {{"prompt_tokens", a.times.reused + a.times.prompt_tokens},
                {"completion_tokens", a.times.reply_tokens},
                {"cached_tokens", a.times.reused}};
  return j;
}

nlohmann::ordered_json parse_json(const std::string& text, const std::string& where) {
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    fail(ErrorCode::kUsage, "{} is not JSON: {}", where, e.what());
  }
}

ReplySettings settings_of(const Options& o, const Session& session) {
  ReplySettings s;
  s.sampling = o.sampling.over(session.default_sampling());
  s.max_tokens = o.sampling.max_tokens;
  s.stops = o.sampling.stop;
  s.think = o.think;
  s.quiet = o.quiet;
  return s;
}

// A request's own wish, or else the command's --think.
bool wants_thinking(const JsonValue& request, bool otherwise) {
  const JsonValue* options = request.find("options");
  if (options == nullptr || options->is_null()) return otherwise;
  if (!options->is_object()) fail(ErrorCode::kUsage, "options is not an object");
  const JsonValue* think = options->find("enable_thinking");
  if (think == nullptr || think->is_null()) return otherwise;
  if (think->kind != JsonValue::Kind::kBoolean) fail(ErrorCode::kUsage, "enable_thinking is not a boolean");
  return think->boolean;
}

Answer answer_line(const JsonValue& request, Console& console, ReplySettings settings) {
  if (!request.is_object()) fail(ErrorCode::kUsage, "not a JSON object");
  if (const JsonValue* prompt = request.find("prompt")) {
    if (!prompt->is_string()) fail(ErrorCode::kUsage, "prompt is not a string");
    return console.complete(prompt->text, settings);
  }
  settings.think = wants_thinking(request, settings.think);
  const JsonValue* messages = request.find("messages");
  if (messages == nullptr) fail(ErrorCode::kUsage, "messages or prompt is missing");
  const JsonValue* tools = request.find("tools");
  return console.ask(parse_messages(*messages), tools != nullptr ? parse_tools(*tools) : std::vector<Tool>(),
                     settings);
}

// One request a line, one answer a line: {"messages": [...], "tools": [...], "options": {"enable_thinking":
// true}} or {"prompt": "rendered text"}.
void run_lines(const Options& o, Session& session) {
  Console console(session);
  ReplySettings settings = settings_of(o, session);
  settings.quiet = true;
  settings.print = false;
  filter_json_lines([&](std::string_view line) {
    const Answer answer = answer_line(gem::parse_json(line), console, settings);
    if (answer.reason == FinishReason::kCancelled) fail(ErrorCode::kCancelled, "interrupted");
    return to_json(answer).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  });
}

void run(const Options& o) {
  const std::string prompt = o.prompt == "-" ? read_file("-") : o.prompt;
  if (!o.jsonl && prompt.empty() && o.messages.empty())
    fail(ErrorCode::kUsage, "run needs a prompt (or - to read it from standard input)");
  const std::unique_ptr<Session> session = open_session(o.model);
  if (o.jsonl) return run_lines(o, *session);
  Console console(*session);
  ReplySettings settings = settings_of(o, *session);
  settings.print = !o.json;
  Answer answer;
  if (o.raw) {
    answer = console.complete(prompt, settings);
  } else {
    auto messages = nlohmann::ordered_json::array();
    if (!o.messages.empty()) messages = parse_json(read_file(o.messages), o.messages);
    if (!messages.is_array()) fail(ErrorCode::kUsage, "{} is not a JSON array of messages", o.messages);
    // Built by name: insert() takes a braced pair of pairs for a list of two elements.
    const auto message = [](const char* role, const std::string& text) {
      return nlohmann::ordered_json::object({{"role", role}, {"content", text}});
    };
    if (!o.system.empty()) messages.insert(messages.begin(), message("system", o.system));
    if (!prompt.empty()) messages.push_back(message("user", prompt));
    const auto tools = o.tools.empty() ? nlohmann::ordered_json() : parse_json(read_file(o.tools), o.tools);
    answer = console.ask(parse_messages(messages), parse_tools(tools), settings);
  }
  if (o.json)
    fmt::print("{}\n", to_json(answer).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  if (!o.quiet)
    note(fmt::format("[{}{}]\n", speeds(answer.times),
                     answer.reply.finish_reason == "length" ? "; cut off by the limit" : ""));
  if (answer.reason == FinishReason::kCancelled) fail(ErrorCode::kCancelled, "interrupted");
}

}  // namespace

void add_run(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("run", "Answer one prompt");
  CLI::Option* prompt = sub->add_option("prompt", o->prompt, "The prompt, in quotes; - reads standard input");
  o->model.add_to(*sub);
  o->model.add_drafts_to(*sub);
  o->sampling.add_to(*sub);
  CLI::Option* system = sub->add_option("--system", o->system, "System text");
  CLI::Option* messages =
      sub->add_option("--messages", o->messages, "File with earlier messages, JSON in OpenAI's form");
  CLI::Option* tools =
      sub->add_option("--tools", o->tools, "File with tool declarations, JSON in OpenAI's form");
  CLI::Option* think = sub->add_flag("--think", o->think, "Let the model think before it answers");
  CLI::Option* raw = sub->add_flag(
      "--raw", o->raw, "Continue the text as it stands, control tokens included, without the chat format");
  sub->add_flag("--quiet,-q", o->quiet, "Print the answer only");
  CLI::Option* json = sub->add_flag("--json", o->json, "Print the message as JSON");
  CLI::Option* lines =
      sub->add_flag("--jsonl", o->jsonl,
                    "Read requests from standard input, one JSON object a line; print a message a line");
  // What the other way of asking would silently ignore.
  for (CLI::Option* other : {prompt, system, messages, tools, raw, json}) lines->excludes(other);
  for (CLI::Option* other : {system, messages, tools, think}) raw->excludes(other);
  sub->callback([o] { run(*o); });
}

}  // namespace gem::cli
