// How keys and values are stored: the names of --kv-type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "backend/geometry.h"
#include "base/storage.h"

namespace gem {

enum class KvType : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kF16Full,  // full layers in f16; the sliding ones, which do not grow beyond their rings, in f32
};

std::string_view kv_type_name(KvType type);  // "f32", "bf16", "f16", "f16-full"
std::optional<KvType> kv_type_from_name(std::string_view name);

// What a layer's keys and values are rounded to, to nearest even, when they are written to the cache.
StorageType kv_storage(KvType type, LayerKind kind);

}  // namespace gem
