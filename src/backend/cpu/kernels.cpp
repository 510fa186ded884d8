#include "backend/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <array>
#include <cstdlib>
#include <string>

#include "backend/cpu/tile_amx.h"
#include "base/error.h"

namespace gem::cpu {

#if defined(__x86_64__)
// clang 14 does not know "f16c" in __builtin_cpu_supports: CPUID leaf 1, ECX bit 29.
bool has_avx2() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
  return f16c && __builtin_cpu_supports("avx2") > 0 && __builtin_cpu_supports("fma") > 0;
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") > 0 && __builtin_cpu_supports("avx512bw") > 0 &&
         __builtin_cpu_supports("avx512vl") > 0 && __builtin_cpu_supports("avx512vnni") > 0;
}

bool has_amx() {
#if defined(__linux__)
  static const bool has = [] {
    if (!has_avx512() || __builtin_cpu_supports("avx512vbmi") <= 0) return false;
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d >> 24 & 3) != 3) return false;  // tiles, and their products of bytes
    // The state of tiles is large: Linux keeps it only for processes that have asked.
    constexpr long kRequestPermission = 0x1023;
    constexpr long kTileData = 18;
    return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
#else
  return false;
#endif
}

namespace {

const Kernels& amx_kernels() {
  static const Kernels kernels = [] {
    Kernels k = kAvx512Kernels;
    k.name = "amx";
    k.supported = has_amx;
    k.split = amx::split;
    k.tile = amx::tile;
    return k;
  }();
  return kernels;
}

}  // namespace
#elif defined(__aarch64__)
bool has_neon_dot() {
  return (::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#endif

std::span<const Kernels* const> all_kernels() {
  static const std::array kAll = {
#if defined(__x86_64__)
    &amx_kernels(),
    &kAvx512Kernels,
    &kAvx2Kernels,
#elif defined(__aarch64__)
    &kNeonKernels,
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
