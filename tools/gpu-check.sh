#!/usr/bin/env bash
# Builds gem with CUDA, checks the backend on this machine's device, measures it on random weights of the real geometry,
# and prints a table; beside it the figures of a llama-bench binary, if its path is given.
#
#   tools/gpu-check.sh [LLAMA_BENCH]        PROFILE=12b (or 31b), WORK=folder for the weights (7 or 18 GB)
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-12b}
work=${WORK:-${TMPDIR:-/tmp}}
peer=${1:-}

cmake --preset release -B build/gpu -DGEM_CUDA=ON -DGEM_TESTS=ON >build/gpu-configure.log 2>&1 || { cat build/gpu-configure.log; exit 1; }
cmake --build build/gpu --target gem test_model test_backend
gem=build/gpu/gem

echo "== tests on the device"
ctest --test-dir build/gpu -L gpu --output-on-failure

echo "== contract"
$gem check --backend cuda

model=$work/gem-synth-$profile.gguf
[[ -f $model ]] || $gem synth "$profile" "$model"

echo "== speed: $profile, random weights"
$gem bench -m "$model" --backend cuda --chunk 2048 --context 8192 -p 4096 -n 64 --streams 1 2 4 8 16 32 --rows 8
$gem bench -m "$model" --backend cuda --chunk 2048 --context 40960 -p 2048 -n 32 --depth 32768 -r 1
if [[ -n $peer ]]; then
  echo "== the same file in llama-bench"
  "$peer" -m "$model" -fa 1 -ngl 99 -p 4096 -n 64
  "$peer" -m "$model" -fa 1 -ngl 99 -p 2048 -n 32 -d 32768 -r 1
fi
