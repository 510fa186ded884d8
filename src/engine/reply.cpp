#include "engine/reply.h"

#include <string_view>
#include <utility>

namespace gem {
namespace {

constexpr Marker kMarkers[] = {Marker::kChannelOpen,   Marker::kChannelClose,     Marker::kToolCallOpen,
                               Marker::kToolCallClose, Marker::kToolResponseOpen, Marker::kToolResponseClose,
                               Marker::kQuote,         Marker::kTurnOpen,         Marker::kTurnClose,
                               Marker::kEndOfText};

// What a thought begins with, in the prompt or in the reply.
constexpr std::string_view kThoughtLabel = "thought\n";

}  // namespace

ReplyStream::ReplyStream(const Tokenizer& tokenizer, ReplyStreamOptions options, OnEvent on_event,
                         OnPrompt on_prompt)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      decoder_(tokenizer, !options_.parse && options_.render_special),
      parser_(options_.reply),
      stops_(options_.stops),
      on_event_(std::move(on_event)),
      on_prompt_(std::move(on_prompt)) {
  if (!options_.parse) return;
  for (const Marker marker : kMarkers) {
    if (const auto id = tokenizer.special_id(marker_spelling(marker))) markers_.emplace(*id, marker);
  }
  thought_closer_ = tokenizer.special_id(marker_spelling(Marker::kChannelClose));
  thinking_ = options_.reply.start_thinking;
  if (thinking_) thought_label_ = kThoughtLabel;  // the prompt holds it
}

void ReplyStream::on_prompt(std::uint32_t done, std::uint32_t total) {
  if (on_prompt_) on_prompt_(done, total);
}

std::optional<std::int32_t> ReplyStream::forced_token() {
  if (!thinking_) return std::nullopt;
  const bool labelled = !kThoughtLabel.starts_with(thought_label_) || thought_label_ == kThoughtLabel;
  const bool spent = options_.thinking_budget && labelled && thought_tokens_ >= *options_.thinking_budget;
  return spent || end_thought_ ? thought_closer_ : std::nullopt;
}

bool ReplyStream::end_thought() {
  if (!thinking_ || !thought_closer_) return false;
  end_thought_ = true;
  return true;
}

void ReplyStream::send_content(std::string text) {
  if (text.empty()) return;
  reply_.content += text;
  if (on_event_) on_event_({ReplyEvent::Kind::kContent, 0, std::move(text)});
}

// What waits for the rest of a stop string cannot become one any more.
void ReplyStream::release_held() {
  if (!stops_.stopped()) send_content(stops_.flush());
}

// Hands the parser's events on, the answer's text through the stop strings.
void ReplyStream::send() {
  for (ReplyEvent& event : parser_.take_events()) {
    if (stops_.stopped()) return;
    if (event.kind == ReplyEvent::Kind::kContent) {
      send_content(stops_.push(event.text));
      continue;
    }
    release_held();  // in the order of the reply
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        reply_.reasoning += event.text;
        break;
      case ReplyEvent::Kind::kCallStart:
        reply_.tool_calls.push_back({event.text, ""});
        break;
      default:
        reply_.tool_calls[event.call].arguments += event.text;
        break;
    }
    if (on_event_ && (!event.text.empty() || event.kind == ReplyEvent::Kind::kCallStart)) on_event_(event);
  }
}

// Whether the reply is in a thought after `marker`. Where thoughts are left in the content the parser does
// not follow them.
bool ReplyStream::thinking_now(std::optional<Marker> marker) const {
  if (options_.reply.extract_reasoning) return parser_.in_thought();
  if (marker == Marker::kChannelOpen) return true;
  return marker == Marker::kChannelClose || marker == Marker::kToolCallOpen ? false : thinking_.load();
}

// Counts the tokens of thoughts. `before`: in a thought before this token.
void ReplyStream::follow_thought(std::int32_t token, bool before) {
  const auto found = markers_.find(token);
  const std::optional<Marker> marker =
      found == markers_.end() ? std::nullopt : std::optional<Marker>(found->second);
  const bool after = thinking_now(marker);
  if (before || after) ++reasoning_tokens_;
  if (after && marker == Marker::kChannelOpen) {
    thought_label_.clear();
    thought_tokens_ = 0;
  } else if (after) {
    const bool in_label = kThoughtLabel.starts_with(thought_label_) && thought_label_ != kThoughtLabel;
    if (in_label) thought_label_ += tokenizer_.decode_bytes(token);
    if (!in_label || !kThoughtLabel.starts_with(thought_label_)) ++thought_tokens_;
  }
  if (!after) end_thought_ = false;
  thinking_ = after;
}

bool ReplyStream::on_token(const DrawnToken& drawn) {
  if (tokenizer_.ends_generation(drawn.token)) return true;  // the engine ends the stream
  const bool go_on = take(drawn.token);
  return go_on && !stops_.stopped();
}

bool ReplyStream::take(std::int32_t token) {
  if (!options_.parse) {
    send_content(stops_.push(decoder_.push(token)));
    return true;
  }
  const bool before = thinking_;
  const auto marker = markers_.find(token);
  if (marker == markers_.end()) {
    parser_.text(decoder_.push(token));
  } else {
    parser_.text(decoder_.flush());
    const bool called = options_.one_call && !parser_.reply().tool_calls.empty();
    if (called && marker->second == Marker::kToolCallOpen) return false;  // the first one was not closed
    parser_.marker(marker->second);
  }
  follow_thought(token, before);
  send();
  const bool closed = marker != markers_.end() && marker->second == Marker::kToolCallClose;
  return !(options_.one_call && closed && !reply_.tool_calls.empty());
}

void ReplyStream::on_finish(FinishReason reason) {
  const bool cut = reason == FinishReason::kLength || reason == FinishReason::kContext;
  if (!stops_.stopped()) {
    if (options_.parse) {
      parser_.text(decoder_.flush());
      parser_.finish(cut ? ReplyEnd::kLength : ReplyEnd::kStop);
      send();
    } else {
      send_content(stops_.push(decoder_.flush()));
    }
  }
  release_held();
  reply_.diagnostics = parser_.reply().diagnostics;
  reply_.finish_reason = cut ? "length" : reply_.tool_calls.empty() ? "stop" : "tool_calls";
  reason_ = reason;
  thinking_ = false;
  finished_ = true;
}

}  // namespace gem
