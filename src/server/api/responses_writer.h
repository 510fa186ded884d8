// Writes a reply in the shape of OpenAI's Responses API: events with sequence_number, output_index,
// content_index and item_id in the official order, or the one response object.
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

class ResponsesWriter final : public ReplyWriter {
 public:
  // `response`: the response object as it is when the work begins (status "in_progress", output []), with all
  // that it repeats of the request (responses_request.h). `new_id` makes the ids of items.
  ResponsesWriter(nlohmann::ordered_json response, std::function<std::string(const char*)> new_id,
                  std::function<std::int64_t()> now);

  void begin(std::string& out) override;
  void update(std::size_t index, const GenerationUpdate& update, std::string& out) override;
  void end(std::string& out) override;
  void fail(const std::string& message, std::string& out) override;
  HttpResponse whole(const std::vector<GenerationUpdate>& updates) override;

  // A stream that fails before anything was generated; `code` is what clients act on
  // ("context_length_exceeded").
  void fail(std::string_view code, const std::string& message, std::string& out);

 private:
  void event(std::string_view type, nlohmann::ordered_json fields, std::string& out);
  void lifecycle(std::string_view type, std::string& out);
  void step(const ReplyItems::Step& step, std::string& out);
  void open(std::size_t index, std::string& out);
  void close(std::size_t index, std::string_view status, std::string& out);
  void finish_response();

  nlohmann::ordered_json response_;
  std::function<std::string(const char*)> new_id_;
  std::function<std::int64_t()> now_;
  ReplyItems items_;
  std::vector<std::string> call_ids_;                                // by item; empty for what is no call
  nlohmann::ordered_json output_ = nlohmann::ordered_json::array();  // closed items
  std::uint64_t sequence_ = 0;
  GenerationResult result_;
};

}  // namespace gem::server
