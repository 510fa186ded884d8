// What the kernels know of a round's rows and of the caches.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gem::cuda {

// As what a cache's layer keeps its elements (kv_element.cuh reads and writes them).
enum class KvElement : std::uint8_t { kF16, kBF16, kF32 };
constexpr std::uint32_t element_bytes(KvElement element) {
  return element == KvElement::kF32 ? 4 : 2;
}

// One layer of one stream's cache. Keys: [kv head][slot][key_stride]; values transposed, [kv
// head][head_dim][slots], so that both are read along the dimension that a product sums over.
struct CacheLayer {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::uint32_t slots = 0;       // a multiple of kKeySlots
  std::uint16_t key_stride = 0;  // head_dim, rounded up to 32; the rest is zero
  KvElement element = KvElement::kF16;
};
constexpr std::uint32_t kKeySlots = 128;
constexpr std::uint32_t kMaxGroup = 16;  // query heads of one KV head

struct RowInfo {
  std::int32_t token = 0;
  std::uint32_t position = 0;
  const CacheLayer* layers = nullptr;  // [layers] on the device
  std::uint32_t span_first = 0;        // the round's first row of the same span
  std::uint32_t first_unit[2] = {};    // of attention's units, in sliding and full layers (decode rows),
  std::uint32_t unit_count[2] = {};    // and how many are the row's
  std::uint32_t last_key = 0;          // the last position that it sees
};

struct HeadShape {
  std::uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool value_from_key = false;
  bool own_keys = true;  // false: an assistant's layer, which reads the target's
  bool operator==(const HeadShape&) const = default;
};

}  // namespace gem::cuda
