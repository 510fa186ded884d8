// From tokens to a message: decoding, control tokens, thoughts, tool calls and stop strings of one reply.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/stop_strings.h"
#include "text/detokenizer.h"
#include "text/reply_parser.h"
#include "text/tokenizer.h"

namespace gem {

struct ReplyStreamOptions {
  bool parse = true;            // take thoughts and calls apart; false: all text is content
  bool render_special = false;  // parse false: control tokens appear as their text, else not at all
  ReplyOptions reply = {};      // parse true
  std::vector<std::string> stops{};
  // Tokens of a thought (its opening and label not counted) after which it is closed by force.
  std::optional<std::uint32_t> thinking_budget{};
  bool one_call = false;  // the reply ends after its first complete tool call
};

// Feeds a stream's tokens to the reply parser and hands on its events as they become final. Stop strings are
// looked for in the answer's text, not in thoughts or calls; text that waits for the rest of one is let go
// when something else follows.
class ReplyStream : public StreamSink {
 public:
  using OnEvent = std::function<void(const ReplyEvent& event)>;
  using OnPrompt = std::function<void(std::uint32_t done, std::uint32_t total)>;

  // The tokenizer must outlive the stream.
  ReplyStream(const Tokenizer& tokenizer, ReplyStreamOptions options, OnEvent on_event,
              OnPrompt on_prompt = {});

  void on_prompt(std::uint32_t done, std::uint32_t total) override;
  std::optional<std::int32_t> forced_token() override;
  bool on_token(const DrawnToken& drawn) override;
  void on_finish(FinishReason reason) override;

  // The running thought is closed by the next token. False when there is none. From any thread.
  bool end_thought();

  bool finished() const { return finished_; }
  FinishReason reason() const { return reason_; }
  // The message: complete after on_finish. Its content is cut at a stop string.
  const ParsedReply& reply() const { return reply_; }
  // The stop string that ended the reply, or empty.
  const std::string& matched() const { return stops_.matched(); }
  // Tokens of thoughts, their control tokens and labels included.
  std::uint32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  bool take(std::int32_t token);
  void follow_thought(std::int32_t token, bool before);
  bool thinking_now(std::optional<Marker> marker) const;
  void send();
  void send_content(std::string text);
  void release_held();

  const Tokenizer& tokenizer_;
  ReplyStreamOptions options_;
  StreamDecoder decoder_;
  ReplyParser parser_;
  StopStrings stops_;
  OnEvent on_event_;
  OnPrompt on_prompt_;
  std::unordered_map<std::int32_t, Marker> markers_;
  std::optional<std::int32_t> thought_closer_;  // <channel|>

  std::atomic<bool> thinking_ = false;
  std::atomic<bool> end_thought_ = false;
  std::string thought_label_;         // what may be the label of the running thought
  std::uint32_t thought_tokens_ = 0;  // of the running thought, without opening and label
  std::uint32_t reasoning_tokens_ = 0;

  ParsedReply reply_;
  FinishReason reason_ = FinishReason::kStop;
  bool finished_ = false;
};

}  // namespace gem
