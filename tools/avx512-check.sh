#!/usr/bin/env bash
# The AVX-512 kernels of the cpu backend, tested on a processor with AVX2 alone: SIMDe emulates their instructions
# (no part of `make test`, which tests them where the processor has them). Needs the packages libsimde-dev and libgtest-dev.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -e /usr/include/simde/x86/avx512.h ]] || { echo "avx512-check: SIMDe is missing: apt install libsimde-dev"; exit 1; }
out=build/avx512
mkdir -p "$out"
flags=(-std=c++20 -O2 -Wall -Wextra -Wno-psabi -I src -I tests)
sources=(src/base/*.cpp src/backend/*.cpp src/backend/cpu/*.cpp tests/backend/kernels_test.cpp tests/backend/attention_test.cpp)
# Whether an object is newer than its source and all headers.
up_to_date() {
  [[ $1 -nt $2 && -z $(find src tests -name '*.h' -newer "$1" -print -quit) ]]
}
objects=()
for source in "${sources[@]}"; do
  object=$out/$(echo "$source" | tr / _).o
  more=()
  case $source in
    *_avx512.cpp) more=(-mavx2 -mfma -mf16c -I tests/emulation) ;;
    *_avx2.cpp) more=(-mavx2 -mfma -mf16c) ;;
    *_amx.cpp) more=(-mavx512f -mavx512bw -mavx512vl -mavx512vnni -mavx512vbmi -mamx-tile -mamx-int8) ;; # not run here
    */kernels.cpp) more=(-Dhas_avx512=processor_has_avx512) ;; # the emulated one is always there
  esac
  objects+=("$object")
  up_to_date "$object" "$source" || g++ "${flags[@]}" ${more[@]+"${more[@]}"} -c "$source" -o "$object"
done
echo 'namespace gem::cpu { bool has_avx512() { return true; } }' >"$out/always.cpp"
g++ -c "$out/always.cpp" -o "$out/always.o"
g++ "${objects[@]}" "$out/always.o" -o "$out/test_kernels" -lgtest -lgtest_main -lfmt -lcrypto -pthread
"$out/test_kernels" --gtest_filter='*avx512*' "$@"
