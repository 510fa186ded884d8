// Copy drafts: what followed the longest earlier occurrence of the text's end. No model; pays where a reply
// repeats its context (code edits, quotations, tables, tool arguments).
#pragma once

#include <unordered_map>

#include "engine/draft/drafter.h"

namespace gem {

struct CopyOptions {
  std::uint32_t shortest = 4;     // tokens that must match, at least
  std::uint32_t most = 15;        // tokens proposed at most
  std::uint32_t candidates = 64;  // earlier occurrences looked at, latest first
  std::uint32_t longest = 256;    // a match is not measured further
};

// Finds the longest match of a text's end, as the text grows. Occurrences of the last `shortest` tokens are
// chained by a hash, latest first.
class SuffixIndex {
 public:
  explicit SuffixIndex(CopyOptions options) : options_(options) {}
  // Takes in the tokens that are new since the last call.
  void extend(std::span<const std::int32_t> tokens);
  void roll_back(std::size_t length);

  struct Match {
    std::size_t next = 0;    // the token that followed the earlier occurrence
    std::size_t length = 0;  // tokens that match; 0: none
  };
  // Of the text's end; `tokens` as last given to extend().
  Match find(std::span<const std::int32_t> tokens) const;

 private:
  std::uint64_t key(const std::int32_t* last) const;
  CopyOptions options_;
  std::unordered_map<std::uint64_t, std::size_t> heads_;  // key -> the latest end of an occurrence, plus 1
  std::vector<std::size_t> earlier_;                      // end -> the one before with the same key, plus 1
  std::vector<std::uint64_t> keys_;                       // end -> its key
};

class CopyDrafter final : public Drafter {
 public:
  explicit CopyDrafter(CopyOptions options = {}) : options_(options) {}
  std::string description() const override { return "copies of earlier text"; }
  std::unique_ptr<DraftState> open() override;
  void absorb(DraftState& state, const AbsorbedRows& rows) override;
  DraftOutlook outlook(const DraftState& state, std::span<const std::int32_t> tokens) const override;
  void propose(std::span<DraftTurn> turns) override;
  void roll_back(DraftState& state, std::uint32_t length) override;

  // Tokens that match before the proposal that outlook() announces; 0: none.
  std::size_t match(const DraftState& state) const;

 private:
  CopyOptions options_;
};

}  // namespace gem
