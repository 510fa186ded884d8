// A reply as the Responses and Anthropic APIs show it: a row of items (thoughts, texts, calls) in the order
// in which they were made, each closed before the next opens.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/reply_parser.h"

namespace gem::server {

struct ReplyItem {
  enum class Kind { kThought, kText, kCall };
  Kind kind = Kind::kText;
  std::string id;    // given by the writer when the item opens
  std::string name;  // kCall
  std::string text;  // what has come so far; kCall: the JSON text of the arguments
};

// Cuts a reply's events into items. Text after a call or a thought is an item of its own.
class ReplyItems {
 public:
  // What one event means for the items.
  struct Step {
    enum class Kind { kOpen, kDelta, kClose };
    Kind kind = Kind::kDelta;
    std::size_t item = 0;
    std::string_view text;  // kDelta: points into the event
  };

  // The steps of one event, in order; the event must outlive them.
  std::vector<Step> feed(const ReplyEvent& event);
  // Closes what is still open.
  std::vector<Step> finish();

  std::vector<ReplyItem>& items() { return items_; }
  const std::vector<ReplyItem>& items() const { return items_; }

 private:
  std::vector<ReplyItem> items_;
  bool open_ = false;  // the last item is
};

}  // namespace gem::server
