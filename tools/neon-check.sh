#!/usr/bin/env bash
# The cpu backend's kernels for Arm, cross-compiled and tested under emulation (no part of `make test`). Needs the packages
# g++-aarch64-linux-gnu, qemu-user-static, libgtest-dev (its sources) and libfmt-dev.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
compiler=aarch64-linux-gnu-g++
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
for need in "$compiler" "${emulator:-qemu-aarch64-static}"; do
  command -v "$need" >/dev/null || { echo "neon-check: $need is missing: apt install g++-aarch64-linux-gnu qemu-user-static"; exit 1; }
done
out=build/neon
mkdir -p "$out/include"
ln -sfn /usr/include/fmt "$out/include/fmt" # headers only: they are the same on every processor

flags=(-std=c++20 -O2 -static -Wall -Wextra -DFMT_HEADER_ONLY -I src -I tests -I "$out/include" -isystem /usr/src/googletest/googletest/include
  -I /usr/src/googletest/googletest)
sources=(src/backend/*.cpp src/backend/cpu/*.cpp tests/backend/kernels_test.cpp tests/backend/attention_test.cpp
  /usr/src/googletest/googletest/src/gtest-all.cc /usr/src/googletest/googletest/src/gtest_main.cc)
for source in src/base/*.cpp; do # the digest is OpenSSL's, which is not there for Arm; no kernel needs it
  [[ $source == */digest.cpp ]] || sources+=("$source")
done
# Whether an object is newer than its source and all headers.
up_to_date() {
  [[ $1 -nt $2 && -z $(find src tests -name '*.h' -newer "$1" -print -quit) ]]
}
compile() {
  local source=$1 object arch=()
  object=$out/$(echo "$source" | tr / _).o
  [[ $source == *_neon.cpp ]] && arch=(-march=armv8.2-a+dotprod)
  up_to_date "$object" "$source" || "$compiler" "${flags[@]}" ${arch[@]+"${arch[@]}"} -c "$source" -o "$object"
}
running=0
for source in "${sources[@]}"; do
  compile "$source" &
  running=$((running + 1))
  if [[ $running -ge $jobs ]]; then
    wait -n
    running=$((running - 1))
  fi
done
wait
objects=()
for source in "${sources[@]}"; do objects+=("$out/$(echo "$source" | tr / _).o"); done
"$compiler" -static "${objects[@]}" -o "$out/test_kernels" -pthread
"$emulator" "$out/test_kernels" "$@"
