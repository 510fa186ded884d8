// Takes a generated reply apart while it is being generated: thought, answer and tool calls.
//
// The parser works on tokens: the format's control tokens are told by marker(), everything else, also text
// that looks like a control token, by text(). It never fails, and the result does not depend on how the text
// is cut. Time is linear in the length of the reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/call_arguments.h"

namespace gem {

// The control tokens that mean something in a reply.
enum class Marker : std::uint8_t {
  kChannelOpen,        // <|channel>
  kChannelClose,       // <channel|>
  kToolCallOpen,       // <|tool_call>
  kToolCallClose,      // <tool_call|>
  kToolResponseOpen,   // <|tool_response>: ends a reply with calls
  kToolResponseClose,  // <tool_response|>
  kQuote,              // <|"|>
  kTurnOpen,           // <|turn>
  kTurnClose,          // <turn|>: ends a reply
  kEndOfText,          // <eos>
};

std::string_view marker_spelling(Marker marker);
// The marker spelled so; the way to map token ids once, by their text.
std::optional<Marker> marker_from_spelling(std::string_view spelling);

struct ReplyOptions {
  bool start_thinking = false;    // the prompt ended inside an open thought
  bool tools_active = true;       // else calls are ordinary text
  bool extract_reasoning = true;  // else thoughts stay in the content, markers and all
  // The declared tools, by whose schemas arguments are typed; without them values are what their spelling
  // says. A call of a tool that is not among them is passed on all the same: the client decides.
  std::shared_ptr<const ToolTypes> tools{};
};

enum class ReplyEnd {
  kStop,    // an end token or a stop string
  kLength,  // the token limit or the end of the context
};

struct ReplyCall {
  std::string name;
  std::string arguments;  // the JSON text of an object
  bool operator==(const ReplyCall&) const = default;
};

struct ParsedReply {
  std::string reasoning;
  std::string content;
  std::vector<ReplyCall> tool_calls;
  std::string finish_reason;  // "length", else "tool_calls" if there are any, else "stop"
  // With ReplyOptions::tools: what was odd in the calls, one line each, without values. For logs.
  std::vector<std::string> diagnostics{};
  bool operator==(const ParsedReply&) const = default;
};

// What a stream sends on. The texts of all events of a kind (and call) together are the final result.
struct ReplyEvent {
  enum class Kind { kReasoning, kContent, kCallStart, kCallArguments };
  Kind kind = Kind::kContent;
  std::size_t call = 0;  // kCallStart, kCallArguments: index of the call
  std::string text;      // kCallStart: the name
};

class ReplyParser {
 public:
  explicit ReplyParser(const ReplyOptions& options);

  // Bytes may be cut anywhere; what is no UTF-8 becomes U+FFFD.
  void text(std::string_view utf8);
  void marker(Marker marker);
  // Nothing may be fed afterwards.
  const ParsedReply& finish(ReplyEnd end);

  // The events since the last call, neighbours of one kind joined.
  std::vector<ReplyEvent> take_events();

  // What has been released so far; complete after finish().
  const ParsedReply& reply() const { return reply_; }
  bool in_thought() const;

 private:
  enum class State : std::uint8_t {
    kContent,
    kLabel,       // after <|channel>: "thought" or something else
    kLabelBlank,  // after the label: blanks that belong to it
    kThought,
    kCallName,
    kCallArguments,
    kRawCall,  // a call without a name, which is content
  };

  void whole_text(std::string_view utf8);
  void flush_partial();
  void literal(std::string_view text);
  void dropped();

  void content(std::string_view text);
  void thought(std::string_view text);
  void label(std::string_view text);
  void open_thought();
  void reopen_thought();
  void close_thought();

  void call_text(std::string_view text);
  void call_marker(Marker marker);
  void open_call();
  void start_call(std::string name);
  void close_call(std::string_view closing);
  void send_arguments();
  void diagnose(std::string line);

  void emit(ReplyEvent::Kind kind, std::string_view text);

  ReplyOptions options_;
  State state_ = State::kContent;
  ParsedReply reply_;
  std::vector<ReplyEvent> events_;
  std::string partial_;  // the first bytes of a character

  std::string blanks_;   // content: trailing blanks held back
  bool marked_ = false;  // a marker came since the last content
  std::string label_;    // what may become the label
  std::string held_;     // thought: leading blanks, or the newline that may precede the close
  bool thought_begun_ = false;
  std::string name_;  // call: text before the first brace
  std::optional<CallArguments> arguments_;
};

// Feeds text in which the spellings of markers stand for the markers, `chunk` characters at a time (0: all at
// once).
void feed_marked_text(ReplyParser& parser, std::string_view text, std::size_t chunk = 0);

}  // namespace gem
