// Small hand-made vocabularies, and where the real-size one is.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace gem::testing {

inline std::string byte_piece_text(unsigned byte) {
  return fmt::format("<0x{:02X}>", byte);
}

// Pieces 0-4 <pad> <eos> <bos> <unk> <mask>, 5 <|turn>, 6 <turn|>, 7 <tag> (an added token), 8-263 the bytes,
// then `pieces` and the results of `merges`, as far as they are not there yet, in order.
inline constexpr std::int32_t kFirstByte = 8;
inline constexpr std::int32_t kFirstPiece = 264;

using Merges = std::vector<std::pair<std::string, std::string>>;

inline TokenizerSource small_source(const std::vector<std::string>& pieces, const Merges& merges) {
  TokenizerSource source;
  std::vector<std::string> all = {"<pad>",  "<eos>",   "<bos>",   "<unk>",
                                  "<mask>", "<|turn>", "<turn|>", "<tag>"};
  source.kinds.assign(7, PieceKind::kControl);
  source.kinds.push_back(PieceKind::kAdded);
  for (unsigned byte = 0; byte < 256; ++byte) {
    all.push_back(byte_piece_text(byte));
    source.kinds.push_back(PieceKind::kByte);
  }
  const auto add = [&](const std::string& text) {
    if (std::find(all.begin(), all.end(), text) != all.end()) return;
    all.push_back(text);
    source.kinds.push_back(PieceKind::kNormal);
  };
  for (const std::string& piece : pieces) add(piece);
  for (const auto& [left, right] : merges) {
    add(left + right);
    source.add_merge(left, right);
  }
  for (const std::string& text : all) source.pieces.add(text);
  return source;
}

// The texts of the pieces, joined by '|'.
inline std::string shown(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += '|';
    out += tokenizer.piece(ids[i]);
  }
  return out;
}

inline std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A file made by tools/fetch-test-tokenizer.sh.
inline std::optional<std::string> real_tokenizer(const std::string& name) {
  namespace fs = std::filesystem;
  fs::path folder;
  if (const char* given = std::getenv("GEM_TEST_TOKENIZER_DIR")) {
    folder = given;
  } else if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    folder = fs::path(cache) / "gem-tests";
  } else if (const char* home = std::getenv("HOME")) {
    folder = fs::path(home) / ".cache" / "gem-tests";
  }
  std::error_code ignored;
  const fs::path path = folder / name;
  if (folder.empty() || !fs::exists(path, ignored)) return std::nullopt;
  return path.string();
}

template <typename Work>
void expect_bad_file(Work&& work, std::string_view part) {
  try {
    work();
    ADD_FAILURE() << "accepted; expected an error naming " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile) << error.what();
    EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
  }
}

}  // namespace gem::testing

#define GEM_REAL_TOKENIZER_OR_SKIP(variable, name)                                        \
  const auto variable##_found = ::gem::testing::real_tokenizer(name);                     \
  if (!variable##_found)                                                                  \
    GTEST_SKIP() << "no " << (name) << "; run tools/fetch-test-tokenizer.sh to fetch it"; \
  const std::string& variable = *variable##_found
