// Feeds replies to the parser in pieces and joins what it streams.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "text/reply_parser.h"

namespace gem::testing {

struct Fed {
  ParsedReply reply;   // the final result
  ParsedReply joined;  // the deltas put together, as a client of a stream does
};

inline void join(ParsedReply& joined, const std::vector<ReplyEvent>& events) {
  for (const ReplyEvent& event : events) {
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        joined.reasoning += event.text;
        break;
      case ReplyEvent::Kind::kContent:
        joined.content += event.text;
        break;
      case ReplyEvent::Kind::kCallStart:
        if (event.call == joined.tool_calls.size()) joined.tool_calls.push_back({event.text, {}});
        break;
      case ReplyEvent::Kind::kCallArguments:
        joined.tool_calls.at(event.call).arguments += event.text;
        break;
    }
  }
}

// A reply as tokens: markers, and text between them.
struct Token {
  std::string text;
  bool marker = false;
  std::size_t begin = 0;  // in the marked text
};

inline std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  std::size_t begin = 0;
  const auto plain = [&](std::size_t end) {
    if (end > begin) tokens.push_back({std::string(text.substr(begin, end - begin)), false, begin});
  };
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 0;
    for (std::size_t n = 1; n <= 17 && at + n <= text.size(); ++n) {
      if (marker_from_spelling(text.substr(at, n))) length = n;
    }
    if (length == 0) {
      ++at;
      continue;
    }
    plain(at);
    tokens.push_back({std::string(text.substr(at, length)), true, at});
    at += length;
    begin = at;
  }
  plain(text.size());
  return tokens;
}

// `cut(from, left)`: how many of the `left` bytes of text that begin at byte `from` of the reply to feed at
// once.
template <typename Cut>
Fed feed_with(std::string_view text, const ReplyOptions& options, ReplyEnd end, Cut cut) {
  ReplyParser parser(options);
  Fed fed;
  for (const Token& token : tokens_of(text)) {
    if (token.marker) {
      parser.marker(*marker_from_spelling(token.text));
      join(fed.joined, parser.take_events());
      continue;
    }
    for (std::size_t at = 0; at < token.text.size();) {
      const std::size_t left = token.text.size() - at;
      const std::size_t bytes = std::clamp<std::size_t>(cut(token.begin + at, left), 1, left);
      parser.text(std::string_view(token.text).substr(at, bytes));
      join(fed.joined, parser.take_events());
      at += bytes;
    }
  }
  fed.reply = parser.finish(end);
  join(fed.joined, parser.take_events());
  fed.joined.finish_reason = fed.reply.finish_reason;
  return fed;
}

// In chunks of `size` bytes (0: each run of text whole), characters cut apart as it comes.
inline Fed feed(std::string_view text, const ReplyOptions& options = {}, ReplyEnd end = ReplyEnd::kStop,
                std::size_t size = 0) {
  return feed_with(text, options, end,
                   [size](std::size_t, std::size_t left) { return size == 0 ? left : size; });
}

// Cut once, before byte `cut`.
inline Fed feed_cut(std::string_view text, const ReplyOptions& options, ReplyEnd end, std::size_t cut) {
  return feed_with(text, options, end, [cut](std::size_t from, std::size_t left) {
    return from < cut && cut < from + left ? cut - from : left;
  });
}

inline std::string show(const ParsedReply& reply) {
  std::string out = "reasoning: " + reply.reasoning + "\ncontent: " + reply.content;
  for (const ReplyCall& call : reply.tool_calls) out += "\ncall: " + call.name + " " + call.arguments;
  return out + "\nfinish: " + reply.finish_reason;
}

}  // namespace gem::testing
