#include "engine/draft/copy.h"

#include <algorithm>

namespace gem {
namespace {

struct State final : DraftState {
  explicit State(CopyOptions options) : index(options) {}
  SuffixIndex index;
  SuffixIndex::Match match;
};

}  // namespace

// FNV-1a over the last `shortest` tokens. Another text with the same hash is found out by comparing.
std::uint64_t SuffixIndex::key(const std::int32_t* last) const {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (std::uint32_t i = 0; i < options_.shortest; ++i) {
    h ^= static_cast<std::uint32_t>(*(last - i));
    h *= 0x100000001b3u;
  }
  return h;
}

void SuffixIndex::extend(std::span<const std::int32_t> tokens) {
  for (std::size_t end = earlier_.size(); end < tokens.size(); ++end) {
    earlier_.push_back(0);
    keys_.push_back(0);
    if (end + 1 < options_.shortest) continue;
    keys_.back() = key(tokens.data() + end);
    std::size_t& head = heads_[keys_.back()];
    earlier_.back() = head;
    head = end + 1;
  }
}

void SuffixIndex::roll_back(std::size_t length) {
  while (earlier_.size() > length) {
    const std::size_t end = earlier_.size() - 1;
    if (end + 1 >= options_.shortest) {
      if (earlier_[end] == 0) {
        heads_.erase(keys_[end]);
      } else {
        heads_[keys_[end]] = earlier_[end];
      }
    }
    earlier_.pop_back();
    keys_.pop_back();
  }
}

SuffixIndex::Match SuffixIndex::find(std::span<const std::int32_t> tokens) const {
  Match best;
  if (tokens.size() <= options_.shortest) return best;
  std::size_t at = earlier_[tokens.size() - 1];
  for (std::uint32_t i = 0; at != 0 && i < options_.candidates; ++i, at = earlier_[at - 1]) {
    std::size_t length = 0;
    while (length < at && length < options_.longest &&
           tokens[at - 1 - length] == tokens[tokens.size() - 1 - length])
      ++length;
    if (length >= options_.shortest && length > best.length) best = {at, length};
  }
  return best;
}

std::unique_ptr<DraftState> CopyDrafter::open() {
  return std::make_unique<State>(options_);
}

void CopyDrafter::absorb(DraftState& state, const AbsorbedRows& rows) {
  auto& s = static_cast<State&>(state);
  s.index.extend(rows.tokens);
  s.match = s.index.find(rows.tokens);
}

void CopyDrafter::roll_back(DraftState& state, std::uint32_t length) {
  auto& s = static_cast<State&>(state);
  s.index.roll_back(length);
  s.match = {};
}

std::size_t CopyDrafter::match(const DraftState& state) const {
  return static_cast<const State&>(state).match.length;
}

DraftOutlook CopyDrafter::outlook(const DraftState& state, std::span<const std::int32_t>) const {
  return {DraftKind::kCopy, match(state) > 0 ? options_.most : 0, false};
}

void CopyDrafter::propose(std::span<DraftTurn> turns) {
  for (DraftTurn& turn : turns) {
    const auto& match = static_cast<const State&>(*turn.state).match;
    turn.kind = DraftKind::kCopy;
    if (match.length == 0) continue;
    // Past the text's end the copy goes on with what it has just written: a text that repeats itself.
    for (std::size_t i = 0; turn.drafts.size() < std::min(turn.most, options_.most); ++i) {
      const std::size_t from = match.next + i;
      const std::int32_t token =
          from < turn.tokens.size() ? turn.tokens[from] : turn.drafts[from - turn.tokens.size()];
      turn.drafts.push_back(token);
      if (turn.distributions) turn.drawn_from.push_back({{{token, 1.0}}});
      const auto& ends = turn.end_tokens;
      if (std::find(ends.begin(), ends.end(), token) != ends.end()) break;
    }
  }
}

}  // namespace gem
