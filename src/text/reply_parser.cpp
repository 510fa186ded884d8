#include "text/reply_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/python_text.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace gem {
namespace {

constexpr std::string_view kLabel = "thought";

// In the order of Marker.
constexpr std::array<std::string_view, 10> kSpellings = {
    "<|channel>",       "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
    "<tool_response|>", "<|\"|>",     "<|turn>",      "<turn|>",      "<eos>",
};

// The name of a call from the text before its brace: "call:f", ":f" and "f" are f.
std::string call_name(std::string_view text) {
  text = python_strip(text);
  if (text.starts_with("call:")) {
    text.remove_prefix(5);
  } else if (text.starts_with(':')) {
    text.remove_prefix(1);
  }
  return std::string(python_strip(text));
}

}  // namespace

std::string_view marker_spelling(Marker marker) {
  return kSpellings[static_cast<std::size_t>(marker)];
}

std::optional<Marker> marker_from_spelling(std::string_view spelling) {
  const auto found = std::find(kSpellings.begin(), kSpellings.end(), spelling);
  if (found == kSpellings.end()) return std::nullopt;
  return static_cast<Marker>(found - kSpellings.begin());
}

ReplyParser::ReplyParser(const ReplyOptions& options)
    : options_(options),
      state_(options.start_thinking && options.extract_reasoning ? State::kThought : State::kContent) {}

bool ReplyParser::in_thought() const {
  return state_ == State::kLabel || state_ == State::kLabelBlank || state_ == State::kThought;
}

void ReplyParser::text(std::string_view utf8) {
  if (partial_.empty() && utf8_valid(utf8)) return whole_text(utf8);
  const std::string joined = std::exchange(partial_, {}).append(utf8);
  std::string valid;
  for (std::size_t at = 0; at < joined.size();) {
    const Utf8Char c = utf8_next(joined, at);
    if (c.state == Utf8State::kIncomplete) {
      partial_ = joined.substr(at);
      break;
    }
    if (c.state == Utf8State::kComplete) {
      valid.append(joined, at, c.bytes);
    } else {
      valid += kReplacementCharacter;
    }
    at += c.bytes;
  }
  whole_text(valid);
}

// The text ended inside a character: each of its bytes is invalid.
void ReplyParser::flush_partial() {
  if (partial_.empty()) return;
  std::string replaced;
  for (std::size_t i = 0; i < partial_.size(); ++i) replaced += kReplacementCharacter;
  partial_.clear();
  whole_text(replaced);
}

void ReplyParser::whole_text(std::string_view utf8) {
  if (utf8.empty()) return;
  switch (state_) {
    case State::kContent:
    case State::kRawCall:
      return content(utf8);
    case State::kLabel:
    case State::kLabelBlank:
    case State::kThought:
      return thought(utf8);
    case State::kCallName:
    case State::kCallArguments:
      return call_text(utf8);
  }
}

void ReplyParser::marker(Marker marker) {
  flush_partial();
  if (state_ == State::kCallName || state_ == State::kCallArguments || state_ == State::kRawCall) {
    return call_marker(marker);
  }
  const std::string_view spelling = marker_spelling(marker);
  switch (marker) {
    case Marker::kChannelOpen:
      if (!options_.extract_reasoning) return literal(spelling);
      return in_thought() ? reopen_thought() : open_thought();
    case Marker::kChannelClose:
      if (!options_.extract_reasoning) return literal(spelling);
      return in_thought() ? close_thought() : dropped();
    case Marker::kToolCallOpen:
      if (!options_.tools_active) return literal(spelling);
      if (in_thought()) close_thought();
      return open_call();
    case Marker::kToolCallClose:
    case Marker::kToolResponseClose:
      if (!options_.tools_active) return literal(spelling);
      return dropped();
    case Marker::kQuote:
      return literal(spelling);
    case Marker::kToolResponseOpen:
    case Marker::kTurnOpen:
    case Marker::kTurnClose:
    case Marker::kEndOfText:
      return dropped();
  }
}

const ParsedReply& ReplyParser::finish(ReplyEnd end) {
  flush_partial();
  if (in_thought()) close_thought();
  if (state_ == State::kCallName || state_ == State::kCallArguments) close_call({});
  if (!marked_) emit(ReplyEvent::Kind::kContent, blanks_);
  blanks_.clear();
  const char* ended = reply_.tool_calls.empty() ? "stop" : "tool_calls";
  reply_.finish_reason = end == ReplyEnd::kLength ? "length" : ended;
  return reply_;
}

std::vector<ReplyEvent> ReplyParser::take_events() {
  return std::exchange(events_, {});
}

void ReplyParser::emit(ReplyEvent::Kind kind, std::string_view text) {
  if (text.empty()) return;
  std::size_t call = 0;
  switch (kind) {
    case ReplyEvent::Kind::kReasoning:
      reply_.reasoning += text;
      break;
    case ReplyEvent::Kind::kContent:
      reply_.content += text;
      break;
    case ReplyEvent::Kind::kCallStart:
      reply_.tool_calls.push_back({std::string(text), {}});
      call = reply_.tool_calls.size() - 1;
      break;
    case ReplyEvent::Kind::kCallArguments:
      call = reply_.tool_calls.size() - 1;
      reply_.tool_calls.back().arguments += text;
      break;
  }
  const bool joins = !events_.empty() && events_.back().kind == kind && events_.back().call == call &&
                     kind != ReplyEvent::Kind::kCallStart;
  if (joins) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, call, std::string(text)});
  }
}

// A marker that is ordinary text here.
void ReplyParser::literal(std::string_view text) {
  if (in_thought()) {
    thought(text);
  } else {
    content(text);
  }
}

// A stray marker.
void ReplyParser::dropped() {
  if (!in_thought()) marked_ = true;
}

// Content. Trailing blanks wait: more content releases them, the end of the reply drops them if a marker came
// in between. Blanks between a marker and the first content are dropped.
void ReplyParser::content(std::string_view text) {
  if (marked_ && reply_.content.empty()) text = python_lstrip(text);
  const std::string_view body = python_rstrip(text);
  if (!body.empty()) {
    emit(ReplyEvent::Kind::kContent, blanks_);
    emit(ReplyEvent::Kind::kContent, body);
    blanks_.clear();
    marked_ = false;
  }
  blanks_ += text.substr(body.size());
}

void ReplyParser::open_thought() {
  marked_ = true;
  label_.clear();
  held_.clear();
  thought_begun_ = false;
  state_ = State::kLabel;
}

// A second opener restarts a thought that has no text yet and means nothing later.
void ReplyParser::reopen_thought() {
  if (state_ == State::kLabel && !label_.empty() && label_ != kLabel) return thought({});
  if (state_ != State::kThought || !thought_begun_) open_thought();
}

// Thought text. Leading blanks wait for text; then one newline at the end waits, as it may precede the close.
void ReplyParser::thought(std::string_view text) {
  if (state_ == State::kLabel || state_ == State::kLabelBlank) return label(text);
  if (text.empty()) return;
  if (!thought_begun_ && python_lstrip(text).empty()) {
    held_ += text;
    return;
  }
  thought_begun_ = true;
  emit(ReplyEvent::Kind::kReasoning, held_);
  held_ = text.ends_with('\n') ? "\n" : "";
  emit(ReplyEvent::Kind::kReasoning, text.substr(0, text.size() - held_.size()));
}

// The text after <|channel>: the label "thought" with the blanks after it is no part of the thought, anything
// else is. Empty text decides against the label.
void ReplyParser::label(std::string_view text) {
  if (state_ == State::kLabel) {
    std::size_t same = 0;
    while (same < text.size() && label_.size() < kLabel.size() && text[same] == kLabel[label_.size()]) {
      label_ += text[same++];
    }
    if (same == text.size() && same > 0) return;
    const bool labelled =
        label_.size() == kLabel.size() && same < text.size() && is_python_space(utf8_next(text, same).code);
    if (!labelled) {
      state_ = State::kThought;
      thought(std::exchange(label_, {}));
      return thought(text.substr(same));
    }
    text.remove_prefix(same);
    state_ = State::kLabelBlank;
  }
  text = python_lstrip(text);
  if (text.empty()) return;
  state_ = State::kThought;
  thought(text);
}

void ReplyParser::close_thought() {
  if (state_ == State::kLabel && label_ != kLabel) {
    emit(ReplyEvent::Kind::kReasoning, label_);
  } else if (state_ == State::kThought) {
    if (held_.ends_with('\n')) held_.pop_back();
    emit(ReplyEvent::Kind::kReasoning, held_);
  }
  marked_ = true;
  state_ = State::kContent;
}

void ReplyParser::open_call() {
  name_.clear();
  state_ = State::kCallName;
}

void ReplyParser::start_call(std::string name) {
  emit(ReplyEvent::Kind::kCallStart, name);
  marked_ = true;
  const ArgumentType* type = nullptr;
  if (options_.tools != nullptr) {
    type = options_.tools->find(name);
    if (type == nullptr) diagnose("is not declared");
  }
  arguments_.emplace(type);
}

// Of the last call.
void ReplyParser::diagnose(std::string line) {
  constexpr std::size_t kMost = 64;
  if (options_.tools == nullptr || reply_.diagnostics.size() >= kMost) return;
  const std::size_t call = reply_.tool_calls.size() - 1;
  std::string where =
      "call " + std::to_string(call) + ", tool " + in_quotes(reply_.tool_calls[call].name) + ": ";
  reply_.diagnostics.push_back(where + std::move(line));
}

void ReplyParser::send_arguments() {
  emit(ReplyEvent::Kind::kCallArguments, arguments_->take());
}

void ReplyParser::call_text(std::string_view text) {
  if (state_ == State::kCallName) {
    const std::size_t brace = text.find('{');
    name_ += text.substr(0, brace);
    if (brace == std::string_view::npos) return;
    text.remove_prefix(brace);
    std::string name = call_name(name_);
    if (name.empty()) {
      state_ = State::kRawCall;
      if (options_.tools != nullptr) reply_.diagnostics.emplace_back("a call without a name became content");
      content(marker_spelling(Marker::kToolCallOpen));
      content(name_);
      return content(text);
    }
    start_call(std::move(name));
    text.remove_prefix(1);
    state_ = State::kCallArguments;
  }
  arguments_->text(text);
  send_arguments();
}

void ReplyParser::call_marker(Marker marker) {
  const std::string_view spelling = marker_spelling(marker);
  if (marker == Marker::kToolCallClose) return close_call(spelling);
  if (marker == Marker::kToolCallOpen) {
    close_call({});
    return open_call();
  }
  switch (state_) {
    case State::kRawCall:
      return content(spelling);
    case State::kCallName:
      name_ += spelling;
      return;
    default:
      break;
  }
  if (arguments_->done() && (marker == Marker::kChannelOpen || marker == Marker::kToolResponseOpen)) {
    close_call({});  // its own closing marker is missing
    return this->marker(marker);
  }
  if (marker == Marker::kQuote) {
    arguments_->quote();
  } else {
    arguments_->foreign(spelling);
  }
  send_arguments();
}

// `closing`: the marker that ends the call, as spelled; empty if the call was cut off.
void ReplyParser::close_call(std::string_view closing) {
  if (state_ == State::kCallName) {
    if (std::string name = call_name(name_); !name.empty()) {
      start_call(std::move(name));
      state_ = State::kCallArguments;
    } else {
      if (options_.tools != nullptr) reply_.diagnostics.emplace_back("a call without a name became content");
      content(marker_spelling(Marker::kToolCallOpen));
      content(name_);
      content(closing);
    }
  } else if (state_ == State::kRawCall) {
    content(closing);
  }
  if (state_ == State::kCallArguments) {
    arguments_->end();
    send_arguments();
    for (const std::string& line : arguments_->diagnostics()) diagnose(line);
    arguments_.reset();
  }
  state_ = State::kContent;
}

void feed_marked_text(ReplyParser& parser, std::string_view text, std::size_t chunk) {
  const auto feed = [&](std::string_view plain) {
    if (chunk == 0) return parser.text(plain);
    while (!plain.empty()) {
      std::size_t bytes = 0;
      for (std::size_t n = 0; n < chunk && bytes < plain.size(); ++n) bytes += utf8_next(plain, bytes).bytes;
      parser.text(plain.substr(0, bytes));
      plain.remove_prefix(bytes);
    }
  };
  std::size_t begin = 0;  // of the plain text not yet fed
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at)) {
    const std::string_view rest = text.substr(at);
    const auto found = std::find_if(kSpellings.begin(), kSpellings.end(),
                                    [&](std::string_view spelling) { return rest.starts_with(spelling); });
    if (found == kSpellings.end()) {
      ++at;
      continue;
    }
    feed(text.substr(begin, at - begin));
    parser.marker(static_cast<Marker>(found - kSpellings.begin()));
    at += found->size();
    begin = at;
  }
  feed(text.substr(begin));
}

}  // namespace gem
