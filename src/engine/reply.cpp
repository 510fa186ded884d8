#include "engine/reply.h"

#include <utility>

namespace gem {
namespace {

constexpr Marker kMarkers[] = {Marker::kChannelOpen,   Marker::kChannelClose,     Marker::kToolCallOpen,
                               Marker::kToolCallClose, Marker::kToolResponseOpen, Marker::kToolResponseClose,
                               Marker::kQuote,         Marker::kTurnOpen,         Marker::kTurnClose,
                               Marker::kEndOfText};

}  // namespace

ReplyStream::ReplyStream(const Tokenizer& tokenizer, const ReplyOptions& options,
                         std::vector<std::string> stops, OnEvent on_event, OnPrompt on_prompt)
    : tokenizer_(tokenizer),
      decoder_(tokenizer),
      parser_(options),
      stops_(std::move(stops)),
      on_event_(std::move(on_event)),
      on_prompt_(std::move(on_prompt)) {
  for (const Marker marker : kMarkers) {
    if (const auto id = tokenizer.special_id(marker_spelling(marker))) markers_.emplace(*id, marker);
  }
}

void ReplyStream::on_prompt(std::uint32_t done, std::uint32_t total) {
  if (on_prompt_) on_prompt_(done, total);
}

// Hands the parser's events on, the answer's text through the stop strings.
void ReplyStream::send() {
  for (ReplyEvent& event : parser_.take_events()) {
    if (stops_.stopped()) return;
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        reply_.reasoning += event.text;
        break;
      case ReplyEvent::Kind::kContent:
        event.text = stops_.push(event.text);
        reply_.content += event.text;
        break;
      case ReplyEvent::Kind::kCallStart:
        reply_.tool_calls.push_back({event.text, ""});
        break;
      case ReplyEvent::Kind::kCallArguments:
        reply_.tool_calls[event.call].arguments += event.text;
        break;
    }
    if (on_event_ && (!event.text.empty() || event.kind == ReplyEvent::Kind::kCallStart)) on_event_(event);
  }
}

bool ReplyStream::on_token(std::int32_t token) {
  if (tokenizer_.ends_generation(token)) return true;  // the engine ends the stream
  const auto marker = markers_.find(token);
  if (marker != markers_.end()) {
    parser_.text(decoder_.flush());
    parser_.marker(marker->second);
  } else {
    parser_.text(decoder_.push(token));
  }
  send();
  return !stops_.stopped();
}

void ReplyStream::on_finish(FinishReason reason) {
  const bool cut = reason == FinishReason::kLength || reason == FinishReason::kContext;
  if (!stops_.stopped()) {
    parser_.text(decoder_.flush());
    parser_.finish(cut ? ReplyEnd::kLength : ReplyEnd::kStop);
    send();
  }
  if (!stops_.stopped()) {
    ReplyEvent rest{ReplyEvent::Kind::kContent, 0, stops_.flush()};
    reply_.content += rest.text;
    if (on_event_ && !rest.text.empty()) on_event_(rest);
  }
  reply_.finish_reason = cut ? "length" : reply_.tool_calls.empty() ? "stop" : "tool_calls";
  reason_ = reason;
  finished_ = true;
}

}  // namespace gem
