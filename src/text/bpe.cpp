#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <queue>
#include <span>

#include "base/error.h"
#include "text/utf8.h"

namespace gem {

namespace {

constexpr char32_t kSpaceMark = 0x2581;
constexpr std::size_t kBasicPlane = 0x10000;

// Text spells a space either way, and pieces only as U+2581; inside this file both are U+0020, so that the
// commonest pairs stay in the ASCII table.
char32_t folded(char32_t code) {
  return code == kSpaceMark ? U' ' : code;
}

std::uint64_t pair_key(std::uint32_t left, std::uint32_t right) {
  return (static_cast<std::uint64_t>(left) << 32) | right;
}

// Multiplying by 2^64 / golden ratio and keeping the upper half spreads small consecutive ids over the table.
std::size_t spread(std::uint64_t key) {
  return static_cast<std::size_t>(((key ^ (key >> 29)) * 0x9E3779B97F4A7C15ull) >> 32);
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, const TextList& merges, const std::vector<std::uint32_t>& merge_left) {
  basic_pieces_.assign(kBasicPlane, -1);
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const PieceKind kind = vocabulary.kind(id);
    if (kind == PieceKind::kControl || kind == PieceKind::kByte) continue;
    const Utf8Char c = utf8_next(vocabulary.text(id), 0);
    // A piece that is a plain space cannot come up: in text, spaces are spelt U+2581.
    if (c.bytes != vocabulary.text(id).size() || c.code == U' ') continue;
    const char32_t code = folded(c.code);
    if (code < kBasicPlane) {
      basic_pieces_[code] = id;
    } else {
      other_pieces_.emplace_back(code, id);
    }
  }
  std::sort(other_pieces_.begin(), other_pieces_.end());

  merges_.resize(std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 2)));
  touching_.assign(std::size_t{1} << 10, kFree);
  // Converters list the merges that make one piece side by side: over half of the results repeat the one
  // before.
  std::string_view last_joined;
  std::int32_t last_result = -1;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view joined = merges[rank];
    const std::string_view left = joined.substr(0, merge_left[rank]);
    const std::string_view right = joined.substr(merge_left[rank]);
    const auto piece = [&](std::string_view text) {
      const std::optional<std::int32_t> id = vocabulary.find(text);
      if (!id) {
        fail(ErrorCode::kBadFile, "merge {} ({} + {}) names {}, which is not in the vocabulary", rank,
             in_quotes(left), in_quotes(right), in_quotes(text));
      }
      const PieceKind kind = vocabulary.kind(*id);
      if (kind == PieceKind::kControl || kind == PieceKind::kByte) {
        fail(ErrorCode::kBadFile, "merge {} ({} + {}) involves {}, a {} piece; only text may be merged", rank,
             in_quotes(left), in_quotes(right), in_quotes(text),
             kind == PieceKind::kControl ? "control" : "byte");
      }
      return *id;
    };
    const std::int32_t left_id = piece(left);
    const std::int32_t right_id = piece(right);
    if (last_result < 0 || joined != last_joined) {
      last_result = piece(joined);
      last_joined = joined;
    }
    add_merge(left_id, right_id, {static_cast<std::uint32_t>(rank), last_result});
    add_touching(folded(utf8_last(left)), folded(utf8_next(right, 0).code));
  }
}

void Bpe::add_merge(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = pair_key(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right));
  const std::size_t mask = merges_.size() - 1;
  std::size_t slot = spread(key) & mask;
  for (; merges_[slot].pair != kFree; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == key) {
      fail(ErrorCode::kBadFile, "merge {} repeats merge {} (pieces {} and {})", merge.rank,
           merges_[slot].merge.rank, left, right);
    }
  }
  merges_[slot] = {key, merge};
}

Bpe::Merge Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right));
  const std::size_t mask = merges_.size() - 1;
  for (std::size_t slot = spread(key) & mask; merges_[slot].pair != kFree; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == key) return merges_[slot].merge;
  }
  return {};
}

void Bpe::add_touching(char32_t left, char32_t right) {
  if (left < 128 && right < 128) {
    ascii_touching_.set(left * 128 + right);
    return;
  }
  const auto insert = [](std::vector<std::uint64_t>& set, std::uint64_t key) {
    const std::size_t mask = set.size() - 1;
    std::size_t slot = spread(key) & mask;
    while (set[slot] != kFree && set[slot] != key) slot = (slot + 1) & mask;
    const bool added = set[slot] == kFree;
    set[slot] = key;
    return added;
  };
  if (!insert(touching_, pair_key(left, right))) return;
  if (++touching_count_ * 2 <= touching_.size()) return;
  std::vector<std::uint64_t> grown(touching_.size() * 4, kFree);
  for (const std::uint64_t key : touching_) {
    if (key != kFree) insert(grown, key);
  }
  touching_ = std::move(grown);
}

bool Bpe::may_touch(char32_t left, char32_t right) const {
  if (left < 128 && right < 128) return ascii_touching_.test(left * 128 + right);
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = touching_.size() - 1;
  std::size_t slot = spread(key) & mask;
  while (touching_[slot] != kFree) {
    if (touching_[slot] == key) return true;
    slot = (slot + 1) & mask;
  }
  return false;
}

std::int32_t Bpe::piece_of(char32_t code) const {
  if (code < kBasicPlane) return basic_pieces_[code];
  const auto found =
      std::lower_bound(other_pieces_.begin(), other_pieces_.end(), code,
                       [](const auto& entry, char32_t wanted) { return entry.first < wanted; });
  return found != other_pieces_.end() && found->first == code ? found->second : -1;
}

// One call of encode(): the scratch memory and the memory of segments seen.
class BpeRun {
 public:
  BpeRun(const Bpe& bpe, std::string_view text, std::vector<std::int32_t>& ids)
      : bpe_(bpe), text_(text), ids_(ids) {
    // Short texts repeat too little to pay for clearing the table.
    if (text.size() >= 2048) cache_.resize(kCacheSlots);
  }

  void run(const Vocabulary& vocabulary) {
    std::size_t begin = 0;
    char32_t previous = 0;
    for (std::size_t at = 0; at < text_.size();) {
      const Utf8Char c = utf8_next(text_, at);
      const char32_t code = folded(c.code);
      const std::int32_t piece = c.state == Utf8State::kComplete ? bpe_.piece_of(code) : -1;
      if (!symbols_.empty() && (piece < 0 || !bpe_.may_touch(previous, code))) {
        end_segment(text_.substr(begin, at - begin));
      }
      if (piece < 0) {
        for (const char byte : code == U' ' ? kSpacePiece : text_.substr(at, c.bytes)) {
          ids_.push_back(vocabulary.byte_piece(static_cast<std::uint8_t>(byte)));
        }
      } else {
        if (symbols_.empty()) begin = at;
        symbols_.push_back(piece);
        previous = code;
      }
      at += c.bytes;
    }
    if (!symbols_.empty()) end_segment(text_.substr(begin));
  }

  BpeWork work;

 private:
  static constexpr std::size_t kCacheSlots = std::size_t{1} << 13;
  static constexpr std::size_t kMostCachedBytes = 128;
  // Up to here rescanning a small array beats a heap; it bounds the quadratic part.
  static constexpr std::size_t kShort = 32;

  struct CacheSlot {           // direct-mapped: a later segment replaces an earlier one
    std::string_view segment;  // into the text
    std::size_t ids_begin = 0;
    std::size_t ids_count = 0;
  };

  struct Node {  // a symbol of a long segment, in a doubly linked list
    std::int32_t id;
    std::uint32_t previous;
    std::uint32_t next;
    Bpe::Merge merge;  // with the next symbol; kNever also once this node was swallowed
  };
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  Bpe::Merge find(std::int32_t left, std::int32_t right) {
    ++work.lookups;
    return bpe_.find(left, right);
  }

  void end_segment(std::string_view segment) {
    ++work.segments;
    work.longest_segment = std::max(work.longest_segment, symbols_.size());
    if (symbols_.size() == 1) {
      ids_.push_back(symbols_[0]);
    } else if (cache_.empty() || segment.size() > kMostCachedBytes) {
      merge_segment();
    } else {
      CacheSlot& slot = cache_[std::hash<std::string_view>{}(segment) % kCacheSlots];
      if (slot.segment == segment) {
        ++work.cached_segments;
        for (std::size_t i = 0; i < slot.ids_count; ++i) {
          const std::int32_t id = ids_[slot.ids_begin + i];
          ids_.push_back(id);
        }
      } else {
        const std::size_t before = ids_.size();
        merge_segment();
        slot = {segment, before, ids_.size() - before};
      }
    }
    symbols_.clear();
  }

  void merge_segment() {
    if (symbols_.size() <= kShort) {
      merge_short();
    } else {
      merge_long();
    }
  }

  // Repeatedly joins the leftmost pair of lowest rank, by scanning.
  void merge_short() {
    std::array<Bpe::Merge, kShort> merges;
    std::size_t count = symbols_.size();
    for (std::size_t i = 0; i + 1 < count; ++i) merges[i] = find(symbols_[i], symbols_[i + 1]);
    while (count > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < count; ++i) {
        if (merges[i].rank < merges[best].rank) best = i;
      }
      if (merges[best].rank == Bpe::kNever) break;
      symbols_[best] = merges[best].result;
      for (std::size_t i = best + 1; i + 1 < count; ++i) {
        symbols_[i] = symbols_[i + 1];
        merges[i] = merges[i + 1];
      }
      --count;
      if (best + 1 < count) merges[best] = find(symbols_[best], symbols_[best + 1]);
      if (best > 0) merges[best - 1] = find(symbols_[best - 1], symbols_[best]);
    }
    ids_.insert(ids_.end(), symbols_.begin(), symbols_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // The same with a heap: each merge adds at most two entries, so n symbols cost O(n log n).
  void merge_long() {
    const std::size_t count = symbols_.size();
    nodes_.resize(count);
    std::vector<std::uint64_t> entries;  // rank << 32 | node: the lowest rank first, then the leftmost
    entries.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto node = static_cast<std::uint32_t>(i);
      nodes_[i] = {symbols_[i], i == 0 ? kNone : node - 1, i + 1 == count ? kNone : node + 1, {}};
      if (i + 1 == count) break;
      nodes_[i].merge = find(symbols_[i], symbols_[i + 1]);
      if (nodes_[i].merge.rank != Bpe::kNever) entries.push_back(pair_key(nodes_[i].merge.rank, node));
    }
    std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap(std::greater<>{},
                                                                                        std::move(entries));
    const auto refresh = [&](std::uint32_t at) {
      Node& node = nodes_[at];
      node.merge = node.next == kNone ? Bpe::Merge{} : find(node.id, nodes_[node.next].id);
      if (node.merge.rank != Bpe::kNever) heap.push(pair_key(node.merge.rank, at));
    };
    while (!heap.empty()) {
      const auto rank = static_cast<std::uint32_t>(heap.top() >> 32);
      const auto at = static_cast<std::uint32_t>(heap.top());
      heap.pop();
      Node& node = nodes_[at];
      if (node.merge.rank != rank) continue;  // the pair is gone; a rank names one pair of pieces only
      Node& swallowed = nodes_[node.next];
      node.id = node.merge.result;
      node.next = swallowed.next;
      swallowed.merge = {};
      if (node.next != kNone) nodes_[node.next].previous = at;
      refresh(at);
      if (node.previous != kNone) refresh(node.previous);
    }
    for (std::uint32_t at = 0; at != kNone; at = nodes_[at].next) ids_.push_back(nodes_[at].id);
  }

  const Bpe& bpe_;
  std::string_view text_;
  std::vector<std::int32_t>& ids_;
  std::vector<std::int32_t> symbols_;  // of the segment being read
  std::vector<Node> nodes_;
  std::vector<CacheSlot> cache_;
};

void Bpe::encode(const Vocabulary& vocabulary, std::string_view text, std::vector<std::int32_t>& ids,
                 BpeWork* work) const {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail(ErrorCode::kTooLarge, "a text of {} bytes is too long to encode (at most 2 GiB)", text.size());
  }
  BpeRun run(*this, text, ids);
  run.run(vocabulary);
  if (work != nullptr) *work = run.work;
}

}  // namespace gem
