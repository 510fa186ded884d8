// Any reply through the parser: the result does not depend on how it is cut, the deltas add up to it, what
// was cut off is still valid, and arguments are JSON.
//
// Byte 0 holds the options (8: arguments are typed by a schema, 16: the rest is a text that stands between
// triple quotes in a call, which must come back whole), byte 1 a chunk size; of the rest 0x80..0x89 are the
// markers and everything else is text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/argument_types.h"
#include "text/json_value.h"
#include "text/reply_parser.h"
#include "text/utf8.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void add(gem::ParsedReply& joined, const std::vector<gem::ReplyEvent>& events) {
  for (const gem::ReplyEvent& event : events) {
    require(!event.text.empty());
    switch (event.kind) {
      case gem::ReplyEvent::Kind::kReasoning:
        joined.reasoning += event.text;
        break;
      case gem::ReplyEvent::Kind::kContent:
        joined.content += event.text;
        break;
      case gem::ReplyEvent::Kind::kCallStart:
        require(event.call == joined.tool_calls.size());
        joined.tool_calls.push_back({event.text, {}});
        break;
      case gem::ReplyEvent::Kind::kCallArguments:
        require(event.call + 1 == joined.tool_calls.size());
        joined.tool_calls.back().arguments += event.text;
        break;
    }
  }
}

gem::ParsedReply parse(std::string_view reply, const gem::ReplyOptions& options, std::size_t chunk) {
  gem::ReplyParser parser(options);
  gem::ParsedReply joined;
  for (std::size_t at = 0; at < reply.size();) {
    const auto byte = static_cast<unsigned char>(reply[at]);
    if (byte >= 0x80 && byte <= 0x89) {
      parser.marker(static_cast<gem::Marker>(byte - 0x80));
      ++at;
    } else {
      std::size_t end = at;
      const auto is_text = [&] {
        const auto next = static_cast<unsigned char>(reply[end]);
        return next < 0x80 || next > 0x89;
      };
      while (end < reply.size() && end - at < chunk && is_text()) ++end;
      parser.text(reply.substr(at, end - at));
      at = end;
    }
    if (chunk < 64) add(joined, parser.take_events());
  }
  const gem::ParsedReply result = parser.finish(gem::ReplyEnd::kStop);
  add(joined, parser.take_events());
  joined.finish_reason = result.finish_reason;
  joined.diagnostics = result.diagnostics;
  require(joined == result);
  return result;
}

gem::ParsedReply parse_call(std::string_view call, const gem::ReplyOptions& options, std::size_t chunk) {
  gem::ReplyParser parser(options);
  parser.marker(gem::Marker::kToolCallOpen);
  for (std::size_t at = 0; at < call.size(); at += chunk) parser.text(call.substr(at, chunk));
  parser.marker(gem::Marker::kToolCallClose);
  return parser.finish(gem::ReplyEnd::kStop);
}

// A tool f with an argument of every type, each named by one letter.
std::shared_ptr<const gem::ToolTypes> types() {
  static const auto types = std::make_shared<const gem::ToolTypes>(gem::parse_tools(gem::parse_json(R"([{
    "type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
      "s":{"type":"string"},"n":{"type":"number"},"i":{"type":"integer"},"b":{"type":"boolean"},
      "o":{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"}}},
      "l":{"type":"array","items":{"type":"integer"}},"t":{"type":"array","items":{"type":"string"}},
      "z":{"type":["integer","null"]},"u":{"anyOf":[{"type":"integer"},{"type":"array"}]}}}}}])")));
  return types;
}

// A call whose argument s is this text between triple quotes: of the text, up to the three quotes that could
// end it, nothing is lost, and its sibling is there.
void require_whole(std::string_view text, char quote, const gem::ReplyOptions& options, std::size_t chunk) {
  if (!gem::utf8_valid(text) || text.find(std::string(3, quote)) != std::string_view::npos) return;
  const std::string quotes(3, quote);
  const std::string call = "call:f{s:" + quotes + std::string(text) + quotes + ",n:1}";
  const gem::ParsedReply once = parse_call(call, options, call.size());
  require(parse_call(call, options, chunk) == once);
  require(once.tool_calls.size() == 1 && once.content.empty());
  require(nlohmann::json::parse(once.tool_calls[0].arguments) == nlohmann::json({{"s", text}, {"n", 1}}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  gem::ReplyOptions options{(data[0] & 1) != 0, (data[0] & 2) == 0, (data[0] & 4) == 0};
  if ((data[0] & 8) != 0) options.tools = types();
  const std::string_view reply(reinterpret_cast<const char*>(data) + 2, size - 2);
  if ((data[0] & 16) != 0) {
    options.tools_active = true;
    options.start_thinking = false;
    require_whole(reply, (data[0] & 1) != 0 ? '"' : '\'', options, data[1] % 16u + 1);
    return 0;
  }
  const gem::ParsedReply whole = parse(reply, options, reply.size() + 1);
  require(parse(reply, options, 1) == whole);
  require(parse(reply, options, data[1] % 16u + 2) == whole);
  require(gem::utf8_valid(whole.reasoning) && gem::utf8_valid(whole.content));
  for (const gem::ReplyCall& call : whole.tool_calls) {
    require(!call.name.empty() && gem::utf8_valid(call.name));
    require(call.arguments.starts_with('{'));
    // (A number that no double holds is JSON; only this library says that it is not.)
    if (!nlohmann::json::accept(call.arguments)) gem::parse_json(call.arguments);
  }
  return 0;
}
