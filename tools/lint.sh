#!/usr/bin/env bash
# One gate: formatting, layering, shell syntax, and clang-tidy on the C++ files that differ from the base revision
# (GEM_LINT_BASE, default: the branch point with origin/main; GEM_LINT_ALL=1: every file of src/). Warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
status=0

echo "== clang-format"
git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror || status=1

echo "== layers"
# Which layers a layer may include (docs/architecture.md).
declare -A below=(
  [base]="base" [formats]="formats base" [hub]="hub base" [backend]="backend base" [model]="model formats backend base"
  [text]="text formats base" [engine]="engine model text backend formats base" 
  [server]="server engine model text backend formats base" [cli]="cli server engine model text backend formats hub base"
)
for layer in "${!below[@]}"; do
  allowed=${below[$layer]// /|}
  if grep -rnE '^#include "' "src/$layer" | grep -vE "#include \"($allowed)/"; then
    echo "lint: $layer/ may include only: ${below[$layer]}" >&2
    status=1
  fi
done

echo "== shell"
for script in $(git ls-files '*.sh' .ci/run); do bash -n "$script" || status=1; done

echo "== clang-tidy"
cmake --preset release -B build/lint -DGEM_TESTS=OFF -DGEM_CUDA=OFF -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
base=${GEM_LINT_BASE:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
files=
if [[ ${GEM_LINT_ALL:-0} == 1 ]]; then
  files=$(git ls-files 'src/*.cpp')
elif [[ -n $base ]]; then
  files=$(git diff --name-only --diff-filter=d "$base" -- 'src/*.cpp')
fi
# The CUDA backend is compiled only where nvcc is.
files=$(grep -v "^src/backend/cuda/" <<<"$files" || true)
[[ -n $files ]] || echo "no C++ file differs from the base revision (GEM_LINT_ALL=1 checks every file)"
if [[ -n $files ]]; then
  echo "$files" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/lint >build/tidy.log 2>&1 || { grep -E 'error:|warning:' build/tidy.log | sort -u; status=1; }
fi
[[ $status -eq 0 ]] && echo "lint: clean"
exit $status
