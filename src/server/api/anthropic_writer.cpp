#include "server/api/anthropic_writer.h"

#include <utility>

#include "server/api/json_echo.h"

namespace gem::server {
namespace {

using nlohmann::ordered_json;

// What content_block_start says of a block.
ordered_json empty_block(const ReplyItem& item) {
  switch (item.kind) {
    case ReplyItem::Kind::kThought:
      return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    case ReplyItem::Kind::kText:
      return {{"type", "text"}, {"text", ""}};
    case ReplyItem::Kind::kCall:
      break;
  }
  return {{"type", "tool_use"}, {"id", item.id}, {"name", item.name}, {"input", ordered_json::object()}};
}

}  // namespace

AnthropicWriter::AnthropicWriter(AnthropicReplyOptions options,
                                 std::function<std::string(const char*)> new_id)
    : options_(std::move(options)), new_id_(std::move(new_id)) {}

void AnthropicWriter::event(std::string_view type, ordered_json fields, std::string& out) {
  ordered_json data = {{"type", type}};
  data.update(fields);
  append_event(out, type, dump(data));
}

ordered_json AnthropicWriter::usage() const {
  return {{"input_tokens", result_.times.prompt_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", result_.times.reused},
          {"output_tokens", result_.times.reply_tokens},
          {"output_tokens_details", {{"thinking_tokens", result_.reasoning_tokens}}}};
}

// The message as it begins.
ordered_json AnthropicWriter::message() const {
  // How much of the prompt is resumed is not known yet; message_delta corrects the counts.
  return {{"id", options_.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", options_.model},
          {"content", ordered_json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage",
           {{"input_tokens", options_.prompt_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", 0},
            {"output_tokens", 0}}}};
}

std::string_view AnthropicWriter::stop_reason() const {
  if (result_.reason == FinishReason::kContext) return "model_context_window_exceeded";
  if (result_.reason != FinishReason::kStop) return "max_tokens";
  if (!result_.matched.empty()) return "stop_sequence";
  for (const ReplyItem& item : items_.items()) {
    if (item.kind == ReplyItem::Kind::kCall) return "tool_use";
  }
  return "end_turn";
}

ordered_json AnthropicWriter::stop_sequence() const {
  return stop_reason() == "stop_sequence" ? ordered_json(result_.matched) : ordered_json();
}

void AnthropicWriter::begin(std::string& out) {
  event("message_start", {{"message", message()}}, out);
}

void AnthropicWriter::step(const ReplyItems::Step& step, std::string& out) {
  ReplyItem& item = items_.items()[step.item];
  const bool thought = item.kind == ReplyItem::Kind::kThought;
  switch (step.kind) {
    case ReplyItems::Step::Kind::kOpen:
      if (item.kind == ReplyItem::Kind::kCall) item.id = new_id_("toolu_");
      return event("content_block_start", {{"index", step.item}, {"content_block", empty_block(item)}}, out);
    case ReplyItems::Step::Kind::kDelta: {
      if (thought && options_.omit_thinking) return;
      ordered_json delta;
      if (thought) {
        delta = {{"type", "thinking_delta"}, {"thinking", step.text}};
      } else if (item.kind == ReplyItem::Kind::kText) {
        delta = {{"type", "text_delta"}, {"text", step.text}};
      } else {
        delta = {{"type", "input_json_delta"}, {"partial_json", step.text}};
      }
      return event("content_block_delta", {{"index", step.item}, {"delta", delta}}, out);
    }
    case ReplyItems::Step::Kind::kClose:
      if (thought) {
        event("content_block_delta",
              {{"index", step.item}, {"delta", {{"type", "signature_delta"}, {"signature", ""}}}}, out);
      }
      return event("content_block_stop", {{"index", step.item}}, out);
  }
}

void AnthropicWriter::update(std::size_t /*index*/, const GenerationUpdate& update, std::string& out) {
  for (const ReplyEvent& reply_event : update.events) {
    for (const ReplyItems::Step& s : items_.feed(reply_event)) step(s, out);
  }
  if (update.result) result_ = *update.result;
}

void AnthropicWriter::end(std::string& out) {
  for (const ReplyItems::Step& s : items_.finish()) step(s, out);
  event("message_delta",
        {{"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}}, {"usage", usage()}},
        out);
  event("message_stop", ordered_json::object(), out);
}

void AnthropicWriter::fail(const std::string& message, std::string& out) {
  append_event(out, "error", error_body(ApiError::internal(message), ErrorShape::kAnthropic));
}

std::string AnthropicWriter::heartbeat() const {
  return "event: ping\ndata: {\"type\":\"ping\"}\n\n";
}

HttpResponse AnthropicWriter::whole(const std::vector<GenerationUpdate>& updates) {
  std::string events;  // the same steps as in a stream, so that both give the same message
  for (const GenerationUpdate& u : updates) update(0, u, events);
  end(events);
  // Arguments go in as they were written, so that no number is rounded.
  std::string content;
  for (const ReplyItem& item : items_.items()) {
    ordered_json block = empty_block(item);
    if (item.kind == ReplyItem::Kind::kText) {
      block["text"] = item.text;
    } else if (item.kind == ReplyItem::Kind::kThought) {
      if (!options_.omit_thinking) block["thinking"] = item.text;
    } else {
      block.erase("input");
    }
    if (!content.empty()) content += ',';
    content += dump(block);
    if (item.kind == ReplyItem::Kind::kCall) {
      content.back() = ',';
      content += "\"input\":" + (item.text.empty() ? "{}" : item.text) + '}';
    }
  }
  ordered_json head = message();
  for (const char* later : {"content", "stop_reason", "stop_sequence", "usage"}) head.erase(later);
  const ordered_json tail = {
      {"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}, {"usage", usage()}};
  std::string body = dump(head);
  body.back() = ',';
  body += "\"content\":[" + content + "]," + dump(tail).substr(1);
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

}  // namespace gem::server
