// From tokens to a message: decoding, control tokens, thoughts, tool calls and stop strings of one reply.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/stop_strings.h"
#include "text/detokenizer.h"
#include "text/reply_parser.h"
#include "text/tokenizer.h"

namespace gem {

// Feeds a stream's tokens to the reply parser and hands on its events as they become final. Stop strings are
// looked for in the answer's text, not in thoughts or calls.
class ReplyStream : public StreamSink {
 public:
  using OnEvent = std::function<void(const ReplyEvent& event)>;
  using OnPrompt = std::function<void(std::uint32_t done, std::uint32_t total)>;

  // The tokenizer must outlive the stream.
  ReplyStream(const Tokenizer& tokenizer, const ReplyOptions& options, std::vector<std::string> stops,
              OnEvent on_event, OnPrompt on_prompt = {});

  void on_prompt(std::uint32_t done, std::uint32_t total) override;
  bool on_token(std::int32_t token) override;
  void on_finish(FinishReason reason) override;

  bool finished() const { return finished_; }
  FinishReason reason() const { return reason_; }
  // The message: complete after on_finish. Its content is cut at a stop string.
  const ParsedReply& reply() const { return reply_; }

 private:
  void send();

  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  ReplyParser parser_;
  StopStrings stops_;
  OnEvent on_event_;
  OnPrompt on_prompt_;
  std::unordered_map<std::int32_t, Marker> markers_;
  ParsedReply reply_;
  FinishReason reason_ = FinishReason::kStop;
  bool finished_ = false;
};

}  // namespace gem
