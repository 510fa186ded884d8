// Digests, by the system's OpenSSL: SHA-256, and the blob id by which git and hubs name small files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace gem {

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
  void update(std::span<const std::byte> bytes) {
    update(std::span(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  std::string hex();  // once, at the end

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace gem
