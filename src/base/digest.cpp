#include "base/digest.h"

#include <openssl/evp.h>

#include <array>

#include "base/error.h"

namespace gem {
namespace {

void require(int done) {
  if (done != 1) fail(ErrorCode::kFailed, "the system's OpenSSL does not compute this digest");
}

}  // namespace

void Digest::Free::operator()(evp_md_ctx_st* context) const {
  ::EVP_MD_CTX_free(context);
}

Digest::Digest(DigestKind kind, std::uint64_t size) : context_(::EVP_MD_CTX_new()) {
  if (context_ == nullptr) require(0);
  require(::EVP_DigestInit_ex(context_.get(), kind == DigestKind::kSha256 ? ::EVP_sha256() : ::EVP_sha1(),
                              nullptr));
  if (kind == DigestKind::kGitBlob) {
    std::string head = fmt::format("blob {}", size);
    head.push_back('\0');
    update(head);
  }
}

void Digest::update(std::span<const char> bytes) {
  require(::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string Digest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  require(::EVP_DigestFinal_ex(context_.get(), bytes.data(), &size));
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

}  // namespace gem
