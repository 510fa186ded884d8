// The two digests by which a hub names contents: SHA-256 for large files, git's blob id for small ones.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace gem::hub {

enum class DigestKind {
  kSha256,
  kGitBlob,  // SHA-1 of "blob <size>\0" and the bytes
};

class Digest {
 public:
  // `size`: bytes that will come; a part of git's digest. Error(kFailed) where the system's OpenSSL refuses
  // it.
  Digest(DigestKind kind, std::uint64_t size);

  void update(std::span<const char> bytes);
  std::string hex();  // once, at the end

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace gem::hub
