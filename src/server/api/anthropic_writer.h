// Writes a reply in the shape of Anthropic's Messages API: content blocks, one after the other, or the one
// message.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "server/api/reply_items.h"
#include "server/api/reply_source.h"

namespace gem::server {

struct AnthropicReplyOptions {
  std::string id;     // "msg_…"
  std::string model;  // the served one
  std::uint32_t prompt_tokens = 0;
  bool omit_thinking = false;  // thinking.display "omitted": blocks of thought come without their text
};

class AnthropicWriter final : public ReplyWriter {
 public:
  AnthropicWriter(AnthropicReplyOptions options, std::function<std::string(const char*)> new_id);

  void begin(std::string& out) override;
  void update(std::size_t index, const GenerationUpdate& update, std::string& out) override;
  void end(std::string& out) override;
  void fail(const std::string& message, std::string& out) override;
  std::string heartbeat() const override;
  ErrorShape error_shape() const override { return ErrorShape::kAnthropic; }
  HttpResponse whole(const std::vector<GenerationUpdate>& updates) override;

 private:
  void event(std::string_view type, nlohmann::ordered_json fields, std::string& out);
  void step(const ReplyItems::Step& step, std::string& out);
  nlohmann::ordered_json message() const;
  nlohmann::ordered_json usage() const;
  std::string_view stop_reason() const;
  nlohmann::ordered_json stop_sequence() const;

  AnthropicReplyOptions options_;
  std::function<std::string(const char*)> new_id_;
  ReplyItems items_;
  GenerationResult result_;
};

}  // namespace gem::server
