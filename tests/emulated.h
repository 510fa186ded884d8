// Tests of the cuda backend run on a device, or on one in software (tests/emulation/cuda), where they have to
// make do with less.
#pragma once

namespace gem::testing {

#ifdef GEM_CUDA_EMULATED
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

// Checked for memory errors or races, the one in software is five to twenty times slower still.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

template <typename T>
constexpr T full_or_quick(T full, T quick) {
  return kEmulated ? quick : full;
}

}  // namespace gem::testing
