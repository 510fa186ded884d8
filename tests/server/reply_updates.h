// Replies in the form in which the service tells of them, whole and cut at random.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/api/reply_source.h"

namespace gem::server::test {

using Kind = ReplyEvent::Kind;

// A reply with everything: thought, text, two calls (one without arguments, one with a number that no double
// holds), and text again.
inline std::vector<ReplyEvent> rich_reply() {
  return {{Kind::kReasoning, 0, "Let me \"see\"…\n"},
          {Kind::kContent, 0, "I shall look: ☂ "},
          {Kind::kCallStart, 0, "now"},
          {Kind::kCallArguments, 0, "{}"},
          {Kind::kCallStart, 1, "add"},
          {Kind::kCallArguments, 1, "{\"a\":12345678901234567890123,\"b\":[1.50,\"\\u0041\"]}"},
          {Kind::kContent, 0, "Done."}};
}

inline GenerationResult finished(FinishReason reason = FinishReason::kStop) {
  GenerationResult result;
  result.reason = reason;
  result.times.reused = 7;
  result.times.prompt_tokens = 5;
  result.times.reply_tokens = 9;
  result.reasoning_tokens = 3;
  return result;
}

inline GenerationUpdate update_of(std::vector<ReplyEvent> events, GenerationResult result = finished()) {
  GenerationUpdate update;
  update.events = std::move(events);
  update.result = std::move(result);
  return update;
}

// The same reply in many updates: texts cut anywhere at characters, updates of any number of events.
inline std::vector<GenerationUpdate> cut(const std::vector<ReplyEvent>& events, std::uint32_t seed,
                                         GenerationResult result = finished()) {
  std::mt19937 random(seed);
  std::vector<GenerationUpdate> updates(1);
  for (const ReplyEvent& event : events) {
    std::string text = event.text;
    do {
      std::size_t length =
          event.kind == Kind::kCallStart ? text.size() : std::min(text.size(), random() % 6 + 1);
      while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) ++length;
      updates.back().events.push_back({event.kind, event.call, text.substr(0, length)});
      text.erase(0, length);
      if (random() % 2 == 0) updates.emplace_back();
    } while (!text.empty());
  }
  updates.back().result = std::move(result);
  return updates;
}

// "msg_1", "call_2", …
inline std::function<std::string(const char*)> counted_ids() {
  auto count = std::make_shared<int>(0);
  return [count](const char* prefix) { return prefix + std::to_string(++*count); };
}

inline std::string streamed(ReplyWriter& writer, const std::vector<GenerationUpdate>& updates) {
  std::string out;
  writer.begin(out);
  for (const GenerationUpdate& update : updates) writer.update(0, update, out);
  writer.end(out);
  return out;
}

}  // namespace gem::server::test
