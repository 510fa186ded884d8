#include "backend/cpu/kernels.h"

#include <array>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace gem::cpu {

std::span<const Kernels* const> all_kernels() {
  static const std::array kAll = {
#if defined(__x86_64__)
    &kAvx2Kernels,
#endif
    &kPortableKernels
  };
  return kAll;
}

const Kernels& choose_kernels() {
  const char* const wanted = std::getenv("GEM_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    for (const Kernels* kernels : all_kernels()) {
      if (kernels->supported()) return *kernels;
    }
  }
  std::string known;
  for (const Kernels* kernels : all_kernels()) {
    if (wanted != nullptr && std::string_view(wanted) == kernels->name) {
      if (!kernels->supported())
        fail(ErrorCode::kUsage, "GEM_CPU_ISA={}: this processor does not support it", wanted);
      return *kernels;
    }
    known += known.empty() ? kernels->name : std::string(", ") + kernels->name;
  }
  fail(ErrorCode::kUsage, "GEM_CPU_ISA={}: unknown instruction set (known: {})", wanted, known);
}

}  // namespace gem::cpu
