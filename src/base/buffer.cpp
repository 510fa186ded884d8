#include "base/buffer.h"

#include <sys/mman.h>

#include "base/error.h"

namespace gem {

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) fail(ErrorCode::kTooLarge, "cannot reserve {} bytes of memory", bytes);
  data_ = data;
}

void Buffer::prefer_huge_pages() {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_HUGEPAGE);  // a wish: a system without them says no
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace gem
