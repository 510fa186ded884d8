#!/usr/bin/env bash
# All tests that run without an accelerator: the release build, then AddressSanitizer with UndefinedBehaviorSanitizer,
# ThreadSanitizer for what uses threads, and the fuzz harnesses over their seeds. Ends with ctest's own line for each.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
mkdir -p build

# build_and_test NAME TARGETS... -- CTEST_ARGUMENTS...
build_and_test() {
  local preset=$1 folder targets=()
  shift
  folder=build/$preset
  while [[ $# -gt 0 && $1 != -- ]]; do targets+=("$1"); shift; done
  [[ $# -gt 0 ]] && shift
  echo "== $preset"
  local started=$SECONDS built
  cmake --preset "$preset" -B "$folder" >"build/configure-$preset.log" 2>&1 || { cat "build/configure-$preset.log"; exit 1; }
  cmake --build "$folder" -j "$jobs" ${targets[@]+--target "${targets[@]}"} >"build/build-$preset.log" 2>&1 ||
    { grep -E -A5 'error|FAILED' "build/build-$preset.log" | head -60; exit 1; }
  built=$((SECONDS - started))
  ctest --test-dir "$folder" --output-on-failure -j "$jobs" "$@" >"build/test-$preset.log" 2>&1 || { cat "build/test-$preset.log"; exit 1; }
  # What was skipped and why: the reason is the line after the one that says so.
  awk '/: Skipped$/ { getline; print "skipped: " $0 }' "$folder/Testing/Temporary/LastTest.log" | sort | uniq -c
  grep -E 'tests passed|Total Test time' "build/test-$preset.log"
  echo "$preset: built in $built s, tested in $((SECONDS - started - built)) s"
}

if [[ -x tools/fetch-test-tokenizer.sh ]]; then
  tools/fetch-test-tokenizer.sh || echo "the tests of the real-size vocabulary will be skipped"
fi

export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1
build_and_test release
# Under the sanitizers: everything that reads files, requests or text, the engine, the server. The long equality tests of the laws
# and the questions to the bundled model have run above, on the same code.
build_and_test asan test_base test_formats test_hub test_text test_backend test_model test_engine test_server test_cuda -- -E 'NOT_BUILT|Laws|[Oo]racle|ConcurrentEquals|DraftedReplies|DraftBars|CudaEngine|CudaChains|DenseA.Cuda.(Logits|Whole|Chunks|Less|Copied|Long)'
build_and_test tsan test_base test_hub test_engine test_server -- -R 'base.(ThreadPool|ParallelCopy)|engine.EngineTest.(Concurrent|Ends)|engine.KeptRows|CacheStoreTest.*/f32|^(hub|server)[.]' -E NOT_BUILT
build_and_test fuzz fuzzers
