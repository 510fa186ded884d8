// Tests of the cuda backend run on a device, or on one in software (tests/emulation/cuda), where they have to
// make do with less.
#pragma once

namespace gem::testing {

#ifdef GEM_CUDA_EMULATED
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

template <typename T>
constexpr T full_or_quick(T full, T quick) {
  return kEmulated ? quick : full;
}

}  // namespace gem::testing
