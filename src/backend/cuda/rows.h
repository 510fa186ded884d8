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
constexpr std::uint32_t kMaxGroup = 16;  // queries that meet one KV head's keys at once

struct RowInfo {
  std::int32_t token = 0;
  std::uint32_t position = 0;
  const CacheLayer* layers = nullptr;  // [layers] on the device
  std::uint32_t span_first = 0;        // the round's first row of the same span
  std::uint32_t last_key = 0;          // the last position that it sees
  // Of a decode row's chunks of keys, in sliding and full layers: their length, the first one, the place of
  // the first one's results, and how many there are.
  std::uint32_t chunk_length[2] = {};
  std::uint32_t first_chunk[2] = {};
  std::uint32_t first_unit[2] = {};
  std::uint16_t unit_count[2] = {};
  // Rows of a span whose chunks have the same length are a run: they meet the keys of a chunk together. Which
  // row of the run this is, and the number of the run's first task (attention_plan.h) among all.
  std::uint16_t in_run[2] = {};
  std::uint32_t first_task[2] = {};
};

struct HeadShape {
  std::uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool value_from_key = false;
  bool own_keys = true;  // false: an assistant's layer, which reads the target's
  bool operator==(const HeadShape&) const = default;
};

}  // namespace gem::cuda
