#include "server/api/responses_writer.h"

#include <utility>

#include "server/api/json_echo.h"

namespace gem::server {
namespace {

using nlohmann::ordered_json;

ordered_json text_part(std::string_view text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", ordered_json::array()},
          {"logprobs", ordered_json::array()}};
}

ordered_json thought_part(std::string_view text) {
  return {{"type", "reasoning_text"}, {"text", text}};
}

// The item with its text so far, or empty (`filled` false), as response.output_item.added has it.
ordered_json item_json(const ReplyItem& item, const std::string& call_id, std::string_view status,
                       bool filled) {
  ordered_json content = ordered_json::array();
  switch (item.kind) {
    case ReplyItem::Kind::kThought:
      if (filled) content.push_back(thought_part(item.text));
      return {{"id", item.id},      {"type", "reasoning"},          {"summary", ordered_json::array()},
              {"content", content}, {"encrypted_content", nullptr}, {"status", status}};
    case ReplyItem::Kind::kText:
      if (filled) content.push_back(text_part(item.text));
      return {{"id", item.id},
              {"type", "message"},
              {"status", status},
              {"role", "assistant"},
              {"content", content}};
    case ReplyItem::Kind::kCall:
      break;
  }
  return {{"id", item.id},      {"type", "function_call"},
          {"status", status},   {"arguments", filled ? item.text : std::string()},
          {"call_id", call_id}, {"name", item.name}};
}

const char* id_prefix(ReplyItem::Kind kind) {
  switch (kind) {
    case ReplyItem::Kind::kThought:
      return "rs_";
    case ReplyItem::Kind::kText:
      return "msg_";
    case ReplyItem::Kind::kCall:
      break;
  }
  return "fc_";
}

bool cut_short(FinishReason reason) {
  return reason != FinishReason::kStop;
}

}  // namespace

ResponsesWriter::ResponsesWriter(ordered_json response, std::function<std::string(const char*)> new_id,
                                 std::function<std::int64_t()> now)
    : response_(std::move(response)), new_id_(std::move(new_id)), now_(std::move(now)) {}

void ResponsesWriter::event(std::string_view type, ordered_json fields, std::string& out) {
  ordered_json data = {{"type", type}, {"sequence_number", sequence_++}};
  data.update(fields);
  append_event(out, type, dump(data));
}

void ResponsesWriter::lifecycle(std::string_view type, std::string& out) {
  event(type, {{"response", response_}}, out);
}

void ResponsesWriter::begin(std::string& out) {
  lifecycle("response.created", out);
  lifecycle("response.in_progress", out);
}

void ResponsesWriter::open(std::size_t index, std::string& out) {
  ReplyItem& item = items_.items()[index];
  item.id = new_id_(id_prefix(item.kind));
  call_ids_.push_back(item.kind == ReplyItem::Kind::kCall ? new_id_("call_") : std::string());
  event("response.output_item.added",
        {{"output_index", index}, {"item", item_json(item, call_ids_[index], "in_progress", false)}}, out);
  if (item.kind == ReplyItem::Kind::kCall) return;
  event("response.content_part.added",
        {{"item_id", item.id},
         {"output_index", index},
         {"content_index", 0},
         {"part", item.kind == ReplyItem::Kind::kText ? text_part("") : thought_part("")}},
        out);
}

void ResponsesWriter::close(std::size_t index, std::string_view status, std::string& out) {
  const ReplyItem& item = items_.items()[index];
  ordered_json place = {{"item_id", item.id}, {"output_index", index}};
  if (item.kind == ReplyItem::Kind::kCall) {
    place["arguments"] = item.text;
    place["name"] = item.name;
    event("response.function_call_arguments.done", std::move(place), out);
  } else {
    place["content_index"] = 0;
    ordered_json whole = place;
    whole["text"] = item.text;
    if (item.kind == ReplyItem::Kind::kText) whole["logprobs"] = ordered_json::array();
    event(item.kind == ReplyItem::Kind::kText ? "response.output_text.done" : "response.reasoning_text.done",
          std::move(whole), out);
    place["part"] = item.kind == ReplyItem::Kind::kText ? text_part(item.text) : thought_part(item.text);
    event("response.content_part.done", std::move(place), out);
  }
  output_.push_back(item_json(item, call_ids_[index], status, true));
  event("response.output_item.done", {{"output_index", index}, {"item", output_.back()}}, out);
}

void ResponsesWriter::step(const ReplyItems::Step& step, std::string& out) {
  if (step.kind == ReplyItems::Step::Kind::kOpen) return open(step.item, out);
  if (step.kind == ReplyItems::Step::Kind::kClose) return close(step.item, "completed", out);
  const ReplyItem& item = items_.items()[step.item];
  ordered_json fields = {{"item_id", item.id}, {"output_index", step.item}};
  if (item.kind == ReplyItem::Kind::kCall) {
    fields["delta"] = step.text;
    return event("response.function_call_arguments.delta", std::move(fields), out);
  }
  fields["content_index"] = 0;
  fields["delta"] = step.text;
  if (item.kind == ReplyItem::Kind::kThought) {
    return event("response.reasoning_text.delta", std::move(fields), out);
  }
  fields["logprobs"] = ordered_json::array();
  event("response.output_text.delta", std::move(fields), out);
}

void ResponsesWriter::update(std::size_t /*index*/, const GenerationUpdate& update, std::string& out) {
  for (const ReplyEvent& reply_event : update.events) {
    for (const ReplyItems::Step& s : items_.feed(reply_event)) step(s, out);
  }
  if (update.result) result_ = *update.result;
}

void ResponsesWriter::finish_response() {
  const bool cut = cut_short(result_.reason);
  response_["status"] = cut ? "incomplete" : "completed";
  if (cut) {
    response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  } else {
    response_["completed_at"] = now_();
  }
  response_["output"] = output_;
  const std::uint64_t input = std::uint64_t{result_.times.reused} + result_.times.prompt_tokens;
  const std::uint64_t output = result_.times.reply_tokens;
  response_["usage"] = {{"input_tokens", input},
                        {"input_tokens_details", {{"cached_tokens", result_.times.reused}}},
                        {"output_tokens", output},
                        {"output_tokens_details", {{"reasoning_tokens", result_.reasoning_tokens}}},
                        {"total_tokens", input + output}};
}

void ResponsesWriter::end(std::string& out) {
  const bool cut = cut_short(result_.reason);
  for (const ReplyItems::Step& s : items_.finish()) close(s.item, cut ? "incomplete" : "completed", out);
  finish_response();
  lifecycle(cut ? "response.incomplete" : "response.completed", out);
}

void ResponsesWriter::fail(const std::string& message, std::string& out) {
  fail("server_error", message, out);
}

void ResponsesWriter::fail(std::string_view code, const std::string& message, std::string& out) {
  response_["status"] = "failed";
  response_["error"] = {{"code", code}, {"message", message}};
  response_["output"] = output_;
  lifecycle("response.failed", out);
}

HttpResponse ResponsesWriter::whole(const std::vector<GenerationUpdate>& updates) {
  std::string events;  // the same steps as in a stream, so that both give the same response
  for (const GenerationUpdate& u : updates) update(0, u, events);
  end(events);
  return json_response(response_);
}

}  // namespace gem::server
