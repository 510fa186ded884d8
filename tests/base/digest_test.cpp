#include "base/digest.h"

#include <gtest/gtest.h>

#include <string_view>

namespace gem {
namespace {

std::string digest(DigestKind kind, std::string_view text) {
  Digest d(kind, text.size());
  d.update(text.substr(0, text.size() / 2));
  d.update(text.substr(text.size() / 2));
  return d.hex();
}

// FIPS 180-2, appendix B.
TEST(Digest, Sha256OfTheStandardsExamples) {
  EXPECT_EQ(digest(DigestKind::kSha256, ""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest(DigestKind::kSha256, "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// `git hash-object` of the same bytes.
TEST(Digest, GitsNamesOfContents) {
  EXPECT_EQ(digest(DigestKind::kGitBlob, ""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(digest(DigestKind::kGitBlob, "hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
}

}  // namespace
}  // namespace gem
