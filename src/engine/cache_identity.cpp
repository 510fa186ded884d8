#include "engine/cache_identity.h"

#include <sys/stat.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace gem {
namespace {

// Feeds values to a digest such that neighbours cannot run into each other.
class Feed {
 public:
  void number(std::uint64_t value) { digest_.update(std::as_bytes(std::span(&value, 1))); }
  void real(double value) { digest_.update(std::as_bytes(std::span(&value, 1))); }
  void text(std::string_view value) {
    number(value.size());
    digest_.update(std::span(value.data(), value.size()));
  }
  void bytes(std::span<const std::byte> value) { digest_.update(value); }
  std::string hex() { return digest_.hex(); }

  void value(const MetadataValue& any) {
    number(any.index());
    std::visit([this](const auto& v) { one(v); }, any);
  }

 private:
  template <typename T>
  void one(const T& v) {
    if constexpr (std::is_same_v<T, std::string_view>) {
      text(v);
    } else if constexpr (std::is_same_v<T, double>) {
      real(v);
    } else if constexpr (std::is_integral_v<T>) {
      number(static_cast<std::uint64_t>(v));
    } else if constexpr (std::is_same_v<T, MetadataArray>) {
      number(v.index());
      std::visit(
          [this](const auto& list) {
            number(list.size());
            for (const typename std::decay_t<decltype(list)>::value_type element : list) one(element);
          },
          v);
    }
  }

  Digest digest_{DigestKind::kSha256, 0};
};

// All of it, or pages spread evenly, the first and the last ones among them.
void add_contents(Feed& feed, std::span<const std::byte> data) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kPages = 16;
  feed.number(data.size());
  if (data.size() <= kPage * kPages) return feed.bytes(data);
  for (std::size_t i = 0; i + 1 < kPages; ++i)
    feed.bytes(data.subspan((data.size() - kPage) / (kPages - 1) * i, kPage));
  feed.bytes(data.last(kPage));
}

void add_tensor(Feed& feed, const TensorView& tensor) {
  feed.text(tensor.name);
  feed.text(tensor.storage_name());
  feed.number(tensor.shape.size());
  for (const std::uint64_t extent : tensor.shape) feed.number(extent);
  add_contents(feed, tensor.bytes);
  if (tensor.type == StorageType::kAffine) {
    const std::size_t scales = tensor.shape[0] * tensor.affine.row_scale_bytes(tensor.shape[1]);
    add_contents(feed, {tensor.affine.scales, scales});
    add_contents(feed, {tensor.affine.biases, scales});
  }
}

}  // namespace

std::string cache_identity(const Model& model, const Backend& backend, const KvPlan& plan) {
  Feed feed;
  feed.bytes(MappedFile::open("/proc/self/exe")->bytes());
  feed.text(backend.name());
  // "cpu (avx2, 2 threads)": up to the threads.
  const std::string description = backend.description();
  feed.text(std::string_view(description).substr(0, description.find(',')));

  feed.text(kv_type_name(plan.type));
  feed.number(plan.window);
  feed.number(plan.ring());
  for (const KvPlan::Layer& layer : plan.layers) {
    feed.number(layer.slots < plan.context ? 1 : 0);
    feed.number(layer.width);
    feed.text(storage_info(layer.storage).name);
  }

  const Checkpoint& checkpoint = model.checkpoint();
  for (const auto& [key, value] : checkpoint.metadata()) {
    feed.text(key);
    feed.value(value);
  }
  for (const TensorView& tensor : checkpoint.tensors()) add_tensor(feed, tensor);
  for (const std::string& file : checkpoint.files()) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0)
      fail(ErrorCode::kBadFile, "{} cannot be looked at any more", file);
    feed.number(static_cast<std::uint64_t>(status.st_size));
    feed.number(static_cast<std::uint64_t>(status.st_mtim.tv_sec));
    feed.number(static_cast<std::uint64_t>(status.st_mtim.tv_nsec));
  }
  return feed.hex();
}

}  // namespace gem
