// Any reply through the parser: the result does not depend on how it is cut, the deltas add up to it, what
// was cut off is still valid, and arguments are JSON.
//
// Byte 0 holds the options (8: arguments are typed by a schema), byte 1 a chunk size; of the rest 0x80..0x89
// are the markers and everything else is text.
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  gem::ReplyOptions options{(data[0] & 1) != 0, (data[0] & 2) == 0, (data[0] & 4) == 0};
  if ((data[0] & 8) != 0) options.tools = types();
  const std::string_view reply(reinterpret_cast<const char*>(data) + 2, size - 2);
  const gem::ParsedReply whole = parse(reply, options, reply.size() + 1);
  require(parse(reply, options, 1) == whole);
  require(parse(reply, options, data[1] % 16u + 2) == whole);
  require(gem::utf8_valid(whole.reasoning) && gem::utf8_valid(whole.content));
  for (const gem::ReplyCall& call : whole.tool_calls) {
    require(!call.name.empty() && gem::utf8_valid(call.name));
    require(call.arguments.starts_with('{') && nlohmann::json::accept(call.arguments));
  }
  return 0;
}
