#include "backend/kv_type.h"

#include <array>

namespace gem {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"f32", "bf16", "f16", "f16-full"};

}  // namespace

std::string_view kv_type_name(KvType type) {
  return kNames[static_cast<std::size_t>(type)];
}

std::optional<KvType> kv_type_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<KvType>(i);
  }
  return std::nullopt;
}

StorageType kv_storage(KvType type, LayerKind kind) {
  switch (type) {
    case KvType::kF32:
      return StorageType::kF32;
    case KvType::kBF16:
      return StorageType::kBF16;
    case KvType::kF16:
      return StorageType::kF16;
    case KvType::kF16Full:
      return kind == LayerKind::kFull ? StorageType::kF16 : StorageType::kF32;
  }
  return StorageType::kF32;
}

}  // namespace gem
