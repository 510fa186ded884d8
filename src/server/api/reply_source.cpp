#include "server/api/reply_source.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace gem::server {
namespace {

bool failed(const GenerationResult& result) {
  return result.reason == FinishReason::kFailed || result.reason == FinishReason::kCancelled;
}

// One line for the client.
std::string failure_text(const GenerationResult& result) {
  if (!result.error.empty()) return result.error;
  return result.reason == FinishReason::kCancelled ? "the reply was cancelled by the server"
                                                   : "the reply could not be made";
}

void wake_for_all(const std::vector<std::unique_ptr<Generation>>& generations,
                  const std::function<void()>& wake) {
  for (const auto& generation : generations) {
    if (generation != nullptr) generation->on_ready(wake);
  }
}

class StreamSource : public EventSource {
 public:
  StreamSource(std::vector<std::unique_ptr<Generation>> generations, std::unique_ptr<ReplyWriter> writer)
      : generations_(std::move(generations)), writer_(std::move(writer)) {}

  void on_ready(std::function<void()> wake) override { wake_for_all(generations_, wake); }

  State pull(std::string& out) override {
    const std::size_t before = out.size();
    try {
      return advance(out);
    } catch (const std::exception&) {
      // Half an event may be there; whole ones are sent or nothing.
      out.resize(before);
      return give_up("the reply could not be written", out);
    }
  }

  std::string heartbeat() const override { return writer_->heartbeat(); }

 private:
  State advance(std::string& out) {
    const std::size_t before = out.size();
    if (!std::exchange(begun_, true)) writer_->begin(out);
    std::uint32_t rounds = 0;
    bool open = false;
    for (std::size_t i = 0; i < generations_.size(); ++i) {
      if (generations_[i] == nullptr) continue;
      const GenerationUpdate update = generations_[i]->take();
      rounds += update.rounds;
      if (update.result && failed(*update.result)) return give_up(failure_text(*update.result), out);
      writer_->update(i, update, out);
      if (update.result) {
        generations_[i].reset();
      } else {
        open = true;
      }
    }
    if (!open) {
      writer_->end(out);
      return State::kDone;
    }
    if (rounds > 0 && out.size() == before) out += writer_->heartbeat();
    return State::kMore;
  }

  State give_up(const std::string& message, std::string& out) {
    generations_.clear();
    writer_->fail(message, out);
    return State::kDone;
  }

  std::vector<std::unique_ptr<Generation>> generations_;  // null once finished
  std::unique_ptr<ReplyWriter> writer_;
  bool begun_ = false;
};

class PlainSource : public PendingReply {
 public:
  PlainSource(std::vector<std::unique_ptr<Generation>> generations, std::unique_ptr<ReplyWriter> writer,
              int failure_status)
      : generations_(std::move(generations)),
        updates_(generations_.size()),
        writer_(std::move(writer)),
        failure_status_(failure_status) {}

  void on_ready(std::function<void()> wake) override { wake_for_all(generations_, wake); }

  std::optional<HttpResponse> poll() override {
    try {
      return advance();
    } catch (const std::exception&) {
      return failure("the reply could not be written", 500);
    }
  }

 private:
  std::optional<HttpResponse> advance() {
    bool open = false;
    for (std::size_t i = 0; i < generations_.size(); ++i) {
      if (generations_[i] == nullptr) continue;
      join_update(updates_[i], generations_[i]->take());
      if (!updates_[i].result) {
        open = true;
      } else if (failed(*updates_[i].result)) {
        const bool cancelled = updates_[i].result->reason == FinishReason::kCancelled;
        return failure(failure_text(*updates_[i].result), cancelled ? 503 : failure_status_);
      } else {
        generations_[i].reset();
      }
    }
    if (open) return std::nullopt;
    return writer_->whole(updates_);
  }

  HttpResponse failure(const std::string& message, int status) {
    generations_.clear();
    ApiError error = status == 503 ? ApiError::unavailable(message) : ApiError::internal(message);
    error.status = status;
    return error_response(error, writer_->error_shape());
  }

  std::vector<std::unique_ptr<Generation>> generations_;  // null once finished
  std::vector<GenerationUpdate> updates_;
  std::unique_ptr<ReplyWriter> writer_;
  int failure_status_;
};

}  // namespace

Reply stream_reply(std::vector<std::unique_ptr<Generation>> generations,
                   std::unique_ptr<ReplyWriter> writer) {
  EventReply reply;
  reply.head.content_type = "text/event-stream";
  reply.head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  reply.source = std::make_unique<StreamSource>(std::move(generations), std::move(writer));
  return reply;
}

Reply plain_reply(std::vector<std::unique_ptr<Generation>> generations, std::unique_ptr<ReplyWriter> writer,
                  int failure_status) {
  return std::make_unique<PlainSource>(std::move(generations), std::move(writer), failure_status);
}

void join_update(GenerationUpdate& all, GenerationUpdate&& next) {
  for (ReplyEvent& event : next.events) {
    if (!all.events.empty() && event.kind != ReplyEvent::Kind::kCallStart &&
        all.events.back().kind == event.kind && all.events.back().call == event.call) {
      all.events.back().text += event.text;
    } else {
      all.events.push_back(std::move(event));
    }
  }
  std::move(next.tokens.begin(), next.tokens.end(), std::back_inserter(all.tokens));
  all.rounds += next.rounds;
  if (next.prompt) all.prompt = next.prompt;
  all.times = next.times;
  if (next.result) all.result = std::move(next.result);
}

void append_event(std::string& out, std::string_view name, std::string_view data) {
  if (!name.empty()) {
    out += "event: ";
    out += name;
    out += '\n';
  }
  out += "data: ";
  out += data;
  out += "\n\n";
}

}  // namespace gem::server
