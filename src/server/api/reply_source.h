// From the generations of a request to its HTTP reply: one writer an API, two ways to send.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "server/http/exchange.h"
#include "server/service.h"

namespace gem::server {

// Writes one API's reply. The same writer serves streams and plain replies.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  // Streams. The text to send first, if any.
  virtual void begin(std::string& out) = 0;
  // What choice `index` has to say; called in order, the last time with update.result set.
  virtual void update(std::size_t index, const GenerationUpdate& update, std::string& out) = 0;
  // After the results of all choices.
  virtual void end(std::string& out) = 0;
  // A failure after the stream has begun, in the API's shape. Nothing follows.
  virtual void fail(const std::string& message, std::string& out) = 0;
  virtual std::string heartbeat() const { return ":\n\n"; }
  // How plain replies that fail are written.
  virtual ErrorShape error_shape() const { return ErrorShape::kOpenAi; }

  // Plain replies. `updates[i]` is all that choice i said (events and tokens joined, result set).
  virtual HttpResponse whole(const std::vector<GenerationUpdate>& updates) = 0;
};

// A stream, or a plain reply, over these generations. When the rounds since the last pull gave no text, a
// comment (heartbeat) is sent, so that a client that has gone is noticed within a round.
// A reply that fails or is cancelled from this side ends the stream with the writer's fail(), and a plain
// reply with `failure_status` (503 where it was cancelled).
Reply stream_reply(std::vector<std::unique_ptr<Generation>> generations, std::unique_ptr<ReplyWriter> writer);
Reply plain_reply(std::vector<std::unique_ptr<Generation>> generations, std::unique_ptr<ReplyWriter> writer,
                  int failure_status = 500);

// Appends what came later to what came before: events and tokens joined, the rest taken from `next`.
void join_update(GenerationUpdate& all, GenerationUpdate&& next);

// One server-sent event: "event: NAME\ndata: DATA\n\n", without the first line where the name is empty.
void append_event(std::string& out, std::string_view name, std::string_view data);

}  // namespace gem::server
