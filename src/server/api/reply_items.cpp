#include "server/api/reply_items.h"

namespace gem::server {
namespace {

ReplyItem::Kind kind_of(ReplyEvent::Kind kind) {
  switch (kind) {
    case ReplyEvent::Kind::kReasoning:
      return ReplyItem::Kind::kThought;
    case ReplyEvent::Kind::kContent:
      return ReplyItem::Kind::kText;
    case ReplyEvent::Kind::kCallStart:
    case ReplyEvent::Kind::kCallArguments:
      break;
  }
  return ReplyItem::Kind::kCall;
}

}  // namespace

std::vector<ReplyItems::Step> ReplyItems::feed(const ReplyEvent& event) {
  std::vector<Step> steps;
  const bool starts_call = event.kind == ReplyEvent::Kind::kCallStart;
  if (!starts_call && event.text.empty()) return steps;
  const ReplyItem::Kind kind = kind_of(event.kind);
  if (starts_call || !open_ || items_.back().kind != kind) {
    steps = finish();
    items_.push_back({kind, {}, starts_call ? event.text : std::string(), {}});
    open_ = true;
    steps.push_back({Step::Kind::kOpen, items_.size() - 1, {}});
  }
  if (!starts_call) {
    items_.back().text += event.text;
    steps.push_back({Step::Kind::kDelta, items_.size() - 1, event.text});
  }
  return steps;
}

std::vector<ReplyItems::Step> ReplyItems::finish() {
  if (!open_) return {};
  open_ = false;
  return {{Step::Kind::kClose, items_.size() - 1, {}}};
}

}  // namespace gem::server
