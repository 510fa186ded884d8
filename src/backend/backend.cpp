#include "backend/backend.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace gem {

std::span<const KvType> Backend::kv_types() const {
  static constexpr KvType kTypes[] = {KvType::kF32};
  return kTypes;
}

KvType choose_kv_type(const Backend& backend, std::optional<KvType> wanted) {
  const std::span<const KvType> types = backend.kv_types();
  if (!wanted) return types.front();
  if (std::find(types.begin(), types.end(), *wanted) != types.end()) return *wanted;
  std::string known;
  for (const KvType type : types) known += (known.empty() ? "" : ", ") + std::string(kv_type_name(type));
  fail(ErrorCode::kUsage, "the {} backend has no KV cache type {} (it has {})", backend.name(),
       kv_type_name(*wanted), known);
}

}  // namespace gem
